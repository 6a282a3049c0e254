"""Bring a task's files into a sandbox, as its author wrote them."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from sandboxes.contents import LEFTOVERS
from sandboxes.protocol import Sandbox
from valkyrie.benchmarks.content import has_leftovers


async def make_folder(sandbox: Sandbox, path: str) -> None:
    """A folder at `path`, with its parents; what is in it stays."""
    with tempfile.TemporaryDirectory(prefix="valkyrie-") as empty:
        Path(empty).chmod(0o755)
        await sandbox.upload_folder(Path(empty), path)


async def put_folder(sandbox: Sandbox, source: Path, path: str) -> None:
    """The contents of `source` at `path`, without what tools left lying in it."""
    if not await asyncio.to_thread(has_leftovers, source):
        await sandbox.upload_folder(source, path)
        return
    with tempfile.TemporaryDirectory(prefix="valkyrie-") as scratch:
        clean = Path(scratch) / source.name
        ignore = shutil.ignore_patterns(*LEFTOVERS)
        await asyncio.to_thread(shutil.copytree, source, clean, symlinks=True, ignore=ignore)
        await sandbox.upload_folder(clean, path)


async def put_file(sandbox: Sandbox, source: Path, path: str) -> None:
    """One file, its executable bits kept."""
    content = await asyncio.to_thread(source.read_bytes)
    await sandbox.upload_stream(path, _once(content), mode=source.stat().st_mode & 0o777)


async def _once(content: bytes) -> AsyncIterator[bytes]:
    yield content
