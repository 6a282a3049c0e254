"""Lists what differs in the upper layer of an overlay. A program of its own: it imports nothing of ours.

    python3 - UPPER LOWER…   (folders, the topmost lower one first)

It prints one record for each path, ended by a NUL: a letter for the kind (added, changed, removed), a letter
for what is there now (file, folder, link, other; nothing for what was removed), and the path.
"""

from __future__ import annotations

import itertools
import os
import stat
import sys
from collections.abc import Iterator, Sequence

MOST = 500_000
"""So many paths are listed at most."""
_OPAQUE = ("trusted.overlay.opaque", "user.overlay.opaque")


def walk(upper: str, lowers: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Yield (kind, what, path) of what differs, folders before what is in them."""
    to_do = [("", tuple(lowers))]
    while to_do:
        path, below = to_do.pop()
        try:
            with os.scandir(upper + path) as listed:
                entries = sorted(listed, key=lambda entry: entry.name)
        except OSError:
            continue  # its path is longer than the kernel takes
        if path and below and _is_opaque(upper + path):
            now = {entry.name for entry in entries}
            yield from (("r", "", f"{path}/{name}") for name in _names_in(below) if name not in now)
        folders = []
        for entry in entries:
            name = f"{path}/{entry.name}"
            try:
                info = entry.stat(follow_symlinks=False)
            except OSError:
                continue  # the same
            before, folders_below = _look(below, entry.name)
            if _is_whiteout(info):
                if before is not None:
                    yield "r", "", name
            elif not stat.S_ISDIR(info.st_mode):
                yield "a" if before is None else "c", _what(info.st_mode), name
            else:
                if before is None:
                    yield "a", "d", name
                elif _attributes(info) != _attributes(before):
                    yield "c", "d", name
                folders.append((name, folders_below))
        to_do += reversed(folders)


def _look(folders: Sequence[str], name: str) -> tuple[os.stat_result | None, tuple[str, ...]]:
    """Return what has the name in the lower folders, and those of them that are merged below it."""
    first: os.stat_result | None = None
    merged: list[str] = []
    for folder in folders:
        place = f"{folder}/{name}"
        try:
            info = os.lstat(place)
        except OSError:
            continue
        if _is_whiteout(info) or not stat.S_ISDIR(info.st_mode):
            return (first if first is not None or _is_whiteout(info) else info), tuple(merged)
        first = info if first is None else first
        merged.append(place)
        if _is_opaque(place):
            break
    return first, tuple(merged)


def _names_in(folders: Sequence[str]) -> list[str]:
    """The names that the merged folders show."""
    found: dict[str, bool] = {}
    for folder in folders:
        with os.scandir(folder) as entries:
            for entry in entries:
                found.setdefault(entry.name, not _is_whiteout(entry.stat(follow_symlinks=False)))
    return sorted(name for name, there in found.items() if there)


def _is_whiteout(info: os.stat_result) -> bool:
    return stat.S_ISCHR(info.st_mode) and info.st_rdev == 0


def _is_opaque(folder: str) -> bool:
    for name in _OPAQUE:
        try:
            if os.getxattr(folder, name) == b"y":
                return True
        except OSError:
            continue
    return False


def _attributes(info: os.stat_result) -> tuple[int, int, int]:
    return info.st_mode, info.st_uid, info.st_gid


def _what(mode: int) -> str:
    return "f" if stat.S_ISREG(mode) else "l" if stat.S_ISLNK(mode) else "o"


def main() -> None:
    """List what differs between the folders the command line names."""
    for kind, what, path in itertools.islice(walk(sys.argv[1], sys.argv[2:]), MOST):
        sys.stdout.buffer.write(f"{kind}{what} {path}\0".encode("utf-8", "surrogateescape"))


if __name__ == "__main__":
    main()
