"""`/dev` of sandboxes, mounted by us where we are root.

Bubblewrap can make one too, but then `/dev/shm` belongs to the sandbox's user namespace, in which the
engine has no id: it could not put a file there. One read-only `/dev` serves all sandboxes; what can be
written to lies in the sandbox's own file system and under its quota.
"""

# Without pathlib, which would be copied into every warden's memory.
# ruff: noqa: PTH101, PTH102, PTH211
from __future__ import annotations

import os
import stat

from sandboxes.local import mounts

_NODES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}
_LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}
_TTY_GROUP = 5


def build(target: str, owner: int) -> bool:
    """Make the common `/dev` at the empty folder `target`; False where device nodes cannot be made."""
    flags = mounts.MS_NOSUID | mounts.MS_NOEXEC
    mounts.mount("devices", target, "tmpfs", flags, f"size=64k,mode=755,uid={owner},gid={owner}")
    try:
        for name, (major, minor) in _NODES.items():
            os.mknod(f"{target}/{name}", stat.S_IFCHR | 0o666, os.makedev(major, minor))
            os.chmod(f"{target}/{name}", 0o666)  # noqa: S103 - as every /dev has it
            os.chown(f"{target}/{name}", owner, owner)
        # Some containers let nodes be made and not be opened.
        os.close(os.open(f"{target}/null", os.O_RDWR | os.O_CLOEXEC))
    except PermissionError:
        mounts.unmount(target)
        return False
    for name, place in _LINKS.items():
        os.symlink(place, f"{target}/{name}")
    for name in ("pts", "shm"):
        os.mkdir(f"{target}/{name}")
    mounts.mount("none", target, "", mounts.MS_REMOUNT | mounts.MS_BIND | mounts.MS_RDONLY | flags)
    return True


def mount(common: str, root: str, shm: str, owner: int) -> None:
    """Mount the sandbox's `/dev` below `root`, with the folder `shm` as its `/dev/shm`."""
    mounts.bind(common, f"{root}/dev")
    terminal = f"newinstance,ptmxmode=0666,mode=620,gid={owner + _TTY_GROUP}"
    mounts.mount("devpts", f"{root}/dev/pts", "devpts", mounts.MS_NOSUID | mounts.MS_NOEXEC, terminal)
    mounts.bind(shm, f"{root}/dev/shm")
