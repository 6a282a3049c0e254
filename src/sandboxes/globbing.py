"""Matching file names in a sandbox from outside, without following links."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable
from fnmatch import translate

from sandboxes.errors import SandboxCrowdedError
from sandboxes.openat import is_utf8

MAX_ENTRIES = 100_000
"""How many names one search looks at before it gives up."""
MAX_DEPTH = 64
"""How far below the fixed part of its pattern a search descends."""

NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)
_OUT_OF_REACH = (*NOT_THERE, errno.EACCES)

Opener = Callable[[list[str], int], int]


class Search:
    """One glob: `*`, `?` and `[…]` within a name, `**` for any folders. Hidden names need a dot."""

    def __init__(self, open_at: Opener, parts: list[str]) -> None:
        self._open = open_at
        self._left = MAX_ENTRIES
        self._found: set[str] = set()
        fixed = 0
        while fixed < len(parts) - 1 and not _is_pattern(parts[fixed]):
            fixed += 1
        rest = parts[fixed:]
        if rest and rest[-1] == "**":
            rest.append("*")
        self._todo = [(parts[:fixed], rest)]
        self._fixed = fixed

    def run(self) -> list[str]:
        """The regular files found, sorted, as absolute paths."""
        while self._todo:
            where, rest = self._todo.pop()
            if not rest or len(where) > self._fixed + MAX_DEPTH:
                continue
            if rest[0] == "**":
                self._todo.append((where, rest[1:]))
                self._scan(where, rest, None)
            elif _is_pattern(rest[0]):
                self._scan(where, rest, re.compile(translate(rest[0])))
            else:
                mode = mode_at(self._open, [*where, rest[0]])
                if mode is not None:
                    self._take([*where, rest[0]], rest[1:], stat.S_ISDIR(mode), stat.S_ISREG(mode))
        return sorted(self._found)

    def _take(self, path: list[str], rest: list[str], folder: bool, regular: bool) -> None:
        if rest and folder:
            self._todo.append((path, rest))
        elif not rest and regular:
            self._found.add("/" + "/".join(path))

    def _scan(self, where: list[str], rest: list[str], name_pattern: re.Pattern[str] | None) -> None:
        """Match the names in one folder; no pattern means: descend into its folders."""
        # The parents the caller named may be links, as everywhere; what was matched may not.
        nofollow = os.O_NOFOLLOW if len(where) > self._fixed else 0
        try:
            fd = self._open(where, os.O_RDONLY | os.O_DIRECTORY | nofollow)
        except OSError as error:
            if error.errno in _OUT_OF_REACH:
                return
            raise
        try:
            with os.scandir(fd) as entries:
                for entry in entries:
                    self._left -= 1
                    if self._left < 0:
                        raise SandboxCrowdedError(
                            f"more than {MAX_ENTRIES} names to look at; use a narrower pattern"
                        )
                    self._consider(entry, where, rest, name_pattern)
        finally:
            os.close(fd)

    def _consider(
        self, entry: os.DirEntry[str], where: list[str], rest: list[str], name_pattern: re.Pattern[str] | None
    ) -> None:
        name = entry.name
        if not is_utf8(name) or (name.startswith(".") and not rest[0].startswith(".")):
            return
        folder = entry.is_dir(follow_symlinks=False)
        if name_pattern is None:
            if folder:
                self._todo.append(([*where, name], rest))
        elif name_pattern.match(name):
            self._take([*where, name], rest[1:], folder, entry.is_file(follow_symlinks=False))


def mode_at(open_at: Opener, parts: list[str]) -> int | None:
    """The mode of what is there, a link not followed; None if nothing is."""
    try:
        fd = open_at(parts, os.O_PATH | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno in NOT_THERE:
            return None
        raise
    try:
        return os.fstat(fd).st_mode
    finally:
        os.close(fd)


def _is_pattern(part: str) -> bool:
    return any(character in part for character in "*?[")
