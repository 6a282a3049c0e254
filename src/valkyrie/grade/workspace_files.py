"""Reading what an agent left, within bounds."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from valkyrie.errors import GraderError

MOST_BYTES = 16 * 1024 * 1024
"""Of one file that is looked into."""


class UnreadableError(Exception):
    """A file that is there cannot be read as text."""


def workspace_of(workspace: Path | None) -> Path:
    """The folder, or the error that there is none."""
    if workspace is None:
        raise GraderError(
            "there is no workspace to look at. With `valkyrie grade`, name it: --workspace DIR."
        )
    if not workspace.is_dir():
        raise GraderError(f"the workspace {workspace} is not there.")
    return workspace


def is_file(path: Path) -> bool:
    """A plain file, or a link to one."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return False


def read_text(path: Path, *, most: int | None = None) -> str:
    """A file as UTF-8 text. Raises UnreadableError when it is not that, or has more than `most` bytes."""
    most = MOST_BYTES if most is None else min(most, MOST_BYTES)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise UnreadableError("it is no plain file")
            content = file.read(max(most, 0) + 1)
    except OSError as error:
        raise UnreadableError(error.strerror or "it cannot be opened") from None
    if len(content) > most:
        raise UnreadableError("it is too large to be looked into")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise UnreadableError("it is not UTF-8") from None
