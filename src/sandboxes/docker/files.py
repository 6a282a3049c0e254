"""Move files and folders in and out of a container, and read links of an image, without trusting programs of
the image."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import posixpath
import tarfile
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any, Final

from sandboxes import scripted_sandbox
from sandboxes.docker.container_config import GUARD, KIND, LABELS
from sandboxes.docker.engine import EngineClient, status_of
from sandboxes.docker.execution import BytesSink
from sandboxes.errors import (
    SandboxError,
    SandboxFileNotFoundError,
    SandboxNotFoundError,
    SandboxUnsupportedError,
)
from sandboxes.protocol import CarryRules
from sandboxes.streams import file_pieces, uninterrupted
from sandboxes.types import CopyLimits, CopyReport, StreamName
from sandboxes.work import Links

PIECE_BYTES = 1 << 20
IN_MEMORY_BYTES = 4 << 20
_BLOCK = tarfile.BLOCKSIZE
_STAT = "X-Docker-Container-Path-Stat"
_GO_FOLDER, _GO_LINK = 1 << 31, 1 << 27
_GO_TYPE = 0x8F280000
"""Go's bits for everything that is not a regular file: folders, links, devices, pipes, sockets."""
# "too many levels of symbolic links", or the engine's own "too many links".
_MISSING = ("could not find", "no such file", "not a directory", "too many l", "invalid argument")


async def write_file(
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
        await put_archive(
            client, container, "/", packed, what=f"write {path} in {container}", keep_folders=True
        )


async def write_whole(client: EngineClient, container: str, path: str, content: bytes) -> None:
    """Write one file that is at hand."""

    async def once() -> AsyncIterator[bytes]:
        yield content

    await write_file(client, container, path, once(), 0o644)


async def write_folder(client: EngineClient, container: str, source: Path, path: str) -> None:
    """Merge a host folder into a folder that is there."""
    with tempfile.TemporaryFile() as packed:
        await uninterrupted(asyncio.to_thread(scripted_sandbox.pack_folder, source, packed))
        packed.seek(0)
        await put_archive(client, container, path, packed, what=f"copy {source} to {path} in {container}")


async def put_archive(
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
        data=file_pieces(packed),  # type: ignore[arg-type]
        headers=headers,
    ):
        pass


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


async def stat_path(client: EngineClient, container: str, path: str) -> PathStat | None:
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
        if isinstance(error, SandboxError) and status_of(error) not in (
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


async def read_file(client: EngineClient, container: str, path: str) -> AsyncIterator[bytes]:
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


# Links of an image, read without running anything of it.

_CACHED: Final = 20_000
_MOST_ASKED: Final = 2000
"""Names looked up in an image for one archive."""


class ImageLinks:
    """The links of one engine's images, remembered. A container that is never started shows an image."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self._known: dict[tuple[str, str], str | None] = {}

    async def forbidden(
        self,
        image: str,
        links: Mapping[str, str],
        rules: CarryRules,
        is_work: Callable[[str], bool],
    ) -> set[str]:
        """Return those of the links, given by path and text, that lead to places the rules forbid.

        `is_work` says of a path that it is not what the image has there.
        """
        look = _Look(self, image, links, is_work, asyncio.get_running_loop())
        try:
            return await asyncio.to_thread(look.forbidden, rules)
        finally:
            if look.container is not None:
                await self._client.remove_container(look.container)

    async def read(self, image: str, path: str, look: _Look) -> str | None:
        """Return the text of the image's link at `path`, or None where none is."""
        key = image, path
        if key not in self._known:
            if look.container is None:
                look.container = await self._show(image)
            if len(self._known) >= _CACHED:
                self._known.clear()
            self._known[key] = await self._ask(look.container, path)
        return self._known[key]

    async def _show(self, image: str) -> str:
        name = f"valkyrie-guard-{token_hex(8)}"
        body = {
            "Image": image,
            "Entrypoint": ["/none"],
            "Labels": {KIND: GUARD, LABELS: "{}"},
            "HostConfig": {"NetworkMode": "none"},
        }
        what = f"look at the links of {image}"
        await self._client.call("POST", "containers/create", what=what, query={"name": name}, body=body)
        return name

    async def _ask(self, container: str, path: str) -> str | None:
        found = await stat_path(self._client, container, path)
        if found is None or not found.is_link:
            return None
        what = f"read the link {path}"
        async with self._client.answer(
            "GET", f"containers/{container}/archive", what=what, query={"path": path}
        ) as answer:
            packed = io.BytesIO(await answer.content.read(PIECE_BYTES))
        try:
            with tarfile.open(fileobj=packed, errors="surrogateescape") as tar:
                member = tar.next()
        except tarfile.TarError as error:
            raise SandboxError(f"cannot {what}: {error}") from error
        return member.linkname if member is not None and member.issym() else None


class _Look(Links):
    """Links of packed work over those of an image. Works in a thread, asks in the loop."""

    def __init__(
        self,
        images: ImageLinks,
        image: str,
        links: Mapping[str, str],
        is_work: Callable[[str], bool],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(root_fd=-1)
        self._images = images
        self._image = image
        self._links = links
        self._is_work = is_work
        self._loop = loop
        self._asked = 0
        self.container: str | None = None

    def forbidden(self, rules: CarryRules) -> set[str]:
        return {path for path, text in self._links.items() if self.is_forbidden(path, text, rules)}

    def _read(self, parts: list[str], name: str) -> str | None:
        path = "/" + "/".join((*parts, name))
        if path in self._links:
            return self._links[path]
        if self._is_work(path):
            return None
        try:
            path.encode()
        except UnicodeEncodeError:
            return None
        self._asked += 1
        if self._asked > _MOST_ASKED:
            self._steps_left = 0  # every further way is taken to lead to `/`
            return None
        asked = asyncio.run_coroutine_threadsafe(self._images.read(self._image, path, self), self._loop)
        return asked.result()


# A folder out of a container: packed by a script inside, straight into the stream.
#
# Nothing is staged in the sandbox, whose disk an agent may have filled.

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

CommandRunner = Callable[[tuple[str, ...], BytesSink, float], Awaitable[int]]


async def download_as_archive(
    run: CommandRunner, path: str, destination: Path, limits: CopyLimits
) -> CopyReport:
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
        unpacking = scripted_sandbox.FolderUnpacker(destination, limits, report, cut=size >= most)
        await uninterrupted(asyncio.to_thread(unpacking.run, archive, empty=size == 0))
    return report
