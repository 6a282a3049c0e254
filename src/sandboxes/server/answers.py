"""Answers that carry a command's whole output: only so much of them is in memory at a time.

A client that asks for many and reads none would otherwise have each of them kept for it, whole.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from starlette.responses import Response

from sandboxes.server.output import AnswerRoom

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

SMALL_BYTES = 1 << 20
CHUNK_BYTES = 256 << 10
_COPIES = 4
"""As text, as JSON, encoded; and what is escaped grows."""


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
