"""What an agent changed in its sandbox, entry by entry, and which of it is carried into another one."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Literal, Protocol

ChangeKind = Literal["added", "changed", "removed"]


@dataclass(frozen=True, slots=True)
class ChangedPath:
    """One path that differs from what the sandbox was made from."""

    path: str
    kind: ChangeKind


@dataclass(frozen=True, slots=True)
class CarryRules:
    """Which paths of a sandbox are carried. Paths are absolute and normal; `/` is the default for all."""

    carried: tuple[str, ...] = ("/",)
    left: tuple[str, ...] = ()
    homes: tuple[str, ...] = ()
    """Folders whose hidden entries (names that begin with a dot) are left, unless `carried` names them:
    programs read them when they start. `/home/*` stands for every folder in /home."""
    forbidden: tuple[str, ...] = ()
    """Never carried, whatever `carried` says; a link that leads into one of these, or to a folder above
    one, is left as well."""
    inverted: bool = False
    """Carry what would be left, and leave what would be carried; `forbidden` holds all the same."""

    @property
    def inverse(self) -> CarryRules:
        """The rules for everything these do not carry."""
        return replace(self, inverted=not self.inverted)

    def carries(self, path: str) -> bool:
        """Return whether what is at `path` is carried."""
        if _longest(path, self.forbidden) >= 0:
            return False
        carried = _longest(path, self.carried)
        left = max(_longest(path, self.left), self._hidden_in_home(path))
        return (carried >= left) is not self.inverted

    def reaches_below(self, path: str) -> bool:
        """Return whether something below the folder `path` may be carried, although it is not itself."""
        if self.inverted:
            return _longest(path, self.forbidden) < 0
        return self.carries(path) or any(is_below(one, path) for one in self.carried if one != "/")

    def is_forbidden_target(self, path: str) -> bool:
        """Return whether a link to `path` leads into a forbidden folder, or to a folder above one."""
        return any(path == one or is_below(path, one) or is_below(one, path) for one in self.forbidden)

    def refuses_link_at(self, path: str) -> bool:
        """Return whether a link at `path` would bring something to a place that is left or forbidden: below
        it, or in a home that it stands for."""
        if self.inverted:
            return False
        apart = (*self.left, *self.forbidden, *(home.removesuffix("/*") for home in self.homes))
        if any(path == one or is_below(one, path) for one in apart):
            return True
        above = path.rpartition("/")[0]
        return any(home == f"{above}/*" for home in self.homes)

    def _hidden_in_home(self, path: str) -> float:
        """Between the depths of a home and of its hidden entry that `path` is or is below; else -1."""
        for home in self.homes:
            top = home.removesuffix("/*") if home.endswith("/*") else None
            parts, above = path.strip("/").split("/"), (top or home).strip("/").split("/")
            at = len(above) + (1 if top else 0)
            if parts[: len(above)] == above and len(parts) > at and parts[at].startswith("."):
                return at + 0.5
        return -1


def is_below(path: str, folder: str) -> bool:
    """Return whether `path` is strictly below `folder`."""
    return path != folder and (folder == "/" or path.startswith(f"{folder}/"))


def _longest(path: str, prefixes: Iterable[str]) -> int:
    """The depth of the longest prefix that `path` is or is below; -1 if there is none."""
    depths = (0 if one == "/" else one.count("/") for one in prefixes if path == one or is_below(path, one))
    return max(depths, default=-1)


@dataclass(slots=True)
class PackedWork:
    """What was packed of a sandbox, and what was not."""

    files: int = 0
    bytes: int = 0
    removed: list[str] = field(default_factory=list)
    """Carried paths that were there when the sandbox was made and are gone, outermost first."""
    left: list[ChangedPath] = field(default_factory=list)
    """Changes at paths the rules do not carry (system files, mostly); at most MOST_LISTED are listed."""
    left_count: int = 0
    skipped: list[tuple[str, str]] = field(default_factory=list)
    """(path, reason) of carried paths that stayed behind: fifos, devices, sockets, links that lead to
    forbidden places, files over a limit; at most MOST_SKIPPED are listed."""
    skipped_count: int = 0
    cut_short: bool = False
    """A limit on bytes or entries was reached: not all of the work was packed."""

    def leave(self, path: str, kind: ChangeKind) -> None:
        """Record a change that is not carried."""
        self.left_count += 1
        if len(self.left) < MOST_LISTED:
            self.left.append(ChangedPath(path, kind))

    def skip(self, path: str, reason: str) -> None:
        """Record one entry that stayed behind."""
        self.skipped_count += 1
        if len(self.skipped) < MOST_SKIPPED:
            self.skipped.append((path, reason))


MOST_LISTED = 500_000
"""Of changes. What is not listed cannot be put back: a sandbox with more of them gives no verdict."""
MOST_SKIPPED = 200_000


@dataclass(frozen=True, slots=True)
class WorkLimits:
    """How much may be packed."""

    max_bytes: int = 2 << 30
    max_file_bytes: int = 2 << 30
    max_entries: int = 200_000


def outermost(paths: Iterable[str]) -> Sequence[str]:
    """The paths without those that are below another of them."""
    found: list[str] = []
    for path in sorted(paths):
        if not found or not (path == found[-1] or is_below(path, found[-1])):
            found.append(path)
    return found


# What differs in a sandbox from what it was made from, one entry at a time.


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
class DifferenceEntry:
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

    def entries(self) -> Iterator[DifferenceEntry]:
        """Yield what differs in a fixed order, folders before what is in them."""
        ...


class FolderLister:
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
