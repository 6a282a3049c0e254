"""HTTP/1.1 connections of a client: where a URL leads, requests and answers as bytes, and connections kept
for the next request."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import re
import ssl
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import httptools


def shown_url(url: str) -> str:
    """A URL as messages may show it: without user, password and query."""
    head, separator, rest = url.partition("://")
    if not separator:
        return url[:200]
    place = re.split(r"[?#]", rest, maxsplit=1)[0]
    authority, slash, path = place.partition("/")
    return f"{head}://{authority.rpartition('@')[2]}{slash}{path}"[:300]


def is_loopback(url: str) -> bool:
    """Return whether a URL names this very machine."""
    return _is_this_machine(urlsplit(url).hostname or "")


def proxy_for(scheme: str, host: str) -> str | None:
    """The proxy the environment names for a place; none for this very machine."""
    if _is_this_machine(host):
        return None
    import urllib.request

    if urllib.request.proxy_bypass_environment(host):  # type: ignore[attr-defined]
        return None
    proxies = urllib.request.getproxies_environment()
    return proxies.get(scheme) or proxies.get("all")


def _is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def same_place(old: str, new: str) -> bool:
    """Return whether a redirect stays with the service: headers hold credentials no other host may see."""
    before, after = urlsplit(old), urlsplit(new)
    if before.hostname != after.hostname:
        return False
    upgraded = before.scheme in ("http", "ws") and after.scheme in ("https", "wss")
    return upgraded or (before.scheme, before.port) == (after.scheme, after.port)


# HTTP/1.1 as a client speaks it, apart from any connection: a request as bytes, bytes as answers.

MOST_HEAD = 64 * 1024
"""Bytes of headers, of trailers, and of anything else that is no body."""

Header = tuple[bytes, bytes]

_REQUEST = re.compile(
    rb"[A-Z]+ [!-~]+ HTTP/1\.1\r\n(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+: [\t -~\x80-\xff]*\r\n)*\r\n"
)


class NotHttpError(Exception):
    """What came, or is to go out, is not HTTP/1.1."""


def request_bytes(method: str, target: bytes, headers: Sequence[Header], content: bytes) -> bytes:
    """A request, as it goes out. Whether its length is among the headers is up to the caller."""
    lines = b"".join([b"%s: %s\r\n" % header for header in headers])
    head = b"%s %s HTTP/1.1\r\n%s\r\n" % (method.encode("ascii"), target, lines)
    # A line too many is one that came in with a value.
    if not _REQUEST.fullmatch(head) or head.count(b"\n") != len(headers) + 2:
        raise NotHttpError("a header, the method or the target has characters it cannot have")
    return head + content


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """How an answer begins."""

    status: int
    headers: Sequence[Header]
    """Names in lower case, in the order they came."""
    lasts: bool
    """Whether the connection may be used again."""


class AnswerParser:
    """The answers that come over one connection, one after the other. Raises NotHttpError.

    httptools reads them, and calls the methods that begin with `on_`.
    """

    waiting: int
    """Bytes of the body that were not taken yet."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._over = False
        self._stray: str | None = None
        self.expect()
        self._awaited = False

    def expect(self, *, bodiless: bool = False) -> None:
        """A request goes out, so an answer may come; no body follows one to a HEAD."""
        self._bodiless = bodiless
        self._awaited = True
        self._head: AnswerHead | None = None
        self._wrong = self._stray
        self._pieces: deque[bytes] = deque()
        self.waiting = 0
        self._headers: list[Header] = []
        self._framed = False
        self._no_body = 0

    @property
    def clean(self) -> bool:
        """Whether the last answer was read whole, and nothing came after it."""
        return not self._awaited and not self._pieces and self._stray is None

    def feed(self, data: bytes) -> None:
        """Take the bytes that came next."""
        if self._wrong is not None or self._stray is not None:
            return
        self._no_body += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._refuse("it changes to another protocol")
        except httptools.HttpParserError as error:
            self._refuse(str(error.__context__ or error) or "it is no HTTP")
        if self._awaited and self._no_body > MOST_HEAD:
            self._refuse("what is not the body is too long")

    def end(self) -> None:
        """Nothing more will come."""
        self._over = True

    def head(self) -> AnswerHead | None:
        """Return how the answer begins, None where more must come first."""
        if self._head is None:
            self._check("the connection ended before an answer")
        return self._head

    def piece(self) -> bytes | None:
        """The next piece of the body, nothing at its end, None where more must come first."""
        if self._pieces:
            self.waiting -= len(self._pieces[0])
            return self._pieces.popleft()
        if not self._awaited or (self._over and not self._framed and self._wrong is None):
            return b""
        self._check("the connection broke off")
        return None

    def on_message_begin(self) -> None:
        if not self._awaited:
            raise NotHttpError("something came unasked")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head is None:  # else they are trailers
            self._headers.append((name.lower(), value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        headers, self._headers = self._headers, []
        status = self._parser.get_status_code()
        if sum(len(name) + len(value) for name, value in headers) > MOST_HEAD:
            raise NotHttpError("the head is too long")
        if status < 200:
            return  # a word in between
        if any(name == b"transfer-encoding" and value.lower() != b"chunked" for name, value in headers):
            raise NotHttpError("it is coded in a way unknown here")
        self._framed = any(name in (b"content-length", b"transfer-encoding") for name, _ in headers)
        # The parser waits for the body that a HEAD announces and does not get.
        lasts = self._parser.should_keep_alive() and not self._bodiless
        self._head = AnswerHead(status, headers, lasts)
        self._awaited = not self._bodiless

    def on_body(self, body: bytes) -> None:
        self._no_body = 0
        self.waiting += len(body)
        self._pieces.append(body)

    def on_message_complete(self) -> None:
        self._awaited = self._head is None

    def _refuse(self, why: str) -> None:
        if self._awaited:
            self._wrong = why
        else:
            self._stray = why

    def _check(self, at_the_end: str) -> None:
        if self._wrong is not None:
            raise NotHttpError(self._wrong)
        if self._over:
            raise NotHttpError(at_the_end)


# One connection: a request goes out, its answer comes back, the next one follows.


T = TypeVar("T")

HAPPY_EYEBALLS_S = 0.25
"""How long one address of a host is tried before the next is tried beside it."""
_FULL = 256 * 1024
"""Bytes that wait to be read before the connection is told to pause."""

Timeouts = Mapping[str, float | None]
"""Seconds under `connect` and `read`, as httpx names them; none where nothing is said."""
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Where to connect to for a host and port, best first; OSError when to nothing."""


class HttpConnectionError(Exception):
    """A request got no answer."""


class NotConnectedError(HttpConnectionError):
    """No connection came about, so nothing was sent."""


class NotConnectedInTimeError(NotConnectedError):
    """The other side did not take the connection in time."""


class SilentError(HttpConnectionError):
    """Nothing came in time."""


class BrokeOffError(HttpConnectionError):
    """The connection ended, or what came over it is not HTTP."""


class Origin(NamedTuple):
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


class HttpConnection(asyncio.Protocol):
    """A connection, for one request at a time. Raises WireError."""

    def __init__(self) -> None:
        self._answers = AnswerParser()
        self._waiter: asyncio.Future[None] | None = None
        self._transport: asyncio.Transport | None = None
        self._lost: Exception | None = None
        self._ended = False
        self._paused = False
        self._free = True

    @classmethod
    async def to(
        cls,
        place: Origin,
        trust: ssl.SSLContext | None,
        timeouts: Timeouts,
        resolve: Resolve | None = None,
    ) -> HttpConnection:
        """A new connection, at an address that `resolve` gives if there is one.

        A secure one where it is said whom to trust.
        """
        options: dict[str, Any] = {"ssl": trust, "server_hostname": place.host} if trust else {}
        port = place.port or (443 if trust else 80)

        async def connect(host: str) -> HttpConnection:
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

    async def ask(self, request: bytes, wait: float | None, *, bodiless: bool = False) -> AnswerHead:
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

    async def pieces(self, head: AnswerHead, wait: float | None) -> AsyncGenerator[bytes, None]:
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


# Connections for many requests at once, kept from one request to the next.
#
# httpcore's pool looks at all its connections, for each of them, with every request: a hundred requests at
# once cost it ten times what the requests do. Here a request takes the connection that was used last, or a
# new one.


KEEPALIVE_S = 4.0
"""Connections are let go of before servers do it (uvicorn after 5 s), so that none breaks in use."""
MOST_IDLE = 256
"""Connections kept to one place; those beyond are closed after use."""


class ConnectionPool:
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
        self._idle: dict[Origin, list[tuple[float, HttpConnection]]] = {}
        self._closed = False

    async def ask(
        self, place: Origin, request: bytes, timeouts: Timeouts, *, bodiless: bool = False
    ) -> PooledAnswer:
        """Send a request; its answer, which is to be closed. Raises WireError."""
        trust = trusted_context() if place.scheme == "https" else None
        wire = self._waiting(place) or await HttpConnection.to(place, trust, timeouts, self._resolve)
        wait = timeouts.get("read")
        try:
            head = await wire.ask(request, wait, bodiless=bodiless)
        except BaseException:
            wire.close()
            raise
        return PooledAnswer(head, wire.pieces(head, wait), lambda: self._give_back(wire, place))

    def close(self) -> None:
        """Let go of all connections; those in use follow as they are given back."""
        self._closed = True
        for idle in self._idle.values():
            for _, wire in idle:
                wire.close()
        self._idle.clear()

    def _waiting(self, place: Origin) -> HttpConnection | None:
        idle = self._idle.get(place)
        while idle:
            until, wire = idle.pop()
            if wire.reusable and time.monotonic() < until:
                return wire
            wire.close()
        return None

    def _give_back(self, wire: HttpConnection, place: Origin) -> None:
        """Keep a connection whose answer was read, or close it."""
        idle = self._idle.setdefault(place, [])
        if self._closed or not wire.reusable or len(idle) >= self._most_idle:
            wire.close()
        else:
            idle.append((time.monotonic() + self._keepalive_s, wire))


class PooledAnswer:
    """An answer whose body is still to be read; its end frees the connection."""

    def __init__(
        self, head: AnswerHead, pieces: AsyncGenerator[bytes, None], done: Callable[[], None]
    ) -> None:
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
def trusted_context() -> ssl.SSLContext:
    """Return whom to trust; reading the certificates takes longer than many a request."""
    import httpx

    return httpx.create_ssl_context()
