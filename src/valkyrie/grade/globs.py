"""Files of a workspace by glob: `**`, `*`, `?`, `[a-z]`, `{a,b}`; names that begin with a dot match too.

The workspace is hostile: links are followed only where they stay inside, and looking is bounded.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from valkyrie.specs.globs import ends, expand_braces, tokens_of

MOST_ENTRIES = 200_000
"""How many entries of folders are looked at for one glob."""
_DEEPEST = 200
_MAGIC = re.compile(r"[*?\[\\]|[!@+]\(")


class TooManyFilesError(Exception):
    """The workspace has more files than are looked at."""


class WorkspaceGlob:
    """A path or glob as an author wrote it. Raises UsageError for one with too many braces."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self._spellings = [(spelled, _parts(spelled)) for spelled in expand_braces(pattern)]

    @property
    def plain(self) -> bool:
        """Whether it names few places, so that looking takes no time."""
        return len(self._spellings) < 10 and not _MAGIC.search(self.pattern)

    @property
    def leaves(self) -> bool:
        """Whether it names something outside of the workspace, where nothing is ever found."""
        return any(parts is None for _, parts in self._spellings)

    def find(self, root: Path, unseen: Collection[str] = ()) -> Iterator[Path]:
        """Yield what matches below `root`, files and folders, each once. Raises TooManyFilesError.

        `unseen` are paths relative to it that count as not there, and with them what is below.
        """
        search = _Search(os.path.realpath(root), unseen)
        seen: set[str] = set()
        for spelled, parts in self._spellings:
            for path in search.below(search.root, parts, 0) if parts else ():
                if path not in seen and (not spelled.endswith("/") or _is_folder(path)):
                    seen.add(path)
                    yield Path(path)


def _parts(pattern: str) -> list[str] | None:
    """The folders and the name of a glob; None when it leads out."""
    parts = [part for part in pattern.split("/") if part not in ("", ".")]
    return None if pattern.startswith("/") or ".." in parts or "\0" in pattern else parts


def _is_folder(path: str) -> bool:
    try:
        return stat.S_ISDIR(Path(path).stat().st_mode)
    except OSError:
        return False


class _Search:
    def __init__(self, root: str, unseen: Collection[str] = ()) -> None:
        self.root = root
        self.unseen = {f"{root}/{path}" for path in unseen}
        self.left = MOST_ENTRIES

    def below(self, folder: str, parts: Sequence[str], at: int) -> Iterator[str]:
        if at == len(parts):
            yield folder
        elif parts[at] == "**":
            yield from self.any_depth(folder, parts, at, 0)
        elif _MAGIC.search(parts[at]):
            tokens = tokens_of(parts[at])
            for name, _ in self.entries(folder):
                if len(name) in ends(tokens, name, 0):
                    yield from self.go(f"{folder}/{name}", parts, at + 1)
        else:
            yield from self.go(f"{folder}/{parts[at]}", parts, at + 1)

    def any_depth(self, folder: str, parts: Sequence[str], at: int, depth: int) -> Iterator[str]:
        last = at + 1 == len(parts)
        if not last:
            yield from self.below(folder, parts, at + 1)
        for name, is_folder in self.entries(folder):
            path = f"{folder}/{name}"
            if path in self.unseen:
                continue
            if last and self.inside(path):
                yield path
            if is_folder and depth < _DEEPEST:
                yield from self.any_depth(path, parts, at, depth + 1)

    def go(self, path: str, parts: Sequence[str], at: int) -> Iterator[str]:
        """Go on at a path, if it is there and not elsewhere."""
        if self.inside(path) and (at == len(parts) or _is_folder(path)):
            yield from self.below(path, parts, at)

    def entries(self, folder: str) -> list[tuple[str, bool]]:
        """Names in a folder, and whether each is a folder itself (a link to one is not)."""
        found = []
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    self.left -= 1
                    if self.left < 0:
                        raise TooManyFilesError(f"more than {MOST_ENTRIES} files were looked at")
                    found.append((entry.name, entry.is_dir(follow_symlinks=False)))
        except OSError:
            return []
        return sorted(found)

    def inside(self, path: str) -> bool:
        """Return whether it is there, and what it leads to is in the workspace."""
        if self._is_unseen(path):
            return False
        try:
            if not stat.S_ISLNK(os.lstat(path).st_mode):
                return True
            target = os.path.realpath(path, strict=True)
        except (OSError, ValueError):
            return False
        return target == self.root or target.startswith(self.root + os.sep)

    def _is_unseen(self, path: str) -> bool:
        """Return whether it is one of the paths that count as not there, or a link leads it to one."""
        if not self.unseen:
            return False
        real = os.path.realpath(path)
        return path in self.unseen or any(real == one or real.startswith(one + os.sep) for one in self.unseen)
