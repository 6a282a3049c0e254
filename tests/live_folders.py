"""Look through folders that others write to: what goes away meanwhile is no error."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def folders_below(root: Path) -> Iterator[Path]:
    """Yield every folder below `root`."""
    for folder, names, _ in os.walk(root):
        yield from (Path(folder, name) for name in names)


def files_below(root: Path) -> Iterator[Path]:
    """Yield everything below `root` that is no folder."""
    for folder, _, names in os.walk(root):
        yield from (Path(folder, name) for name in names)


def contents_below(root: Path) -> Iterator[tuple[Path, bytes]]:
    """Yield every regular file below `root` with what it holds."""
    for path in files_below(root):
        try:
            if path.is_file():
                yield path, path.read_bytes()
        except FileNotFoundError:
            continue


def control_groups() -> Iterator[Path]:
    """Yield every control group of this machine."""
    return folders_below(Path("/sys/fs/cgroup"))
