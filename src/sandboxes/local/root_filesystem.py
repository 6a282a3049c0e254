"""The root file system of sandboxes: which folders it has, the layers below it, and the bubblewrap command
line over it."""

# ruff: noqa: PTH102, PTH110, PTH112, PTH114, PTH115, PTH116, PTH208
from __future__ import annotations

import errno
import os
import stat

from sandboxes import static_programs
from sandboxes.local import mounts, restrictions

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandboxes.local import processes


SYSTEM_TREES = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "var/lib/dpkg", "var/lib/rpm")
"""Folders shown as they are on the host, where they are real folders; links among them are copied."""

PRIVATE_FOLDERS = ("app", "workspace", "bundle", "tests", "logs", "solution", "opt", "srv", "home", "mnt")
"""Empty folders tasks, agents and graders expect to find and to write to."""

MOUNT_POINTS = ("proc", "dev", "sys", "run")

HOSTNAME = "sandbox"
HOSTS = f"127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n127.0.1.1 {HOSTNAME}\n"


# What the keeper prepares once for all its sandboxes: the shifted user namespace and the lower layers.
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    T = TypeVar("T")

SHIFT = 1_000_000
ID_COUNT = 65_536

SHIFTED = "shifted"
"""As root: a user namespace whose ids are far from the host's, over idmapped mounts."""
PLAIN = "plain"
"""As root where mounts cannot be idmapped: no user namespace, fewer capabilities."""
ROOTLESS = "rootless"
"""As an ordinary user: the host's system folders read-only, everything else private."""

_NEEDED_MOUNTS = ("/", "/proc", "/dev", "/usr")


class LowerRoot:
    """A lower root, the system trees mounted over it, and what it lacks."""

    def __init__(self, root: str, trees: list[tuple[str, str]]) -> None:
        self.root = root
        self.trees = trees
        self.missing: list[str] = []
        self.names_needed = False
        """hosts and hostname are not made by us yet"""
        self.etc_elsewhere = False
        """/etc is a link: nothing can be put there"""


