"""What a task consists of on disk: its files, and one digest over them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from sandboxes import contents
from sandboxes.contents import LEFTOVERS, FolderDigests, FolderEntry, UnreadableContentError
from valkyrie.errors import BenchmarkError

PARTS = ("task.toml", "instruction.md", "environment", "tests", "solution", "steps")
"""What makes a task what it is; a README beside them does not."""


class ContentDigests(FolderDigests):
    """Digests of task folders; a folder that did not change since is not read again."""

    __slots__ = ()

    def of(self, task: Path) -> str:
        """Digest over relative paths, executable bits and contents of one task's parts."""
        return self.known_or_read(task, tuple(_walk(task)))

    def known_or_read(self, folder: Path, entries: Sequence[FolderEntry]) -> str:
        try:
            return super().known_or_read(folder, entries)
        except UnreadableContentError as error:
            raise BenchmarkError(str(error)) from error


def folder_digest(folder: Path) -> str:
    """Digest over everything in one folder, wherever it is."""
    try:
        return contents.folder_digest(folder)
    except UnreadableContentError as error:
        raise BenchmarkError(str(error)) from error


def has_leftovers(folder: Path) -> bool:
    """Whether something below `folder` is not part of the task."""
    return any(name in LEFTOVERS for _, folders, files in os.walk(folder) for name in (*folders, *files))


def _walk(task: Path) -> Iterator[FolderEntry]:
    for part in PARTS:
        path = task / part
        try:
            info = path.lstat()
        except FileNotFoundError:
            continue
        yield contents.entry_of(part, info)
        if stat.S_ISDIR(info.st_mode):
            yield from contents.walk_folder(os.fspath(path), part)
