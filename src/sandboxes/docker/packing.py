"""A folder out of a container: packed by a script inside, straight into the stream.

Nothing is staged in the sandbox, whose disk an agent may have filled.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

from sandboxes.docker.execution import BytesSink
from sandboxes.errors import SandboxError, SandboxFileNotFoundError, SandboxUnsupportedError
from sandboxes.scripted import archives
from sandboxes.threads import uninterrupted
from sandboxes.types import CopyLimits, CopyReport, StreamName

PACK_SECONDS = 300.0
_NAMES_BYTES = 1 << 16
_NO_FOLDER, _NO_TOOLS = 3, 127

_PACK = r"""
command -v tar >/dev/null && command -v find >/dev/null || exit 127
[ -d "$1" ] && [ ! -L "$1" ] || exit 3
cd -- "$1" || exit 3
find . -mindepth 1 -type f -size +"$2"c -print0 2>/dev/null | head -c 65536 >&2
if tar --version 2>/dev/null | grep -q GNU; then
  find . -mindepth 1 \( -type f -size +"$2"c -o -print0 \) 2>/dev/null |
    tar -cf - --null --no-recursion --format=gnu -T - 2>/dev/null | head -c "$3"
else
  find . -mindepth 1 \( -type f -size +"$2"c -o ! -type d -print \) 2>/dev/null |
    tar -cf - -T - 2>/dev/null | head -c "$3"
fi
"""
"""Names the files over `$2` bytes on stderr, and packs the rest, cut off after `$3` bytes."""

Run = Callable[[tuple[str, ...], BytesSink, float], Awaitable[int]]


async def download(run: Run, path: str, destination: Path, limits: CopyLimits) -> CopyReport:
    """Copy the regular files of a folder out, within the limits."""
    # Names, padding and headers take room besides the contents.
    most = limits.max_bytes + limits.max_entries * 2048 + (1 << 20)
    names = bytearray()
    with tempfile.TemporaryFile() as archive:

        async def keep(stream: StreamName, data: bytes) -> None:
            if stream == "stderr":
                names.extend(data[: _NAMES_BYTES - len(names)])
            elif archive.tell() + len(data) > most + (1 << 16):
                raise SandboxError(f"cannot copy out {path}: its archive grew while it was read")
            else:
                archive.write(data)

        argv = ("/bin/sh", "-c", _PACK, "sh", path, str(limits.max_file_bytes), str(most))
        code = await run(argv, keep, PACK_SECONDS)
        if code == _NO_FOLDER:
            raise SandboxFileNotFoundError(f"cannot copy out {path}: no folder there in the sandbox")
        if code == _NO_TOOLS:
            raise SandboxUnsupportedError(f"cannot copy out {path}: the sandbox's image has no tar or find")
        if code != 0:
            raise SandboxError(f"cannot copy out {path}: packing it ended with {code}")
        size = archive.tell()
        archive.seek(0)
        report = CopyReport()
        for name in filter(None, names.decode("utf-8", "replace").split("\0")):
            report.skip(
                name.removeprefix("./"), f"over the limit of {limits.max_file_bytes} bytes for a file"
            )
        unpacking = archives.Unpacking(destination, limits, report, cut=size >= most)
        await uninterrupted(asyncio.to_thread(unpacking.run, archive, empty=size == 0))
    return report