class BaseLayers:
    """The keeper's mounts. They live in its own mount namespace and vanish with it."""

    def __init__(self, mode: str, place: str, userns_fd: int | None) -> None:
        self.mode = mode
        self.place = place
        self.userns_fd = userns_fd
        self.program_fd = static_programs.open_first_process()
        self.last_capability = restrictions.last_capability()
        self.box = f"{place}/box"
        self.empty = f"{place}/empty"
        self.devices: str | None = None
        self.shown_etc: list[str] = []
        self.hidden_etc: list[str] = []
        self.own_etc: dict[str, str] = {}
        self._layers: dict[str, LowerRoot] = {}
        self._host_view = -1
        self._shown: dict[str, str] = {}
        self._viewed: dict[tuple[str, int, int], str | None] = {}

    @property
    def owner(self) -> int:
        """The host's id of the sandboxes' root, where the keeper is the machine's."""
        return SHIFT if self.mode == SHIFTED else 0

    def layer(self, rootfs: str | None) -> LowerRoot:
        """The lower layer for the host's own system, or for a root file system in a folder."""
        key = rootfs or ""
        if key not in self._layers:
            self._layers[key] = self._of_folder(rootfs) if rootfs else self._of_host()
        return self._layers[key]

    def shown(self, source: str) -> str:
        """Return where in the keeper's own namespace the host's folder `source` is seen, read-only."""
        if source not in self._shown:
            tree = self._from_host(lambda: mounts.open_shown(source, self.userns_fd))
            self._shown[source] = self._new_folder(f"shown-{len(self._shown)}")
            mounts.attach(tree, self._shown[source])
        return self._shown[source]

    def viewed(self, source: str) -> str | None:
        """The same, fit to lie below what a sandbox changes: None where its root would not own the files."""
        info = self._from_host(lambda: os.stat(source))
        key = (source, info.st_dev, info.st_ino)  # a folder made anew is another
        if key not in self._viewed:
            self._viewed[key] = self._view(source)
        return self._viewed[key]

    def _view(self, source: str) -> str | None:
        userns_fd = self.userns_fd
        if userns_fd is None:
            return self.shown(source)
        try:
            tree = self._from_host(lambda: mounts.open_shifted(source, userns_fd))
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.EPERM):
                return None  # a file system whose mounts cannot be idmapped
            raise
        target = self._new_folder(f"view-{len(self._viewed)}")
        mounts.attach(tree, target)
        return target

    def _from_host(self, look: Callable[[], T]) -> T:
        """Return what `look` finds among the host's own mounts."""
        own_view = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        mounts.setns(self._host_view, mounts.CLONE_NEWNS)
        try:
            return look()
        finally:
            mounts.setns(own_view, mounts.CLONE_NEWNS)
            os.close(own_view)

    def make_devices(self) -> None:
        """Make the `/dev` of all sandboxes, where that is possible; else bubblewrap makes one for each."""
        path = self._new_folder("devices")
        if mounts.build_devices(path, self.owner):
            self.devices = path

    def forget_host_mounts(self) -> None:
        """Drop from this namespace the mounts no sandbox needs: each one makes every start slower."""
        self._host_view = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        if self.userns_fd is None:
            return  # a root file system can be bound from this very namespace only
        mounts.unshare(mounts.CLONE_NEWNS)
        for path in reversed(mounts.mount_points()):
            needed = path in _NEEDED_MOUNTS or path == self.place or path.startswith(f"{self.place}/")
            if not needed:
                mounts.unmount(path)

    def _of_host(self) -> LowerRoot:
        source = self._new_folder("skeleton")
        _build_skeleton(source)
        root = self._show(source, "root")
        real = [name for name in SYSTEM_TREES if is_real_folder(f"/{name}")]
        trees = [(name, self._show(f"/{name}", name.replace("/", "-"))) for name in real]
        return LowerRoot(root, trees)

    def _of_folder(self, rootfs: str) -> LowerRoot:
        layer = LowerRoot(self._new_folder(f"rootfs-{len(self._layers)}"), [])
        layer.names_needed = True
        tree = self._from_host(lambda: self._look_at(rootfs, layer))
        if tree is not None:
            mounts.attach(tree, layer.root)
        else:
            mounts.bind(rootfs, layer.root)
        return layer

    def _look_at(self, rootfs: str, layer: LowerRoot) -> int | None:
        """Return what a root file system lacks, and a view of it with shifted ids."""
        if not is_real_folder(rootfs):
            raise FileNotFoundError(2, "the root file system is not a folder", rootfs)
        for name in MOUNT_POINTS:
            if os.path.lexists(f"{rootfs}/{name}") and not is_real_folder(f"{rootfs}/{name}"):
                raise NotADirectoryError(20, "must be a real folder to mount on", f"{rootfs}/{name}")
        wanted = (*PRIVATE_FOLDERS, *MOUNT_POINTS, "tmp", "root")
        layer.missing = [name for name in wanted if not os.path.lexists(f"{rootfs}/{name}")]
        layer.etc_elsewhere = os.path.lexists(f"{rootfs}/etc") and not is_real_folder(f"{rootfs}/etc")
        return mounts.open_shifted(rootfs, self.userns_fd) if self.userns_fd is not None else None

    def _show(self, source: str, name: str) -> str:
        target = self._new_folder(f"lower-{name}")
        if self.userns_fd is not None:
            mounts.attach(mounts.open_shifted(source, self.userns_fd), target)
        else:
            mounts.bind(source, target)
        return target

    def _new_folder(self, name: str) -> str:
        path = f"{self.place}/{name}"
        os.mkdir(path, 0o755)
        return path


def mount_point() -> str:
    """A folder to mount on, in a mount namespace of our own.

    The shifted root must be able to walk to it, and nobody may keep a root file system in it, as that
    would be hidden from the keeper.
    """
    return next(path for path in ("/dev/pts", "/mnt", "/media", "/srv", "/tmp") if is_real_folder(path))


def prepare_layers(mode: str) -> BaseLayers:
    """Set up the keeper's own mount namespace. Nothing of it shows on the host."""
    place = mount_point()
    if mode == ROOTLESS:
        from sandboxes.local import skeleton

        base = BaseLayers(mode, place, None)
        base.shown_etc, base.own_etc = skeleton.shown_files(), skeleton.own_files()
        base.hidden_etc = skeleton.hidden_files(base.shown_etc)
        return base
    userns_fd = shifted_user_namespace() if mode == SHIFTED else None
    mounts.unshare(mounts.CLONE_NEWNS)
    mounts.make_private()
    mounts.mount("keeper", place, "tmpfs", mounts.MS_NOSUID | mounts.MS_NODEV, "mode=755")
    base = BaseLayers(mode, place, userns_fd)
    os.mkdir(base.box)
    os.mkdir(base.empty)
    base.layer(None)
    base.make_devices()
    base.forget_host_mounts()
    return base


