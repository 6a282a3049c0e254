"""Answers that carry a command's whole output: only so much of them is in memory at a time.

A client that asks for many and reads none would otherwise have each of them kept for it, whole.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from starlette.responses import Response

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

MAX_BYTES = 512 << 20
SMALL_BYTES = 1 << 20
CHUNK_BYTES = 256 << 10
_COPIES = 4
"""As text, as JSON, encoded; and what is escaped grows."""


class AnswerRoom:
    """How much one grant's large answers may take together; those that do not fit wait for the others."""

    def __init__(self, limit: int = MAX_BYTES) -> None:
        self._limit = limit
        self._used = 0
        self._freed = asyncio.Condition()

    @asynccontextmanager
    async def taken(self, size: int) -> AsyncIterator[None]:
        """Hold room for `size` bytes; one answer always fits."""
        async with self._freed:
            await self._freed.wait_for(lambda: not self._used or self._used + size <= self._limit)
            self._used += size
        try:
            yield
        finally:
            self._used -= size
            async with self._freed:
                self._freed.notify_all()


class OutputAnswer(Response):
    """JSON made of output when there is room for it, and sent no faster than it is read."""

    media_type = "application/json"

    def __init__(
        self,
        room: AnswerRoom,
        held: int,
        make: Callable[[], Mapping[str, object]],
        done: Callable[[], None] | None = None,
    ) -> None:
        super().__init__()
        del self.headers["content-length"]
        self._room = room
        self._held = held
        self._make = make
        self._done = done

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI's
        try:
            if self._held <= SMALL_BYTES:
                await self._send(send)
                return
            async with self._room.taken(self._held * _COPIES):
                await self._send(send)
        finally:
            if self._done is not None:
                self._done()

    async def _send(self, send: Send) -> None:
        body = json.dumps(self._make(), ensure_ascii=False).encode()
        self.headers["content-length"] = str(len(body))
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        # The server waits for a slow client before each piece, never after the last.
        for start in range(0, len(body), CHUNK_BYTES):
            more = start + CHUNK_BYTES < len(body)
            piece = body[start : start + CHUNK_BYTES]
            await send({"type": "http.response.body", "body": piece, "more_body": more})
