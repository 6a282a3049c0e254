"""Make namespaces and mounts, `/dev` of sandboxes included, by the few system calls Python does not wrap."""

# ruff: noqa: PTH101, PTH102, PTH211
from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import stat

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_REMOUNT = 0x20
MS_BIND = 0x1000
MS_MOVE = 0x2000
MS_REC = 0x4000
MS_PRIVATE = 0x40000
MNT_DETACH = 0x2

MOUNT_ATTR_RDONLY = 0x1
MOUNT_ATTR_NODEV = 0x4
MOUNT_ATTR_IDMAP = 0x00100000

_NS_GET_USERNS = 0xB701
_AT_FDCWD = -100
_AT_EMPTY_PATH = 0x1000
_OPEN_TREE_CLONE = 0x1
_OPEN_TREE_CLOEXEC = os.O_CLOEXEC
_MOVE_MOUNT_F_EMPTY_PATH = 0x4

# The same numbers on every architecture: they are younger than the common table.
_SYS_OPEN_TREE = 428
_SYS_MOVE_MOUNT = 429
_SYS_MOUNT_SETATTR = 442

_libc = ctypes.CDLL(None, use_errno=True)


class _MountAttr(ctypes.Structure):
    _fields_ = (
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    )


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{os.strerror(number)} ({what})")
    return result


def unshare(flags: int) -> None:
    """Leave the namespaces named by `flags` for new ones."""
    _checked(_libc.unshare(ctypes.c_int(flags)), f"unshare {flags:#x}")


def setns(fd: int, flags: int) -> None:
    """Enter the namespace `fd` is, or those of `flags` the process has whose pidfd it is."""
    _checked(_libc.setns(ctypes.c_int(fd), ctypes.c_int(flags)), f"setns {flags:#x}")


def enter_owner_of_mounts(pid: int) -> None:
    """Enter the user namespace that owns the mount namespace of a process.

    Bubblewrap makes two for an ordinary user: one that owns what it makes, and one below it to run in.
    """
    fd = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    try:
        owner = fcntl.ioctl(fd, _NS_GET_USERNS)
    finally:
        os.close(fd)
    try:
        setns(owner, CLONE_NEWUSER)
    finally:
        os.close(owner)


def mount(source: str, target: str, kind: str, flags: int = 0, options: str = "") -> None:
    """mount(2)."""
    _checked(
        _libc.mount(
            os.fsencode(source), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags), options.encode()
        ),
        f"mount {kind} on {target}",
    )


def make_private() -> None:
    """Cut this mount namespace off: nothing mounted here shows anywhere else, nor the other way round."""
    mount("none", "/", "", MS_REC | MS_PRIVATE)


def make_read_only() -> None:
    """Make every mount of this namespace but those of /proc read-only, in this namespace alone."""
    for path in mount_points():
        if path != "/proc" and not path.startswith("/proc/"):
            try:
                mount("none", path, "", MS_REMOUNT | MS_BIND | MS_RDONLY)
            except FileNotFoundError:
                continue  # hidden under another mount


def bind(source: str, target: str) -> None:
    """Show the folder `source` at `target` as well."""
    mount(source, target, "", MS_BIND)


def open_shown(source: str, userns_fd: int | None) -> int:
    """A read-only view of the folder `source`: with the ids of the user namespace where that can be had,
    else as everybody sees it."""
    try:
        return _open_view(source, userns_fd)
    except OSError as error:
        if userns_fd is None or error.errno not in (errno.EINVAL, errno.EPERM):
            raise
        return _open_view(source, None)


def open_shifted(source: str, userns_fd: int) -> int:
    """A read-only view of the folder `source`, with the ids of the user namespace."""
    return _open_view(source, userns_fd)


def _open_view(source: str, userns_fd: int | None) -> int:
    tree = _checked(
        _libc.syscall(
            ctypes.c_long(_SYS_OPEN_TREE),
            ctypes.c_int(_AT_FDCWD),
            os.fsencode(source),
            ctypes.c_uint(_OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC),
        ),
        f"open_tree {source}",
    )
    wanted = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NODEV | (MOUNT_ATTR_IDMAP if userns_fd is not None else 0)
    try:
        _set_attributes(tree, "", _AT_EMPTY_PATH, _MountAttr(wanted, 0, 0, userns_fd or 0))
    except OSError:
        os.close(tree)
        raise
    return tree


def attach(tree: int, target: str) -> None:
    """Mount what `open_shifted` gave at `target`; the descriptor is closed."""
    try:
        _checked(
            _libc.syscall(
                ctypes.c_long(_SYS_MOVE_MOUNT),
                ctypes.c_int(tree),
                b"",
                ctypes.c_int(_AT_FDCWD),
                os.fsencode(target),
                ctypes.c_uint(_MOVE_MOUNT_F_EMPTY_PATH),
            ),
            f"move_mount {target}",
        )
    finally:
        os.close(tree)