def _build_skeleton(target: str) -> None:
    # In a child: what building takes to import would make every later fork of the keeper slower.
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            from pathlib import Path

            from sandboxes.local import skeleton

            skeleton.build(Path(target))
            code = 0
        finally:
            os._exit(code)
    if os.waitpid(pid, 0)[1] != 0:
        raise OSError(5, "cannot build the skeleton of the root file system")


def shifted_user_namespace() -> int:
    """A user namespace whose root is SHIFT on the host, and in which no further one can be made."""
    to_child, from_parent = os.pipe()
    to_parent, from_child = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            mounts.unshare(mounts.CLONE_NEWUSER)
            os.write(from_child, b"u")
            os.read(to_child, 1)
            os.setgid(0)
            os.setuid(0)
            with open("/proc/sys/user/max_user_namespaces", "w") as file:
                file.write("0")
            os.write(from_child, b"d")
        finally:
            os._exit(0)
    os.close(from_child)
    try:
        if os.read(to_parent, 1) != b"u":
            raise OSError(1, "cannot make a user namespace")
        for name in ("uid_map", "gid_map"):
            with open(f"/proc/{pid}/{name}", "w") as file:
                file.write(f"0 {SHIFT} {ID_COUNT}")
        fd = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        os.write(from_parent, b"m")
        if os.read(to_parent, 1) != b"d":
            raise OSError(1, "cannot forbid nested user namespaces")
        return fd
    finally:
        for end in (to_child, from_parent, to_parent):
            os.close(end)
        os.waitpid(pid, 0)


def try_shift() -> None:
    """Do what a keeper and a warden do with idmapped mounts, in a mount namespace nobody else sees; for a
    process of its own."""
    place = mount_point()
    userns_fd = shifted_user_namespace()
    mounts.unshare(mounts.CLONE_NEWNS)
    mounts.make_private()
    mounts.mount("probe", place, "tmpfs", 0, "mode=755")
    for name in ("source", "lower", "usr", "upper", "work", "merged"):
        os.mkdir(f"{place}/{name}")
    mounts.attach(mounts.open_shifted(f"{place}/source", userns_fd), f"{place}/lower")
    mounts.attach(mounts.open_shifted("/usr", userns_fd), f"{place}/usr")
    mounts.mount_overlay(f"{place}/usr", f"{place}/upper", f"{place}/work", f"{place}/merged")
    if os.stat(f"{place}/lower").st_uid != SHIFT:
        raise OSError(95, "ids are not shifted")


def is_real_folder(path: str) -> bool:
    """Return whether a folder, and not a link to one, is at `path`."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except FileNotFoundError:
        return False


# The bubblewrap command line of a sandbox.

INFO_FD = 5

_MB = 1 << 20
_RUN_MB = 64
_SHM_MB = 256
# Beside 3/4 for the disk, so that all file systems together cannot use up a sandbox's memory.
_RUN_SHARE = 16
_SHM_SHARE = 8

_KERNEL_SWITCHES = ("sys", "sysrq-trigger", "irq", "bus", "fs", "acpi", "scsi", "asound")
"""Parts of /proc the machine's root may write to."""
_KERNEL_SECRETS = ("kcore", "keys", "key-users", "kpagecount", "kpageflags", "kpagecgroup", "timer_list")

_LOCAL = ("bin", "etc", "include", "lib", "sbin", "share", "src")
"""What /usr/local starts with."""

_ISOLATION = (
    *("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-net", "--unshare-cgroup-try"),
    *("--hostname", HOSTNAME),
)


def _devices(memory_mb: int | None) -> list[str]:
    # /dev itself is a file system without a size: read-only closes that hole in the quota, and the
    # devices, /dev/pts and /dev/shm are mounts of their own which stay as they are.
    return [
        *("--dev", "/dev", "--proc", "/proc"),
        *("--size", str(_part(memory_mb, _RUN_SHARE, _RUN_MB) * _MB), "--tmpfs", "/run"),
        *("--perms", "1777", "--size", str(_part(memory_mb, _SHM_SHARE, _SHM_MB) * _MB)),
        *("--tmpfs", "/dev/shm"),
        *("--remount-ro", "/dev"),
    ]


