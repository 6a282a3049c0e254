"""What the keeper prepares once for all its sandboxes: the shifted user namespace and the lower layers."""

# Without pathlib, which would be copied into every warden's memory.
# ruff: noqa: PTH102, PTH116
from __future__ import annotations

import errno
import os
import stat

from sandboxes.local import devices, layout, mounts, pid1, privileges

TYPE_CHECKING = False
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


class Layer:
    """A lower root, the system trees mounted over it, and what it lacks."""

    def __init__(self, root: str, trees: list[tuple[str, str]]) -> None:
        self.root = root
        self.trees = trees
        self.missing: list[str] = []
        self.names_needed = False
        """hosts and hostname are not made by us yet"""
        self.etc_elsewhere = False
        """/etc is a link: nothing can be put there"""


class Ground:
    """The keeper's mounts. They live in its own mount namespace and vanish with it."""

    def __init__(self, mode: str, place: str, userns_fd: int | None) -> None:
        self.mode = mode
        self.place = place
        self.userns_fd = userns_fd
        self.program_fd = pid1.open_program()
        self.last_capability = privileges.last_capability()
        self.box = f"{place}/box"
        self.empty = f"{place}/empty"
        self.devices: str | None = None
        self.shown_etc: list[str] = []
        self.hidden_etc: list[str] = []
        self.own_etc: dict[str, str] = {}
        self._layers: dict[str, Layer] = {}
        self._host_view = -1
        self._shown: dict[str, str] = {}
        self._viewed: dict[tuple[str, int, int], str | None] = {}

    @property
    def owner(self) -> int:
        """The host's id of the sandboxes' root, where the keeper is the machine's."""
        return SHIFT if self.mode == SHIFTED else 0

    def layer(self, rootfs: str | None) -> Layer:
        """The lower layer for the host's own system, or for a root file system in a folder."""
        key = rootfs or ""
        if key not in self._layers:
            self._layers[key] = self._of_folder(rootfs) if rootfs else self._of_host()
        return self._layers[key]

    def shown(self, source: str) -> str:
        """Where in the keeper's own namespace the host's folder `source` is seen, read-only."""
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
        """What `look` finds among the host's own mounts."""
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
        if devices.build(path, self.owner):
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

    def _of_host(self) -> Layer:
        source = self._new_folder("skeleton")
        _build_skeleton(source)
        root = self._show(source, "root")
        real = [name for name in layout.SYSTEM_TREES if is_real_folder(f"/{name}")]
        trees = [(name, self._show(f"/{name}", name.replace("/", "-"))) for name in real]
        return Layer(root, trees)

    def _of_folder(self, rootfs: str) -> Layer:
        layer = Layer(self._new_folder(f"rootfs-{len(self._layers)}"), [])
        layer.names_needed = True
        tree = self._from_host(lambda: self._look_at(rootfs, layer))
        if tree is not None:
            mounts.attach(tree, layer.root)
        else:
            mounts.bind(rootfs, layer.root)
        return layer

    def _look_at(self, rootfs: str, layer: Layer) -> int | None:
        """What a root file system lacks, and a view of it with shifted ids."""
        if not is_real_folder(rootfs):
            raise FileNotFoundError(2, "the root file system is not a folder", rootfs)
        for name in layout.MOUNT_POINTS:
            if os.path.lexists(f"{rootfs}/{name}") and not is_real_folder(f"{rootfs}/{name}"):
                raise NotADirectoryError(20, "must be a real folder to mount on", f"{rootfs}/{name}")
        wanted = (*layout.PRIVATE_FOLDERS, *layout.MOUNT_POINTS, "tmp", "root")
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


def prepare(mode: str) -> Ground:
    """Set up the keeper's own mount namespace. Nothing of it shows on the host."""
    place = mount_point()
    if mode == ROOTLESS:
        from sandboxes.local import skeleton

        base = Ground(mode, place, None)
        base.shown_etc, base.own_etc = skeleton.shown_files(), skeleton.own_files()
        base.hidden_etc = skeleton.hidden_files(base.shown_etc)
        return base
    userns_fd = shifted_user_namespace() if mode == SHIFTED else None
    mounts.unshare(mounts.CLONE_NEWNS)
    mounts.make_private()
    mounts.mount("keeper", place, "tmpfs", mounts.MS_NOSUID | mounts.MS_NODEV, "mode=755")
    base = Ground(mode, place, userns_fd)
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


def is_real_folder(path: str) -> bool:
    """Whether a folder, and not a link to one, is at `path`."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except FileNotFoundError:
        return False
