"""What a run kept on disk, read and copied."""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from valkyrie.store.layout import DataFolder, RunFolder
from valkyrie.views import DiskView


def copy_outputs(folder: RunFolder, which: tuple[str, int, int], target: Path) -> bool:
    """Copy an attempt's kept files and log; its archive comes unpacked."""
    source, log = folder.attempt(*which), folder.log(*which)
    if not source.exists() and not log.exists():
        return False
    target.mkdir(parents=True, exist_ok=True)
    if log.exists():
        shutil.copy2(log, target / "attempt.log")
    if source.exists():
        ignored = shutil.ignore_patterns("agent_output.tar.gz")
        shutil.copytree(source, target, dirs_exist_ok=True, ignore=ignored, symlinks=True)
        archive = source / "agent_output.tar.gz"
        if archive.exists():
            with tarfile.open(archive) as tar:
                tar.extractall(target / "agent_output", filter="data")
    return True


def folder_size(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(_size(Path(parent, name)) for parent, _, names in os.walk(folder) for name in names)


def total_size(files: Iterable[Path]) -> int:
    """Bytes of these files."""
    return sum(map(_size, files))


def _size(file: Path) -> int:
    try:
        return file.lstat().st_size
    except FileNotFoundError:
        return 0  # moved or removed while we look: an executor may be at work


def disk_view(data: DataFolder, states: Mapping[str, str]) -> DiskView:
    """Where the bytes of a data folder are; `states` are its runs'."""
    sizes = sorted(
        ((run_id, state, folder_size(data.run(run_id).root)) for run_id, state in states.items()),
        key=lambda item: -item[2],
    )
    parts = [
        ("database", total_size(data.root.glob("valkyrie.db*"))),
        ("runs", sum(size for _, _, size in sizes)),
        ("agents", folder_size(data.agents)),
        ("cache", folder_size(data.cache)),
    ]
    return DiskView(
        data_folder=str(data.root),
        total_bytes=sum(size for _, size in parts),
        free_bytes=shutil.disk_usage(data.root).free,
        parts=parts,
        runs=sizes,
    )
