"""Find task directories below a folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from valkyrie.errors import UsageError

MAX_DEPTH = 6
_MARKS = ("task.toml", "instruction.md", "tests/test.sh")


def is_task(folder: Path) -> bool:
    """Whether someone meant this folder to be a task; it may still be a broken one."""
    return any((folder / mark).is_file() for mark in _MARKS)


def find_tasks(folder: Path) -> dict[str, Path]:
    """Task id → task directory, ordered by id; an id is the path below `folder`.

    A folder that is itself a task has one, under its own name. Hidden folders are skipped; a link to a
    task counts, a link to anything else is not followed.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder; name a task directory or a folder of them")
    if is_task(folder):
        return {folder.name: folder}
    found = dict(sorted(_below(folder, "", 1)))
    if not found:
        raise UsageError(
            f"{folder} holds no task: no folder in it has a task.toml. "
            "`valk benchmark init NAME` writes one to start from"
        )
    return found


def _below(folder: Path, prefix: str, depth: int) -> Iterator[tuple[str, Path]]:
    try:
        with os.scandir(folder) as entries:
            folders = [entry for entry in entries if not entry.name.startswith(".") and entry.is_dir()]
    except OSError as error:
        raise UsageError(f"cannot look for tasks in {folder}: {error.strerror}") from error
    for entry in folders:
        path = folder / entry.name
        if is_task(path):
            yield prefix + entry.name, path
        elif depth < MAX_DEPTH and not entry.is_symlink():
            yield from _below(path, f"{prefix}{entry.name}/", depth + 1)