def _part(memory_mb: int | None, share: int, most: int) -> int:
    return most if memory_mb is None else max(1, min(most, memory_mb // share))


def _ending(program_fd: int | None) -> list[str]:
    return [
        *("--clearenv", "--cap-drop", "ALL", "--new-session", "--as-pid-1", "--die-with-parent"),
        *("--chdir", "/", "--info-fd", str(INFO_FD), "--", *static_programs.first_process_argv(program_fd)),
    ]


def over_root(
    merged: str, program_fd: int | None, *, user_namespace: bool, has_devices: bool, memory_mb: int | None
) -> list[str]:
    """Arguments for a sandbox whose root is the folder `merged`, started by root of whatever namespace.

    `has_devices`: its /dev is mounted already. The mounts carry their own restrictions.
    """
    if has_devices:
        argv = ["bwrap", "--dev-bind", merged, "/", "--proc", "/proc"]
    else:
        argv = ["bwrap", "--bind", merged, "/", *_devices(memory_mb)]
    if not user_namespace:
        argv += _closed_kernel()
    return [*argv, *_ISOLATION, *_ending(program_fd)]


def _usr() -> list[str]:
    """/usr one folder at a time, for /usr/local is to be on the sandbox's own file system."""
    argv = ["--perms", "0755", "--dir", "/usr"]
    for name in sorted(os.listdir("/usr")):
        if name != "local":
            argv += _shown(f"/usr/{name}")
    for name in ("", *_LOCAL):
        argv += ["--perms", "0755", "--dir", f"/usr/local/{name}"]
    return argv


def _shown(path: str) -> list[str]:
    if os.path.islink(path):
        return ["--symlink", os.readlink(path), path]
    return ["--ro-bind", path, path] if os.path.isdir(path) else []


def _closed_kernel() -> list[str]:
    argv: list[str] = []
    for name in _KERNEL_SWITCHES:
        if os.path.exists(f"/proc/{name}"):
            argv += ["--ro-bind", f"/proc/{name}", f"/proc/{name}"]
    for name in _KERNEL_SECRETS:
        if os.path.exists(f"/proc/{name}"):
            argv += ["--ro-bind", "/dev/null", f"/proc/{name}"]
    return argv


def rootless(
    etc: Sequence[str], hidden: Sequence[str], program_fd: int | None, spec: processes.Message
) -> list[str]:
    """Arguments for an ordinary user's sandbox: the host's system read-only, the rest private.

    One file system of `disk_mb` is the root; folders made on it share that quota. `etc` is shown, but what
    `hidden` names below it.
    """
    disk_mb: int = spec["disk_mb"]
    argv = ["bwrap", "--unshare-user", "--uid", "0", "--gid", "0", "--disable-userns"]
    argv += ["--size", str(disk_mb * _MB), "--tmpfs", "/"]
    for path in ("/etc", "/var", "/var/lib"):
        argv += ["--perms", "0755", "--dir", path]
    for name in SYSTEM_TREES:
        argv += _usr() if name == "usr" else _shown(f"/{name}")
    for path in etc:
        argv += ["--ro-bind", path, path]
    for path in hidden:
        argv += (
            ["--tmpfs", path, "--remount-ro", path]
            if os.path.isdir(path)
            else ["--ro-bind", "/dev/null", path]
        )
    for name in PRIVATE_FOLDERS:
        argv += ["--dir", f"/{name}"]
    argv += ["--perms", "0700", "--dir", "/root", "--dir", "/sys", "--dir", "/var/log"]
    argv += ["--perms", "1777", "--dir", "/tmp", "--perms", "1777", "--dir", "/var/tmp"]
    argv += ["--symlink", "/run", "/var/run"]
    for path in spec["separate"]:
        argv += ["--size", str(disk_mb * _MB), "--tmpfs", path]
    for source, target, _ in spec["mounts"]:
        argv += ["--ro-bind", source, target]
    return [*argv, *_devices(spec["memory_mb"]), *_ISOLATION, *_ending(program_fd)]