def mount_points() -> list[str]:
    """Return where something is mounted in this namespace, in the order of mounting."""
    with open("/proc/self/mountinfo", "rb") as file:
        fields = [line.split()[4] for line in file]
    return [os.fsdecode(field.decode("unicode_escape").encode("latin-1")) for field in fields]


def unmount(path: str) -> None:
    """Take away what is mounted at `path`, with everything below it. A place that is gone already is fine."""
    if _libc.umount2(os.fsencode(path), ctypes.c_int(MNT_DETACH)) < 0:
        number = ctypes.get_errno()
        if number not in (errno.EINVAL, errno.ENOENT):
            raise OSError(number, f"{os.strerror(number)} (unmount {path})")


def _set_attributes(fd: int, path: str, flags: int, wanted: _MountAttr) -> None:
    _checked(
        _libc.syscall(
            ctypes.c_long(_SYS_MOUNT_SETATTR),
            ctypes.c_int(fd),
            os.fsencode(path),
            ctypes.c_uint(flags),
            ctypes.byref(wanted),
            ctypes.c_size_t(ctypes.sizeof(wanted)),
        ),
        "mount_setattr",
    )


def mount_overlay(lower: str, upper: str, work: str, target: str) -> None:
    """A writable view of `lower` at `target`; changes go to `upper`."""
    options = f"lowerdir={_escaped(lower)},upperdir={_escaped(upper)},workdir={_escaped(work)}"
    # Whatever this kernel's defaults are: the upper folder alone is to tell what changed.
    options += ",redirect_dir=off,metacopy=off"
    mount("overlay", target, "overlay", MS_NOSUID | MS_NODEV, options)


def mount_covered(lower: str, empty: str, target: str) -> None:
    """Show `lower` read-only at `target` as a file system of its own, whose origin no list of mounts tells.

    The kernel wants two lower folders where there is no upper one; `empty` is the other.
    """
    options = f"lowerdir={_escaped(lower)}:{_escaped(empty)}"
    mount("overlay", target, "overlay", MS_NOSUID | MS_NODEV | MS_RDONLY, options)


def move(source: str, target: str) -> None:
    """Take what is mounted at `source` to `target`."""
    mount(source, target, "", MS_MOVE)


def _escaped(path: str) -> str:
    return path.replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,")


# `/dev` of sandboxes, mounted by us where we are root.
#
# Bubblewrap can make one too, but then `/dev/shm` belongs to the sandbox's user namespace, in which the
# engine has no id: it could not put a file there. One read-only `/dev` serves all sandboxes; what can be
# written to lies in the sandbox's own file system and under its quota.


_DEVICE_NODES = {
    "null": (1, 3),
    "zero": (1, 5),
    "full": (1, 7),
    "random": (1, 8),
    "urandom": (1, 9),
    "tty": (5, 0),
}
_DEVICE_LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}
_TTY_GROUP = 5


def build_devices(target: str, owner: int) -> bool:
    """Make the common `/dev` at the empty folder `target`; False where device nodes cannot be made."""
    flags = MS_NOSUID | MS_NOEXEC
    mount("devices", target, "tmpfs", flags, f"size=64k,mode=755,uid={owner},gid={owner}")
    try:
        for name, (major, minor) in _DEVICE_NODES.items():
            os.mknod(f"{target}/{name}", stat.S_IFCHR | 0o666, os.makedev(major, minor))
            os.chmod(f"{target}/{name}", 0o666)  # noqa: S103 - as every /dev has it
            os.chown(f"{target}/{name}", owner, owner)
        # Some containers let nodes be made and not be opened.
        os.close(os.open(f"{target}/null", os.O_RDWR | os.O_CLOEXEC))
    except PermissionError:
        unmount(target)
        return False
    for name, place in _DEVICE_LINKS.items():
        os.symlink(place, f"{target}/{name}")
    for name in ("pts", "shm"):
        os.mkdir(f"{target}/{name}")
    mount("none", target, "", MS_REMOUNT | MS_BIND | MS_RDONLY | flags)
    return True


def mount_devices(common: str, root: str, shm: str, owner: int) -> None:
    """Mount the sandbox's `/dev` below `root`, with the folder `shm` as its `/dev/shm`."""
    bind(common, f"{root}/dev")
    terminal = f"newinstance,ptmxmode=0666,mode=620,gid={owner + _TTY_GROUP}"
    mount("devpts", f"{root}/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, terminal)
    bind(shm, f"{root}/dev/shm")
