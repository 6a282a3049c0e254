"""Write small task directories."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

WriteTask = Callable[..., Path]


def write_files(folder: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return folder
