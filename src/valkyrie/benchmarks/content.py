"""What a task consists of on disk: its files, and one digest over them."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from valkyrie.errors import BenchmarkError

PARTS = ("task.toml", "instruction.md", "environment", "tests", "solution", "steps")
"""What makes a task what it is; a README beside them does not."""
LEFTOVERS = frozenset({"__pycache__", ".DS_Store"})
"""Names that tools drop into any folder; never part of a task."""


@dataclass(frozen=True, slots=True)
class _Entry:
    path: str
    """Relative to the task, `/` between parts."""
    mode: int
    stamp: tuple[int, int, int, int]
    """Modification and change time, size, inode: as long as these stay, so does the content."""


@dataclass(slots=True)
class ContentDigests:
    """Digests of task folders; a folder that did not change since is not read again."""

    _known: dict[Path, tuple[bytes, str]] = field(default_factory=dict)
    """Folder → (what its files looked like, its digest)."""

    def of(self, task: Path) -> str:
        """Digest over relative paths, executable bits and contents of one task's parts."""
        return self._known_or_read(task, tuple(_walk(task)))

    def whole(self, folder: Path) -> str:
        """The same over everything in a folder."""
        return self._known_or_read(folder, tuple(_walk_folder(os.fspath(folder), ".")))

    def _known_or_read(self, task: Path, entries: Sequence[_Entry]) -> str:
        looks = hashlib.sha256(repr(entries).encode("utf-8", "surrogateescape")).digest()
        known = self._known.get(task)
        if known is not None and known[0] == looks:
            return known[1]
        digest = _digest(task, entries)
        self._known[task] = (looks, digest)
        return digest


def folder_digest(folder: Path) -> str:
    """Digest over everything in one folder, wherever it is."""
    entries = [*_walk_folder(os.fspath(folder), ".")]
    return _digest(folder, entries)


def has_leftovers(folder: Path) -> bool:
    """Whether something below `folder` is not part of the task."""
    return any(name in LEFTOVERS for _, folders, files in os.walk(folder) for name in (*folders, *files))


def _walk(task: Path) -> Iterator[_Entry]:
    for part in PARTS:
        path = task / part
        try:
            info = path.lstat()
        except FileNotFoundError:
            continue
        yield _entry(part, info)
        if stat.S_ISDIR(info.st_mode):
            yield from _walk_folder(os.fspath(path), part)


def _walk_folder(path: str, relative: str) -> Iterator[_Entry]:
    with os.scandir(path) as found:
        entries = sorted((entry for entry in found if entry.name not in LEFTOVERS), key=lambda e: e.name)
    for entry in entries:
        below = f"{relative}/{entry.name}"
        yield _entry(below, entry.stat(follow_symlinks=False))
        if entry.is_dir(follow_symlinks=False):
            yield from _walk_folder(entry.path, below)


def _entry(path: str, info: os.stat_result) -> _Entry:
    if stat.S_ISDIR(info.st_mode):
        # A folder's own times change with leftovers in it; what it holds is listed below it anyway.
        return _Entry(path, info.st_mode, (0, 0, 0, info.st_ino))
    return _Entry(path, info.st_mode, (info.st_mtime_ns, info.st_ctime_ns, info.st_size, info.st_ino))


def _digest(task: Path, entries: Sequence[_Entry]) -> str:
    total = hashlib.sha256()
    for entry in entries:
        if stat.S_ISDIR(entry.mode):
            kind, content = "folder", b""
        elif stat.S_ISLNK(entry.mode):
            kind, content = "link", os.fsencode((task / entry.path).readlink())
        elif stat.S_ISREG(entry.mode):
            kind = "program" if entry.mode & 0o111 else "file"
            content = _file_digest(task / entry.path)
        else:
            raise BenchmarkError(f"{task / entry.path} is neither file, folder nor link; remove it")
        # Lengths first: no two different lists of entries may give the same bytes.
        name = os.fsencode(entry.path)
        total.update(f"{kind} {len(name)} {len(content)}\n".encode() + name + content)
    return total.hexdigest()


def _file_digest(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except OSError as error:
        raise BenchmarkError(f"cannot read {path}: {error.strerror}") from error
