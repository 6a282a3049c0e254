"""Whole folders over a line that carries single files: as archives, packed and unpacked on both sides."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO, Protocol

from sandboxes.errors import (
    SandboxError,
    SandboxFileNotFoundError,
    SandboxFullError,
    SandboxUnsupportedError,
)
from sandboxes.scripted import archives
from sandboxes.threads import uninterrupted
from sandboxes.types import CopyLimits, CopyReport

CHUNK_BYTES = 1 << 20

_NO_FOLDER = 3
_NO_TOOLS = 127

_UNPACK = """
command -v tar >/dev/null || exit 127
if [ -L "$2" ] || [ ! -d "$2" ]; then rm -rf -- "$2"; fi
mkdir -p -- "$2" && tar -xpof "$1" -C "$2"
"""
_PACK = r"""
command -v tar >/dev/null && command -v find >/dev/null || exit 127
[ -d "$2" ] && [ ! -L "$2" ] || exit 3
cd -- "$2" || exit 3
find . -mindepth 1 -type f -size +"$3"c -print0 2>/dev/null | head -c 65536
if tar --version 2>/dev/null | grep -q GNU; then
  find . -mindepth 1 \( -type f -size +"$3"c -o -print0 \) 2>/dev/null |
    tar -cf - --null --no-recursion --format=gnu -T - 2>/dev/null | head -c "$4" > "$1"
else
  find . -mindepth 1 \( -type f -size +"$3"c -o ! -type d -print \) 2>/dev/null |
    tar -cf - -T - 2>/dev/null | head -c "$4" > "$1"
fi
"""
"""Names the files over `$3` bytes, and packs the rest into `$1`, cut off after `$4` bytes."""


class Transfers(Protocol):
    """What is needed of the sandbox."""

    async def helper(self, script: str, *arguments: str, what: str) -> tuple[int, str]: ...

    async def upload_stream(self, path: str, chunks: AsyncIterator[bytes], *, mode: int = 0o644) -> None: ...

    def stream_download(self, path: str) -> AsyncIterator[bytes]: ...

    async def remove(self, path: str) -> None: ...


async def upload(sandbox: Transfers, source: Path, path: str) -> None:
    """Merge a host folder into `path`; links that leave it are refused."""
    staged = f"/tmp/.valkyrie-{token_hex(8)}.tar"
    with tempfile.TemporaryFile() as archive:
        await uninterrupted(asyncio.to_thread(archives.pack, source, archive))
        archive.seek(0)
        try:
            await sandbox.upload_stream(staged, _pieces(archive))
            code, output = await sandbox.helper(_UNPACK, staged, path, what=f"unpack into {path}")
        finally:
            await uninterrupted(_discard(sandbox, staged))
    if code != 0:
        raise _failure(f"copy {source} to {path}", code, output)


async def download(sandbox: Transfers, path: str, destination: Path, limits: CopyLimits) -> CopyReport:
    """Copy the regular files of a folder out, within the limits."""
    staged = f"/tmp/.valkyrie-{token_hex(8)}.tar"
    # Names, padding and headers take room besides the contents.
    most = limits.max_bytes + limits.max_entries * 2048 + CHUNK_BYTES
    arguments = (staged, path, str(limits.max_file_bytes), str(most))
    with tempfile.TemporaryFile() as archive:
        try:
            code, output = await sandbox.helper(_PACK, *arguments, what=f"pack {path}")
            if code != 0:
                raise _failure(f"copy out {path}", code, output)
            size = 0
            async for chunk in sandbox.stream_download(staged):
                size += len(chunk)
                if size > most:
                    raise SandboxError(f"cannot copy out {path}: its archive grew while it was read")
                archive.write(chunk)
        finally:
            await uninterrupted(_discard(sandbox, staged))
        archive.seek(0)
        report = CopyReport()
        for name in filter(None, output.split("\0")):
            report.skip(
                name.removeprefix("./"), f"over the limit of {limits.max_file_bytes} bytes for a file"
            )
        unpacking = archives.Unpacking(destination, limits, report, cut=size >= most)
        await uninterrupted(asyncio.to_thread(unpacking.run, archive, empty=size == 0))
    return report


async def _pieces(archive: BinaryIO) -> AsyncIterator[bytes]:
    while piece := await asyncio.to_thread(archive.read, CHUNK_BYTES):
        yield piece


async def _discard(sandbox: Transfers, staged: str) -> None:
    try:
        await sandbox.remove(staged)
    except SandboxError:
        pass  # gone with the sandbox, or a leftover in its own /tmp


def _failure(what: str, code: int, output: str) -> SandboxError:
    if code == _NO_FOLDER:
        return SandboxFileNotFoundError(f"cannot {what}: no folder there in the sandbox")
    if code == _NO_TOOLS:
        return SandboxUnsupportedError(f"cannot {what}: the sandbox's image has no tar or find")
    if "no space left" in output.lower():
        return SandboxFullError(f"cannot {what}: no space left in the sandbox")
    return SandboxError(f"cannot {what}: {output.strip()[-300:] or f'exit {code}'}")
