"""HTTP/1.1 on one connection, for httpx: a request goes out, its answer comes back, the next one follows."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import h11
import httpx

T = TypeVar("T")

MOST_HEAD = 64 * 1024
HAPPY_EYEBALLS_S = 0.25
"""How long one address of a host is tried before the next is tried beside it."""
_FULL = 256 * 1024
"""Bytes that wait to be read before the connection is told to pause."""

Timeouts = Mapping[str, float | None]
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Where to connect to for a host and port, best first; OSError when to nothing."""


async def first_of(places: Sequence[str], connect: Callable[[str], Awaitable[T]]) -> T:
    """A connection to the first place that takes one; why the last did not, when none does."""
    for place in places[:-1]:
        with contextlib.suppress(OSError):
            return await connect(place)
    return await connect(places[-1])


class Wire(asyncio.Protocol):
    """One connection; h11 reads and writes what goes over it. What fails is raised as httpx's own errors."""

    def __init__(self) -> None:
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MOST_HEAD)
        self._arrived = bytearray()
        self._waiter: asyncio.Future[None] | None = None
        self._transport: asyncio.Transport | None = None
        self._lost: Exception | None = None
        self._ended = False
        self._paused = False

    @classmethod
    async def to(
        cls,
        url: httpx.URL,
        trust: ssl.SSLContext | None,
        timeouts: Timeouts,
        resolve: Resolve | None = None,
    ) -> Wire:
        """A new connection to the host of a URL, at an address that `resolve` gives if there is one."""
        secure = url.scheme == "https"
        options: dict[str, Any] = {"ssl": trust, "server_hostname": url.host} if secure else {}
        port = url.port or (443 if secure else 80)

        async def connect(place: str) -> Wire:
            # Not for a single address: when its race is cancelled, asyncio may forget the socket that won.
            delay = None if _is_address(place) else HAPPY_EYEBALLS_S
            loop = asyncio.get_running_loop()
            return (await loop.create_connection(cls, place, port, happy_eyeballs_delay=delay, **options))[1]

        try:
            async with asyncio.timeout(timeouts.get("connect")):
                wire = await first_of(await resolve(url.host, port) if resolve else [url.host], connect)
        except TimeoutError as error:
            raise httpx.ConnectTimeout("no connection in time") from error
        except (OSError, ssl.SSLError, UnicodeError) as error:
            raise httpx.ConnectError(str(error)) from error
        return wire

    @property
    def reusable(self) -> bool:
        """Whether the next request may go out here: the last answer is read, and nothing came unasked."""
        if self._ended or self._lost is not None or self._arrived or self._http.trailing_data[0]:
            return False
        return self._http.our_state is h11.IDLE and self._http.their_state is h11.IDLE

    def close(self) -> None:
        """End it, whatever is under way."""
        self._ended = True
        if self._transport is not None:
            self._transport.abort()

    async def exchange(self, request: httpx.Request, timeouts: Timeouts) -> httpx.Response:
        """Send a request; the answer's body is read from the connection as it is asked for."""
        content = await request.aread()
        try:
            spoken = self._spoken(request, content)
        except h11.LocalProtocolError as error:
            raise httpx.LocalProtocolError(str(error)) from error
        assert self._transport is not None
        self._transport.write(spoken)
        wait = timeouts.get("read")
        event = await self._next(wait)
        while isinstance(event, h11.InformationalResponse):
            event = await self._next(wait)
        assert isinstance(event, h11.Response)
        return httpx.Response(
            event.status_code,
            headers=event.headers.raw_items(),
            stream=_Body(self._body(wait)),
            request=request,
        )

    def _spoken(self, request: httpx.Request, content: bytes) -> bytes:
        head = h11.Request(
            method=request.method.encode("ascii"), target=request.url.raw_path, headers=request.headers.raw
        )
        parts = [head, h11.Data(content), h11.EndOfMessage()] if content else [head, h11.EndOfMessage()]
        return b"".join(self._http.send(part) or b"" for part in parts)

    async def _body(self, wait: float | None) -> AsyncGenerator[bytes, None]:
        while isinstance(event := await self._next(wait), h11.Data):
            yield bytes(event.data)
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()

    async def _next(self, wait: float | None) -> h11.Event:
        """What came next, as soon as it is there."""
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                if not self._arrived and not self._ended:
                    await self._more(wait)
                if self._lost is not None:
                    raise httpx.ReadError(str(self._lost)) from self._lost
                self._http.receive_data(self._taken())
        except h11.RemoteProtocolError as error:
            raise httpx.RemoteProtocolError(str(error)) from error
        if not isinstance(event, h11.Event) or isinstance(event, h11.ConnectionClosed):
            raise httpx.RemoteProtocolError("the connection broke off")
        return event

    def _taken(self) -> bytes:
        """All that arrived; nothing, which says so to h11, when nothing will."""
        taken = bytes(self._arrived)
        self._arrived.clear()
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return taken

    async def _more(self, wait: float | None) -> None:
        """Until something came."""
        loop = asyncio.get_running_loop()
        waiter = self._waiter = loop.create_future()
        clock = loop.call_later(wait, self._wake, httpx.ReadTimeout("nothing came in time")) if wait else None
        try:
            await waiter
        finally:
            self._waiter = None
            if clock is not None:
                clock.cancel()

    def _wake(self, error: Exception | None = None) -> None:
        if self._waiter is not None and not self._waiter.done():
            if error is None:
                self._waiter.set_result(None)
            else:
                self._waiter.set_exception(error)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._arrived += data
        if len(self._arrived) > _FULL and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> bool:
        self._ended = True
        self._wake()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended, self._lost = True, exc
        self._wake()


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


class _Body(httpx.AsyncByteStream):
    """An answer's body as httpx wants it."""

    def __init__(self, pieces: AsyncGenerator[bytes, None]) -> None:
        self._pieces = pieces

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._pieces

    async def aclose(self) -> None:
        await self._pieces.aclose()
