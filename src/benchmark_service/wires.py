"""Connections for many requests at once, kept from one request to the next.

httpcore's pool looks at all its connections, for each of them, with every request: a hundred requests at once
cost it ten times what the requests do. Here a request takes the connection that was used last, or a new one.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import AsyncGenerator, Callable
from functools import cache

from benchmark_service.http1 import Head
from benchmark_service.wire import Place, Resolve, Timeouts, Wire

KEEPALIVE_S = 4.0
"""Connections are let go of before servers do it (uvicorn after 5 s), so that none breaks in use."""
MOST_IDLE = 256
"""Connections kept to one place; those beyond are closed after use."""


class Wires:
    """How many requests are under way is up to the callers."""

    def __init__(
        self,
        *,
        keepalive_s: float = KEEPALIVE_S,
        most_idle: int = MOST_IDLE,
        resolve: Resolve | None = None,
    ) -> None:
        """`resolve` says which addresses connections go to; left out, the system's resolver."""
        self._keepalive_s, self._most_idle = keepalive_s, most_idle
        self._resolve = resolve
        self._idle: dict[Place, list[tuple[float, Wire]]] = {}
        self._closed = False

    async def ask(
        self, place: Place, request: bytes, timeouts: Timeouts, *, bodiless: bool = False
    ) -> Answer:
        """Send a request; its answer, which is to be closed. Raises WireError."""
        trust = trusted() if place.scheme == "https" else None
        wire = self._waiting(place) or await Wire.to(place, trust, timeouts, self._resolve)
        wait = timeouts.get("read")
        try:
            head = await wire.ask(request, wait, bodiless=bodiless)
        except BaseException:
            wire.close()
            raise
        return Answer(head, wire.pieces(head, wait), lambda: self._give_back(wire, place))

    def close(self) -> None:
        """Let go of all connections; those in use follow as they are given back."""
        self._closed = True
        for idle in self._idle.values():
            for _, wire in idle:
                wire.close()
        self._idle.clear()

    def _waiting(self, place: Place) -> Wire | None:
        idle = self._idle.get(place)
        while idle:
            until, wire = idle.pop()
            if wire.reusable and time.monotonic() < until:
                return wire
            wire.close()
        return None

    def _give_back(self, wire: Wire, place: Place) -> None:
        """Keep a connection whose answer was read, or close it."""
        idle = self._idle.setdefault(place, [])
        if self._closed or not wire.reusable or len(idle) >= self._most_idle:
            wire.close()
        else:
            idle.append((time.monotonic() + self._keepalive_s, wire))


class Answer:
    """An answer whose body is still to be read; its end frees the connection."""

    def __init__(self, head: Head, pieces: AsyncGenerator[bytes, None], done: Callable[[], None]) -> None:
        self.head = head
        self.pieces = pieces
        """The body as it comes. Raises WireError."""
        self._done = done
        self._closed = False

    async def aclose(self) -> None:
        """Read no further."""
        if self._closed:
            return
        self._closed = True
        try:
            await self.pieces.aclose()
        finally:
            self._done()


@cache
def trusted() -> ssl.SSLContext:
    """Whom to trust; reading the certificates takes longer than many a request."""
    import httpx

    return httpx.create_ssl_context()
