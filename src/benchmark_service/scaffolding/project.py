"""Writes a generated project: all of it, or nothing."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from benchmark_service.scaffolding import GenerationError
from benchmark_service.scaffolding.templates import ProjectFile


def write_project(target: Path, files: Mapping[str, ProjectFile | None]) -> Path:
    """Write the files as the new folder `target`, which appears whole; None is an empty folder."""
    try:
        if target.exists() or target.is_symlink():
            raise GenerationError(f"{target} already exists; nothing was written. Choose another name.")
        target.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(dir=target.parent, prefix=".create-"))
        try:
            part.chmod(0o755)
            for path, file in files.items():
                _write(part / path, file)
            part.rename(target)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    except OSError as error:
        reason = error.strerror or str(error)
        raise GenerationError(f"{target} cannot be written: {reason}. Nothing was created.") from None
    return target


def _write(path: Path, file: ProjectFile | None) -> None:
    if file is None:
        path.mkdir(parents=True, exist_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(file.content)
    if file.executable:
        path.chmod(0o755)
