"""What differs in a sandbox from what it was made from, one entry at a time."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from sandboxes.work import ChangeKind

MAX_DEPTH = 128
"""Folders nested deeper are left out: each level costs descriptors."""
MAX_PATH_BYTES = 3500
"""So are those with a longer path: the kernel takes 4096 bytes."""

MAX_NAMES = 500_000
"""No walk looks at more: an agent may have made millions."""

KERNEL_FOLDERS = frozenset({"/proc", "/sys", "/dev", "/run"})


@dataclass(frozen=True, slots=True)
class Attributes:
    """Mode and owner of a folder, as the host sees them."""

    mode: int
    uid: int
    gid: int

    @classmethod
    def of(cls, info: os.stat_result) -> Attributes:
        """Return those of what was looked at."""
        return cls(stat.S_IMODE(info.st_mode), info.st_uid, info.st_gid)


@dataclass(frozen=True, slots=True)
class Entry:
    """One path that was looked at."""

    path: str
    kind: ChangeKind | None
    """None: a folder that is what it was, and below which something differs."""
    info: os.stat_result | None
    """What is there now; None when it was removed."""
    folder: int = -1
    """The open folder it is in, until the next entry is asked for."""
    name: str = ""
    before: Attributes | None = None
    """Of a folder that was one before: its attributes then."""

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder now."""
        return self.info is not None and stat.S_ISDIR(self.info.st_mode)


class Difference(Protocol):
    """Walks what differs. Every call walks anew; everything here blocks."""

    too_deep: list[str]
    """Folders that were left out by the last walk."""
    cut_short: bool
    """The last walk came to more than MAX_NAMES."""

    def entries(self) -> Iterator[Entry]:
        """Yield what differs in a fixed order, folders before what is in them."""
        ...


class Listing:
    """Lists folders, up to a number of names in all."""

    def __init__(self) -> None:
        self._left = MAX_NAMES

    @property
    def is_over(self) -> bool:
        """Whether there were more names."""
        return self._left < 0

    def entries(self, fd: int) -> list[os.DirEntry[str]]:
        """Return the entries of an open folder, the first name last."""
        with os.scandir(fd) as entries:
            found = list(islice(entries, max(0, self._left) + 1))
        self._left -= len(found)
        return sorted(found, key=lambda entry: entry.name, reverse=True)


def open_folder(name: str, folder: int) -> int:
    """Open a folder for listing, never through a link; one that is closed to its owner is opened first."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    found = _open(name, folder, flags, 0o500)
    mode = stat.S_IMODE(os.fstat(found).st_mode)
    if mode & 0o500 != 0o500 and os.geteuid() != 0:
        os.fchmod(found, mode | 0o500)  # it can be listed, but what is in it cannot be looked at
    return found


def open_file(name: str, folder: int) -> int:
    """Open a file for reading in the same way; a fifo does not block."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW | os.O_CLOEXEC
    return _open(name, folder, flags, 0o400)


def _open(name: str, folder: int, flags: int, needed: int) -> int:
    try:
        return os.open(name, flags, dir_fd=folder)
    except PermissionError:
        pass
    # An ordinary user's sandbox has root inside, who may read what its owner on the host may not.
    handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        mode = stat.S_IMODE(os.fstat(handle).st_mode)
        place = f"/proc/self/fd/{handle}"
        os.chmod(place, mode | needed)  # noqa: PTH101 - a descriptor, no path
        try:
            return os.open(place, flags & ~os.O_NOFOLLOW)
        finally:
            if not flags & os.O_DIRECTORY:  # what is in a folder can only be looked at while it is open to us
                os.chmod(place, mode)  # noqa: PTH101
    finally:
        os.close(handle)
