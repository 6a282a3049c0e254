"""Connections to model servers, shared by all who ask models in an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Generic, TypeVar
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from benchmark_service.http_connections import (
    BrokeOffError,
    ConnectionPool,
    NotConnectedError,
    Origin,
    SilentError,
    proxy_for,
    request_bytes,
)

if TYPE_CHECKING:
    import httpx

    from benchmark_service.client_http import PooledTransport

TIMEOUTS = {"connect": 15.0, "read": 600.0, "write": 60.0, "pool": None}
"""Seconds between two signs of life; how long an answer may take in all is up to who asks."""
Resource = TypeVar("Resource")
_NO_LIMIT = nullcontext()


@dataclass(frozen=True, slots=True)
class Incoming:
    """An answer whose body is still to be read."""

    status: int
    headers: Mapping[str, str]
    pieces: AsyncIterator[bytes]
    """Raises WireError, as asking does."""


@dataclass(slots=True)
class Connections:
    """Where requests go out; with `most_at_once`, further ones wait."""

    wires: ConnectionPool = field(default_factory=ConnectionPool)
    most_at_once: int | None = None
    _room: asyncio.Semaphore | None = field(init=False)
    _lanes: PooledTransport | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._room = asyncio.Semaphore(self.most_at_once) if self.most_at_once else None

    @asynccontextmanager
    async def post(self, url: str, headers: Mapping[str, str], content: bytes) -> AsyncIterator[Incoming]:
        """Send a request; the answer's body is read inside. No redirect is followed: a key goes to one place.

        A plain request goes straight over the wire: httpx, which knows proxies and compression, takes as long
        for a request as all else together.
        """
        async with self._room or _NO_LIMIT:
            to = _straight(url)
            if to is None:
                async with self._through_httpx(url, headers, content) as response:
                    yield _of_httpx(response)
                return
            sent = {"host": to.host, "content-length": str(len(content)), **headers}
            lines = [(name.encode("ascii"), value.encode("ascii")) for name, value in sent.items()]
            answer = await self.wires.ask(
                to.place, request_bytes("POST", to.target, lines, content), TIMEOUTS
            )
            try:
                said = {name.decode("ascii"): value.decode("latin-1") for name, value in answer.head.headers}
                if "content-encoding" in said:
                    from benchmark_service.client_http import as_httpx_errors

                    yield _of_httpx(as_httpx_errors(answer))
                else:
                    yield Incoming(answer.head.status, said, answer.pieces)
            finally:
                await answer.aclose()

    async def aclose(self) -> None:
        """Close all connections."""
        self.wires.close()
        if self._lanes is not None:
            await self._lanes.aclose()

    @asynccontextmanager
    async def _through_httpx(
        self, url: str, headers: Mapping[str, str], content: bytes
    ) -> AsyncIterator[httpx.Response]:
        import httpx

        from benchmark_service.client_http import PooledTransport

        self._lanes = self._lanes or PooledTransport(self.wires)
        asked = httpx.Request("POST", url, headers=headers, content=content, extensions={"timeout": TIMEOUTS})
        with _told_plainly():
            response = await self._lanes.handle_async_request(asked)
        try:
            yield response
        finally:
            await response.aclose()


@dataclass(frozen=True, slots=True)
class _Address:
    """A URL, taken apart."""

    place: Origin
    host: str
    """As the header names it."""
    target: bytes


@lru_cache(maxsize=64)
def _straight(url: str) -> _Address | None:
    """Return where to connect to; None where it needs httpx: for a proxy, or to spell the URL as HTTP
    does."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if proxy_for(parts.scheme, host) or not url.isascii() or not url.isprintable() or " " in url:
        return None
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return _Address(Origin(parts.scheme, host, parts.port), parts.netloc, target.encode("ascii"))


def _of_httpx(response: httpx.Response) -> Incoming:
    async def pieces() -> AsyncIterator[bytes]:
        with _told_plainly():
            async for piece in response.aiter_bytes():
                yield piece

    return Incoming(response.status_code, response.headers, pieces())


@contextmanager
def _told_plainly() -> Iterator[None]:
    """Raise httpx's errors as ours; their words may hold headers, so their kind is enough."""
    import httpx

    try:
        yield
    except httpx.TimeoutException as error:
        raise SilentError(type(error).__name__) from None
    except (httpx.RemoteProtocolError, httpx.ReadError) as error:
        raise BrokeOffError(type(error).__name__) from None
    except (httpx.TransportError, httpx.DecodingError) as error:
        raise NotConnectedError(type(error).__name__) from None


class LoopShared(Generic[Resource]):
    """One resource per event loop: the first user opens it, the last one closes it."""

    def __init__(self, close: Callable[[Resource], Awaitable[None]]) -> None:
        self._close = close
        self._held: WeakKeyDictionary[asyncio.AbstractEventLoop, list[Resource]] = WeakKeyDictionary()
        """The resource, once for each user."""

    @asynccontextmanager
    async def hold(self, make: Callable[[], Resource]) -> AsyncIterator[Resource]:
        """Hold the resource of the running loop."""
        loop = asyncio.get_running_loop()
        users = self._held.setdefault(loop, [])
        resource = users[0] if users else make()
        users.append(resource)
        try:
            yield resource
        finally:
            users.pop()
            if not users:
                del self._held[loop]
                await self._close(resource)


_shared = LoopShared(Connections.aclose)


def kept_connections() -> AbstractAsyncContextManager[Connections]:
    """Hold the connections of this event loop: opened by the first who asks, closed by the last who leaves.

    Whoever asks models again and again holds this around it all, so that connections last from one question
    to the next.
    """
    return _shared.hold(Connections)
