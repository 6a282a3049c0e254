"""Errors about files of this machine, told to whoever sent them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from valkyrie.errors import ValkyrieError


@contextmanager
def told_as(names: Mapping[Path, str]) -> Iterator[None]:
    """Errors name these paths as people know them: where things lie on this machine is its own affair."""
    try:
        yield
    except ValkyrieError as error:
        text = str(error)
        for path, name in names.items():
            text = text.replace(str(path), name)
        error.args = (text,)
        raise
