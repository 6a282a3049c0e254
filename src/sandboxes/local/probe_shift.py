"""Tries, in a process of its own, whether idmapped mounts under overlays work here. Exits non-zero if not."""

# Without pathlib, which would be copied into every warden's memory.
# ruff: noqa: PTH102, PTH116
from __future__ import annotations

import os

from sandboxes.local import mounts, root_filesystem


def main() -> None:
    """Do what a keeper and a warden do, in a mount namespace nobody else sees."""
    place = root_filesystem.mount_point()
    userns_fd = root_filesystem.shifted_user_namespace()
    mounts.unshare(mounts.CLONE_NEWNS)
    mounts.make_private()
    mounts.mount("probe", place, "tmpfs", 0, "mode=755")
    for name in ("source", "lower", "usr", "upper", "work", "merged"):
        os.mkdir(f"{place}/{name}")
    mounts.attach(mounts.open_shifted(f"{place}/source", userns_fd), f"{place}/lower")
    mounts.attach(mounts.open_shifted("/usr", userns_fd), f"{place}/usr")
    mounts.mount_overlay(f"{place}/usr", f"{place}/upper", f"{place}/work", f"{place}/merged")
    if os.stat(f"{place}/lower").st_uid != root_filesystem.SHIFT:
        raise OSError(95, "ids are not shifted")
