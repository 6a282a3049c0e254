"""Logs as they grow, through restarts of the tracker: what was given once is not given again."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import TypeVar

from valkyrie.client.connection import Call, Connection
from valkyrie.client.faults import BusyError, TrackerUnreachableError, strange
from valkyrie.client.lines import lines, text
from valkyrie.client.retries import TrackerRetries
from valkyrie.views import LogLine

Piece = TypeVar("Piece")


class Given:
    """How much of a text was given; asked for again, it begins anew from its first character."""

    def __init__(self) -> None:
        self._given = 0
        self._position = 0

    def begin(self) -> None:
        """The text begins again."""
        self._position = 0

    def fresh(self, found: str) -> str:
        """Return what of the next piece was not given before."""
        known = max(0, self._given - self._position)
        self._position += len(found)
        self._given = max(self._given, self._position)
        return found[known:]


async def log_text(connection: Connection, call: Call) -> AsyncGenerator[str, None]:
    """One attempt's log."""
    given = Given()

    async def read(pieces: AsyncIterator[bytes]) -> AsyncGenerator[str, None]:
        given.begin()
        async for found in text(pieces):
            if fresh := given.fresh(found):
                yield fresh

    async with aclosing(_persist(connection, call, read)) as found:
        async for piece in found:
            yield piece


async def log_lines(connection: Connection, call: Call) -> AsyncGenerator[LogLine, None]:
    """Lines of many attempts' logs, in the order they come; those of one attempt are always in order."""
    given: Counter[tuple[str, int, int]] = Counter()

    async def read(pieces: AsyncIterator[bytes]) -> AsyncGenerator[LogLine, None]:
        seen: Counter[tuple[str, int, int]] = Counter()
        async for line in lines(pieces):
            if not line.strip():
                continue
            piece = _piece(connection, line)
            attempt = piece.task_id, piece.k, piece.attempt
            seen[attempt] += 1
            if seen[attempt] > given[attempt]:
                given[attempt] += 1
                yield piece

    async with aclosing(_persist(connection, call, read)) as found:
        async for piece in found:
            yield piece


async def _persist(
    connection: Connection,
    call: Call,
    read: Callable[[AsyncIterator[bytes]], AsyncGenerator[Piece, None]],
) -> AsyncGenerator[Piece, None]:
    """Yield the same question again and again, until an answer was read to its end."""
    retries = TrackerRetries(connection.limits)
    while True:
        try:
            # A log may be silent as long as its agent is.
            async with connection.stream(call, silence_s=None) as response:
                retries.heard()
                async with aclosing(read(response.aiter_bytes())) as found:
                    async for piece in found:
                        yield piece
            return
        except (TrackerUnreachableError, BusyError) as error:
            await retries.pause(error)


def _piece(connection: Connection, line: str) -> LogLine:
    try:
        return connection.view(LogLine, json.loads(line))
    except ValueError:
        raise strange(connection.url, "a line of a log that cannot be read") from None
