"""Long answers sent no faster than they are taken, and archives received piece by piece."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import os
import tarfile
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.responses import Response

from sandboxes.web_listener import ABORT
from valkyrie.api.capacity import StreamSlots, WorkerPool
from valkyrie.api.context import ApiRequest
from valkyrie.errors import DiskFullError, InfrastructureError
from valkyrie.ingest.sources import sweep_unpacked
from valkyrie.store.layout import DataFolder
from valkyrie.tracker.app import NobodyWaitsError, until_gone

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send


PIECE_BYTES = 1 << 16
STREAMED = "valkyrie.streamed"
"""In a request's scope: how long its answer took says nothing about us."""


class StuckError(Exception):
    """The client takes nothing any more."""


class BrokenOffError(Exception):
    """The rest is not sent: the server ends, or whoever asked may no longer have it."""


async def send_within(seconds: float, send: Send, body: bytes, *, more: bool = True) -> None:
    """Send one piece; StuckError when the client does not take what was sent before it."""
    try:
        async with asyncio.timeout(seconds):
            await send({"type": "http.response.body", "body": body, "more_body": more})
    except TimeoutError:
        raise StuckError from None


def cut(scope: Scope) -> bool:
    """End a connection at once, whether or not the other side reads; False when that cannot be done."""
    abort: Callable[[], None] | None = scope.get(ABORT)
    if abort is not None:
        abort()
    return abort is not None


async def until_disconnected(receive: Receive) -> None:
    """Return when the client has gone. The request's body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


class Pieces:
    """A blocking iterator of bytes, read in a lane until it ends or `left` is set."""

    def __init__(self, lane: WorkerPool, left: threading.Event, make: Callable[[], Iterable[bytes]]) -> None:
        self._lane = lane
        self._left = left
        self._make = make
        self._iterator: Iterator[bytes] | None = None
        self._first: bytes | None = None

    async def open(self, *, peek: bool) -> None:
        """Begin; what is wrong with the request shows now, while it can still be said.

        With `peek` the first piece is waited for: some iterators find out what is wrong only then.
        """

        def begin() -> bytes | None:
            self._iterator = iter(self._make())
            return self._next() if peek else b""

        self._first = await self._lane.run(begin)

    def _next(self) -> bytes | None:
        assert self._iterator is not None, "begun"
        iterator = self._iterator
        try:
            return until_gone(self._left, lambda: next(iterator, None))
        except NobodyWaitsError:
            return None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        piece, self._first = self._first, None
        while piece is not None and not self._left.is_set():
            yield piece
            piece = await self._lane.run(self._next)

    async def close(self) -> None:
        """Let go of files and connections the iterator holds."""
        if isinstance(self._iterator, Generator):
            # Its thread may still be in it when the whole server is cancelled; then it goes with the process.
            with contextlib.suppress(ValueError):
                await self._lane.run(self._iterator.close)


class Stream(Response):
    """An answer made of pieces. It holds a seat as long as it lasts, and is dropped when nobody takes it."""

    def __init__(
        self, media_type: str, stuck_s: float, unwelcome: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """`unwelcome` returns when whoever asked may no longer have the rest."""
        super().__init__(media_type=media_type)
        del self.headers["content-length"]
        self._stuck_s = stuck_s
        self._unwelcome = unwelcome
        self._held = AsyncExitStack()

    async def open(
        self, lane: WorkerPool, seats: StreamSlots, make: Callable[[], Iterable[bytes]], *, peek: bool
    ) -> None:
        """Take a seat until the stream has ended; InfrastructureError when there is none."""
        async with AsyncExitStack() as stack:
            self._left = stack.enter_context(seats.seat())
            self._pieces = Pieces(lane, self._left, make)
            stack.push_async_callback(self._pieces.close)
            await self._pieces.open(peek=peek)
            self._held = stack.pop_all()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[STREAMED] = True
        async with self._held:
            endings = [until_disconnected(receive), *([self._unwelcome()] if self._unwelcome else [])]
            waiting = [asyncio.ensure_future(ending) for ending in endings]
            for ending in waiting:
                ending.add_done_callback(lambda _: self._left.set())
            try:
                await self._send(send)
            except (StuckError, BrokenOffError):
                cut(scope)
            finally:
                for ending in waiting:
                    ending.cancel()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for piece in self._pieces:
            await send_within(self._stuck_s, send, piece)
        if self._left.is_set():
            raise BrokenOffError  # an ending in order would say that this was all
        await send_within(self._stuck_s, send, b"", more=False)


async def stream(
    lane: WorkerPool,
    seats: StreamSlots,
    make: Callable[[], Iterable[bytes]],
    media_type: str,
    *,
    stuck_s: float,
    peek: bool = True,
    unwelcome: Callable[[], Awaitable[None]] | None = None,
) -> Stream:
    """An answer made of what `make` yields in a thread; without `peek` it begins before anything came."""
    made = Stream(media_type, stuck_s, unwelcome)
    await made.open(lane, seats, make, peek=peek)
    return made


def tar_of(files: Iterable[tuple[str, Iterator[bytes], int]]) -> Iterator[bytes]:
    """A tar of (name, bytes, size), never in memory as a whole."""
    for name, pieces, size in files:
        member = tarfile.TarInfo(name)
        member.size = size
        yield member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
        yield from _exactly(name, pieces, size)
        yield b"\0" * (-size % tarfile.BLOCKSIZE)
    yield b"\0" * (2 * tarfile.BLOCKSIZE)


def _exactly(name: str, pieces: Iterator[bytes], size: int) -> Iterator[bytes]:
    """As many bytes as the header said; a file that shrank meanwhile breaks the stream, visibly."""
    left = size
    for piece in pieces:
        yield piece[:left]
        left -= min(left, len(piece))
        if not left:
            return
    if left:
        raise InfrastructureError(f"{name} became shorter while it was sent.")


def gather(pieces: Iterable[bytes], least: int = PIECE_BYTES) -> Iterator[bytes]:
    """The same bytes in larger pieces: each costs a turn of a thread and of the network."""
    held = bytearray()
    for piece in pieces:
        held += piece
        if len(held) >= least:
            yield bytes(held)
            held.clear()
    if held:
        yield bytes(held)


# Archives as they come in: to a file of ours, piece by piece, hashed on the way.

_WRITE_BYTES = 1 << 20
_STALE_S = 24 * 3600.0
_PREFIX = "part-"


@dataclass(frozen=True, slots=True)
class ReceivedArchive:
    """An archive that came whole."""

    file: Path
    digest: str
    """sha256, in hexadecimal."""


@asynccontextmanager
async def receive_archive(ask: ApiRequest) -> AsyncIterator[ReceivedArchive]:
    """The request's body as a file, which is gone afterwards unless it was moved away."""
    context = ask.context
    with context.lanes.downloads.seat():
        writer = _Writer(context.lanes.quick, incoming(context.tracker_app.data))
        try:
            async for piece in ask.request.stream():
                await writer.write(piece)
            yield ReceivedArchive(writer.file, await writer.finish())
        except OSError as error:
            raise _explained(error) from error
        finally:
            writer.remove()


