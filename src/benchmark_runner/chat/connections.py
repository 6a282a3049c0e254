"""One set of connections for all who ask models in an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    import httpx

    from benchmark_service.connections import Lanes

CONNECT_S, ANSWER_S, SEND_S = 15.0, 600.0, 60.0
"""Between two signs of life; how long an answer may take in all is up to who asks."""


@dataclass(slots=True)
class Connections:
    """Where requests go out."""

    lanes: Lanes
    users: int = 0

    @asynccontextmanager
    async def post(
        self, url: str, headers: Mapping[str, str], content: bytes
    ) -> AsyncIterator[httpx.Response]:
        """The answer's head; its body is read inside. Redirects are not followed: a key goes to one place."""
        import httpx

        patience = {"connect": CONNECT_S, "read": ANSWER_S, "write": SEND_S, "pool": None}
        request = httpx.Request(
            "POST", _parsed(url), headers=headers, content=content, extensions={"timeout": patience}
        )
        response = await self.lanes.handle_async_request(request)
        response.request = request
        try:
            yield response
        finally:
            await response.aclose()


@lru_cache(maxsize=64)
def _parsed(url: str) -> httpx.URL:
    """The same address is asked again and again."""
    import httpx

    return httpx.URL(url)


_kept: WeakKeyDictionary[asyncio.AbstractEventLoop, Connections] = WeakKeyDictionary()


@asynccontextmanager
async def kept_connections() -> AsyncIterator[Connections]:
    """The connections of this event loop: opened by the first who asks, closed by the last who leaves.

    Who asks models again and again holds this around it all, so that connections last from one question to
    the next.
    """
    from benchmark_service.connections import Lanes

    loop = asyncio.get_running_loop()
    connections = _kept.get(loop)
    if connections is None:
        connections = _kept[loop] = Connections(Lanes())
    connections.users += 1
    try:
        yield connections
    finally:
        connections.users -= 1
        if not connections.users:
            del _kept[loop]
            await connections.lanes.aclose()
