"""Files in and out of a container through the engine's archives: no program of the image is needed."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import posixpath
import tarfile
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from sandboxes.docker.client import EngineClient
from sandboxes.errors import SandboxError, SandboxFileNotFoundError, SandboxNotFoundError
from sandboxes.scripted import archives
from sandboxes.threads import uninterrupted

PIECE_BYTES = 1 << 20
IN_MEMORY_BYTES = 4 << 20
_BLOCK = tarfile.BLOCKSIZE
_STAT = "X-Docker-Container-Path-Stat"
_GO_FOLDER, _GO_LINK = 1 << 31, 1 << 27
_GO_TYPE = 0x8F280000
"""Go's bits for everything that is not a regular file: folders, links, devices, pipes, sockets."""
# "too many levels of symbolic links", or the engine's own "too many links".
_MISSING = ("could not find", "no such file", "not a directory", "too many l", "invalid argument")


async def write(
    client: EngineClient, container: str, path: str, chunks: AsyncIterator[bytes], mode: int
) -> None:
    """Write one file, making its parent folders; a link in its place is replaced."""
    with (
        tempfile.SpooledTemporaryFile(IN_MEMORY_BYTES) as content,
        tempfile.SpooledTemporaryFile(IN_MEMORY_BYTES) as packed,
    ):
        async for chunk in chunks:
            content.write(chunk)
        size = content.tell()
        content.seek(0)
        member = tarfile.TarInfo(posixpath.normpath("/" + path).lstrip("/"))
        member.size, member.mode = size, mode & 0o1777
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as tar:
            await uninterrupted(asyncio.to_thread(tar.addfile, member, content))
        packed.seek(0)
        await put(client, container, "/", packed, what=f"write {path} in {container}", keep_folders=True)


async def write_whole(client: EngineClient, container: str, path: str, content: bytes) -> None:
    """Write one file that is at hand."""

    async def once() -> AsyncIterator[bytes]:
        yield content

    await write(client, container, path, once(), 0o644)


async def write_folder(client: EngineClient, container: str, source: Path, path: str) -> None:
    """Merge a host folder into a folder that is there."""
    with tempfile.TemporaryFile() as packed:
        await uninterrupted(asyncio.to_thread(archives.pack, source, packed))
        packed.seek(0)
        await put(client, container, path, packed, what=f"copy {source} to {path} in {container}")


async def put(
    client: EngineClient, container: str, path: str, packed: object, *, what: str, keep_folders: bool = False
) -> None:
    """Unpack an archive below a folder of the container."""
    query = {"path": path, **({"noOverwriteDirNonDir": "true"} if keep_folders else {})}
    headers = {"Content-Type": "application/x-tar"}
    async with client.answer(
        "PUT",
        f"containers/{container}/archive",
        what=what,
        query=query,
        data=_pieces(packed),  # type: ignore[arg-type]
        headers=headers,
    ):
        pass


async def _pieces(packed: BinaryIO) -> AsyncIterator[bytes]:
    while piece := await asyncio.to_thread(packed.read, PIECE_BYTES):
        yield piece


@dataclass(frozen=True, slots=True)
class PathStat:
    """What an engine says of a path, its last link not followed."""

    mode: int
    """As Go counts it."""

    @property
    def is_folder(self) -> bool:
        """Whether it is a real folder."""
        return bool(self.mode & _GO_FOLDER)

    @property
    def is_file(self) -> bool:
        """Whether it is a regular file."""
        return not self.mode & _GO_TYPE

    @property
    def is_link(self) -> bool:
        """Whether it is a link."""
        return bool(self.mode & _GO_LINK)


async def look(client: EngineClient, container: str, path: str) -> PathStat | None:
    """Return what is at a path; None when nothing is."""
    what = f"look at {path} in {container}"
    try:
        async with client.answer(
            "HEAD", f"containers/{container}/archive", what=what, query={"path": path}
        ) as answer:
            return PathStat(int(_stat_of(answer.headers.get(_STAT, "")).get("mode", 0)))
    except (SandboxError, ValueError) as error:
        # A refusal without a body, which the library fails to read (ValueError), does not say what was
        # missing: the container, or what is in it.
        if isinstance(error, SandboxError) and getattr(error.__cause__, "status", None) not in (
            400,
            404,
            500,
        ):
            raise
        await client.call("GET", f"containers/{container}/json", what=what)
        return None


def _stat_of(header: str) -> dict[str, Any]:
    found = json.loads(base64.b64decode(header) or "{}")
    return found if isinstance(found, dict) else {}


async def read(client: EngineClient, container: str, path: str) -> AsyncIterator[bytes]:
    """Yield one regular file in pieces; what is a link or no file at all is not there."""
    what = f"read {path} in {container}"
    absent = SandboxFileNotFoundError(f"cannot {what}: no regular file there")
    try:
        async with client.answer(
            "GET", f"containers/{container}/archive", what=what, query={"path": path}
        ) as answer:
            found = _stat_of(answer.headers.get(_STAT, ""))
            if int(found.get("mode", 0)) & _GO_TYPE:
                raise absent
            left = -1
            async for piece in _first_file(answer.content.iter_any(), absent):
                if left < 0:
                    left = int.from_bytes(piece, "big")
                    continue
                left -= len(piece)
                yield piece
            if left > 0:
                raise SandboxError(f"cannot {what}: it broke off {left} bytes before its end")
    except SandboxFileNotFoundError:
        raise
    except SandboxNotFoundError as error:
        lower = str(error).lower()
        if "no such container" in lower and "could not find the file" not in lower:
            raise
        raise absent from error
    except SandboxError as error:
        if any(words in str(error).lower() for words in _MISSING):
            raise absent from error
        raise


async def _first_file(chunks: AsyncIterator[bytes], absent: SandboxError) -> AsyncIterator[bytes]:
    """The size of an archive's first file (8 bytes), then its content."""
    reader = _Reader(chunks)
    long_size: int | None = None
    while True:
        header = await reader.exactly(_BLOCK)
        if not header.strip(b"\0"):
            raise absent
        member = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
        if member.type not in (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME):
            break
        extension = await reader.exactly(-(-member.size // _BLOCK) * _BLOCK)
        long_size = _pax_size(extension[: member.size]) or long_size
    if not member.isreg():
        raise absent
    size = member.size if long_size is None else long_size
    yield size.to_bytes(8, "big")
    async for piece in reader.pieces(size):
        yield piece


def _pax_size(extension: bytes) -> int | None:
    for line in extension.split(b"\n"):
        _, _, record = line.partition(b" ")
        if record.startswith(b"size="):
            return int(record[5:])
    return None


class _Reader:
    """Exact amounts out of chunks of any size."""

    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        self._chunks = chunks
        self._held = b""

    async def exactly(self, size: int) -> bytes:
        if size > PIECE_BYTES:
            raise SandboxError("the engine sent an archive with an absurd header")
        out = io.BytesIO()
        async for piece in self.pieces(size):
            out.write(piece)
        return out.getvalue().ljust(size, b"\0")

    async def pieces(self, size: int) -> AsyncIterator[bytes]:
        while size > 0:
            if not self._held:
                self._held = await anext(self._chunks, b"")
                if not self._held:
                    return
            piece, self._held = self._held[:size], self._held[size:]
            size -= len(piece)
            yield piece