def incoming(data: DataFolder) -> Path:
    return data.root / "incoming"


def sweep_incoming(data: DataFolder) -> None:
    """Remove what servers that were killed were being sent."""
    for part in incoming(data).glob(f"{_PREFIX}*"):
        if part.stat().st_mtime < time.time() - _STALE_S:
            part.unlink(missing_ok=True)
    sweep_unpacked(incoming(data))


class _Writer:
    """Writes in threads, a megabyte at a time: neither a thread per packet, nor a whole archive in memory."""

    def __init__(self, lane: WorkerPool, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, name = tempfile.mkstemp(dir=folder, prefix=_PREFIX)
        self.file = Path(name)
        self._lane = lane
        self._opened = os.fdopen(handle, "wb")
        self._hash = hashlib.sha256()
        self._held = bytearray()

    async def write(self, piece: bytes) -> None:
        self._held += piece
        if len(self._held) >= _WRITE_BYTES:
            await self._lane.run(self._flush)

    def _flush(self) -> None:
        self._hash.update(self._held)
        self._opened.write(self._held)
        self._held.clear()

    async def finish(self) -> str:
        """Its digest, once everything is on disk."""

        def close() -> str:
            self._flush()
            self._opened.close()
            return self._hash.hexdigest()

        return await self._lane.run(close)

    def remove(self) -> None:
        self._opened.close()
        self.file.unlink(missing_ok=True)


def _explained(error: OSError) -> InfrastructureError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFullError("The tracker's disk is full; whoever runs it must make room.")
    return InfrastructureError(f"The tracker cannot keep what was sent: {error.strerror or error}.")
