"""One connection: a request goes out, its answer comes back, the next one follows."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from benchmark_service.http1 import Answers, Head, NotHttpError

T = TypeVar("T")

HAPPY_EYEBALLS_S = 0.25
"""How long one address of a host is tried before the next is tried beside it."""
_FULL = 256 * 1024
"""Bytes that wait to be read before the connection is told to pause."""

Timeouts = Mapping[str, float | None]
"""Seconds under `connect` and `read`, as httpx names them; none where nothing is said."""
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Where to connect to for a host and port, best first; OSError when to nothing."""


class WireError(Exception):
    """A request got no answer."""


class NotConnectedError(WireError):
    """No connection came about, so nothing was sent."""


class NotConnectedInTimeError(NotConnectedError):
    """The other side did not take the connection in time."""


class SilentError(WireError):
    """Nothing came in time."""


class BrokeOffError(WireError):
    """The connection ended, or what came over it is not HTTP."""


class Place(NamedTuple):
    """Where connections lead to."""

    scheme: str
    host: str
    port: int | None


async def first_of(places: Sequence[str], connect: Callable[[str], Awaitable[T]]) -> T:
    """A connection to the first place that takes one; why the last did not, when none does."""
    for place in places[:-1]:
        with contextlib.suppress(OSError):
            return await connect(place)
    return await connect(places[-1])


class Wire(asyncio.Protocol):
    """A connection, for one request at a time. Raises WireError."""

    def __init__(self) -> None:
        self._answers = Answers()
        self._waiter: asyncio.Future[None] | None = None
        self._transport: asyncio.Transport | None = None
        self._lost: Exception | None = None
        self._ended = False
        self._paused = False
        self._free = True

    @classmethod
    async def to(
        cls,
        place: Place,
        trust: ssl.SSLContext | None,
        timeouts: Timeouts,
        resolve: Resolve | None = None,
    ) -> Wire:
        """A new connection, at an address that `resolve` gives if there is one.

        A secure one where it is said whom to trust.
        """
        options: dict[str, Any] = {"ssl": trust, "server_hostname": place.host} if trust else {}
        port = place.port or (443 if trust else 80)

        async def connect(host: str) -> Wire:
            # Not for a single address: when its race is cancelled, asyncio may forget the socket that won.
            delay = None if _is_address(host) else HAPPY_EYEBALLS_S
            loop = asyncio.get_running_loop()
            return (await loop.create_connection(cls, host, port, happy_eyeballs_delay=delay, **options))[1]

        try:
            async with asyncio.timeout(timeouts.get("connect")):
                hosts = await resolve(place.host, port) if resolve else [place.host]
                return await first_of(hosts, connect)
        except TimeoutError as error:
            raise NotConnectedInTimeError("no connection in time") from error
        except (OSError, ssl.SSLError, UnicodeError) as error:
            raise NotConnectedError(str(error)) from error

    @property
    def reusable(self) -> bool:
        """Whether the next request may go out here: the last answer is read, and nothing came unasked."""
        return self._free and not self._ended and self._answers.clean

    def close(self) -> None:
        """End it, whatever is under way."""
        self._end()
        if self._transport is not None:
            self._transport.abort()

    async def ask(self, request: bytes, wait: float | None, *, bodiless: bool = False) -> Head:
        """Send a request; how its answer begins. The body comes as `pieces` are asked for."""
        assert self._transport is not None
        self._free = False
        self._answers.expect(bodiless=bodiless)
        self._transport.write(request)
        try:
            while (head := self._answers.head()) is None:
                await self._more(wait)
        except NotHttpError as error:
            raise BrokeOffError(str(error)) from error
        return head

    async def pieces(self, head: Head, wait: float | None) -> AsyncGenerator[bytes, None]:
        """The body, as it comes."""
        try:
            while (piece := self._answers.piece()) != b"":
                if piece is None:
                    await self._more(wait)
                else:
                    yield piece
        except NotHttpError as error:
            raise BrokeOffError(str(error)) from error
        self._free = head.lasts

    async def _more(self, wait: float | None) -> None:
        """Until something came, or nothing will."""
        if self._lost is not None:
            raise BrokeOffError(str(self._lost)) from self._lost
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        loop = asyncio.get_running_loop()
        waiter = self._waiter = loop.create_future()
        clock = loop.call_later(wait, self._wake, SilentError("nothing came in time")) if wait else None
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
        self._answers.feed(data)
        if self._answers.waiting > _FULL and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> bool:
        self._end()
        self._wake()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = exc
        self._end()
        self._wake()

    def _end(self) -> None:
        self._ended = True
        self._answers.end()


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
