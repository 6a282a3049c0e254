"""Read a server's answer within bounds: whole, or as the stream it was asked for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from benchmark_runner.models.dialect import Dialect, Json
from benchmark_runner.models.errors import TransientError, UnreadableAnswerError, failure_of
from benchmark_service.http_connections import BrokeOffError

if TYPE_CHECKING:
    from benchmark_runner.models.connections import Incoming
    from benchmark_runner.models.endpoint import Endpoint

MOST_BYTES = 64 * 1024 * 1024
"""Of one answer."""
_MOST_ERROR = 64 * 1024
_LINGER_S = 1.0
"""How long a stream may stay open after its last event, before the connection is given up."""
_END = b"[DONE]"


async def read_answer(endpoint: Endpoint, dialect: Dialect, incoming: Incoming) -> Json:
    """Return the answer in the API's own form, however it came."""
    if not 200 <= incoming.status < 300:
        words = await _bounded(incoming, _MOST_ERROR, cut=True)
        raise failure_of(endpoint, incoming.status, incoming.headers, words.decode("utf-8", "replace"))
    if incoming.headers.get("content-type", "").startswith("text/event-stream"):
        return await _collected(dialect, incoming)
    return _object(await _bounded(incoming, MOST_BYTES))


async def _bounded(incoming: Incoming, most: int, *, cut: bool = False) -> bytes:
    found = bytearray()
    async for piece in incoming.pieces:
        found += piece
        if len(found) > most:
            if cut:
                break
            raise UnreadableAnswerError(f"more than {most} bytes")
    return bytes(found[:most])


async def _collected(dialect: Dialect, incoming: Incoming) -> Json:
    collector, events, pieces = dialect.collector(), _Events(), incoming.pieces
    # A connection that breaks after the answer's end takes nothing from it.
    with suppress(BrokeOffError):
        async for piece in pieces:
            for data in events.feed(piece):
                if data != _END:
                    collector.add(_object(data))
            if events.ended:
                await _linger(pieces)
                break
    whole = collector.whole()
    if whole is None:
        raise TransientError("broke off in the middle of its answer")
    return whole


async def _linger(pieces: AsyncIterator[bytes]) -> None:
    """Come to the stream's end, so that its connection can be used again."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_LINGER_S):
            async for _ in pieces:
                pass


class _Events:
    """Server-sent events, put together from the pieces they come in."""

    def __init__(self) -> None:
        self.ended = False
        self._line: list[bytes] = []
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Yield the data of the events that are complete with this piece."""
        self._size += len(piece)
        if self._size > MOST_BYTES:
            raise UnreadableAnswerError(f"more than {MOST_BYTES} bytes")
        first, *more = piece.split(b"\n")
        self._line.append(first)
        for part in more:
            line = b"".join(self._line).rstrip(b"\r")
            self._line = [part]
            if line.startswith(b"data:"):
                self._data.append(line[5:].strip())
            elif not line and self._data:
                data = b"\n".join(self._data)
                self._data = []
                self.ended = self.ended or data == _END
                yield data


def _object(data: bytes) -> Json:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        raise UnreadableAnswerError("no JSON") from None
    if not isinstance(found, dict):
        raise UnreadableAnswerError("no JSON object")
    return found
