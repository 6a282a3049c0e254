"""An HTTP client over aiohttp: kept connections, checked addresses, and errors that say how far a request
came."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
import ssl
import urllib.request
from base64 import b64encode
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import aiohttp
    from aiohttp.abc import AbstractResolver, ResolveResult
    from yarl import URL

MOST_HEAD = 64 * 1024
"""Bytes of an answer's headers."""
KEEPALIVE_S = 4.0
"""Connections are let go of before servers do it (uvicorn after 5 s), so that none breaks in use."""

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Return the addresses to connect to for a host and port, best first; OSError when there are none."""


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
    if _is_this_machine(host) or urllib.request.proxy_bypass_environment(host):  # type: ignore[attr-defined]
        return None
    proxies = urllib.request.getproxies_environment()
    return proxies.get(scheme) or proxies.get("all")


def same_place(old: str, new: str) -> bool:
    """Return whether a redirect stays with the service: headers hold credentials no other host may see."""
    before, after = urlsplit(old), urlsplit(new)
    if before.hostname != after.hostname:
        return False
    upgraded = before.scheme in ("http", "ws") and after.scheme in ("https", "wss")
    return upgraded or (before.scheme, before.port) == (after.scheme, after.port)


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


class UndecodableError(HttpConnectionError):
    """The body is not compressed in the way its headers say."""


@dataclass(frozen=True, slots=True)
class Incoming:
    """An answer whose body is still to be read."""

    status: int
    headers: Mapping[str, str]
    """Found by name in any case."""
    pieces: AsyncIterator[bytes]
    """The body, decompressed as it is read. Raises HttpConnectionError."""


class HttpClient:
    """Sends requests over connections kept for the next one; how many are under way is up to the callers.

    No proxy is used for this very machine. No redirect is followed.
    """

    def __init__(
        self,
        headers: Mapping[str, str] | None = None,
        *,
        connect_s: float,
        read_s: float,
        keepalive_s: float = KEEPALIVE_S,
        resolve: Resolve | None = None,
        tls: ssl.SSLContext | None = None,
        cookies: bool = False,
        proxies: bool = True,
    ) -> None:
        """`resolve` says which addresses connections go to, without a proxy; left out, the system's resolver.
        `read_s` is the time between two signs of life. `proxies`: those of the environment are used."""
        self.headers = dict(headers or {})
        self._connect_s, self._read_s, self._keepalive_s = connect_s, read_s, keepalive_s
        self._resolve = resolve
        self._tls = tls
        self._cookies = cookies
        self._use_proxies = proxies
        self._proxies: dict[tuple[str, str], str | None] = {}
        self._sessions: dict[bool, aiohttp.ClientSession] = {}
        """The one for proxies apart: their addresses are not the callers' to choose."""

    async def close(self) -> None:
        """Close all connections."""
        while self._sessions:
            await self._sessions.popitem()[1].close()
            await asyncio.sleep(0)  # aiohttp closes its sockets in the loop's next turn

    @asynccontextmanager
    async def request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str] | None = None,
        content: bytes | AsyncIterable[bytes] | None = None,
    ) -> AsyncIterator[Incoming]:
        """Send a request; the answer's body is read inside. Raises HttpConnectionError."""
        with _told_plainly():
            place, authorization = _place(url)
            proxy = self._proxy(place)
            if self._resolve is not None and proxy is None:
                await self._check_literal(place)
            response = await self._session(proxied=proxy is not None).request(
                method,
                place,
                data=content,
                headers={**(headers or {}), **authorization},
                proxy=proxy,
                ssl=(self._tls or trusted_context()) if place.scheme == "https" else True,
                allow_redirects=False,
            )
        try:
            yield Incoming(response.status, response.headers, _pieces(response))
        finally:
            response.release()

    def _proxy(self, place: URL) -> str | None:
        if not self._use_proxies:
            return None
        key = (place.scheme, place.raw_host or "")
        if key not in self._proxies:
            self._proxies[key] = proxy_for(*key)
        return self._proxies[key]

    async def _check_literal(self, place: URL) -> None:
        """Have an address that needs no resolver checked too; aiohttp connects to it without asking."""
        host = place.raw_host or ""
        if _is_address(host):
            try:
                await cast(Resolve, self._resolve)(host, place.port or 0)
            except OSError as error:
                raise NotConnectedError(str(error)) from error

    def _session(self, *, proxied: bool) -> aiohttp.ClientSession:
        if proxied not in self._sessions:
            import aiohttp

            checked = cast("AbstractResolver", _CheckedResolver(self._resolve)) if self._resolve else None
            self._sessions[proxied] = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=0,
                    keepalive_timeout=self._keepalive_s,
                    resolver=checked if checked and not proxied else aiohttp.ThreadedResolver(),
                    use_dns_cache=False,
                ),
                timeout=aiohttp.ClientTimeout(total=None, connect=self._connect_s, sock_read=self._read_s),
                cookie_jar=aiohttp.CookieJar(unsafe=True) if self._cookies else aiohttp.DummyCookieJar(),
                headers=self.headers,
                max_line_size=MOST_HEAD,
                max_field_size=MOST_HEAD,
            )
        return self._sessions[proxied]


class _CheckedResolver:
    """Gives aiohttp the addresses that were checked, and no others."""

    def __init__(self, resolve: Resolve) -> None:
        self._resolve = resolve

    async def resolve(
        self,
        host: str,
        port: int = 0,
        family: int = socket.AF_UNSPEC,  # noqa: ARG002
    ) -> list[ResolveResult]:
        return [
            {
                "hostname": host,
                "host": address,
                "port": port,
                "family": socket.AF_INET6 if ":" in address else socket.AF_INET,
                "proto": 0,
                "flags": socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            }
            for address in await self._resolve(host, port)
        ]

    async def close(self) -> None:
        """Nothing is held."""


@cache
def trusted_context() -> ssl.SSLContext:
    """Return whom to trust; reading the certificates takes longer than many a request."""
    import httpx

    return httpx.create_ssl_context()


@lru_cache(maxsize=64)
def _place(url: str) -> tuple[URL, Mapping[str, str]]:
    """A URL for aiohttp, spelled as it is where it can travel so; user and password as a header."""
    from yarl import URL

    place = URL(url, encoded=url.isascii() and url.isprintable() and " " not in url)
    if place.user is None:
        return place, {}
    credentials = b64encode(f"{place.user}:{place.password or ''}".encode()).decode()
    return place.with_user(None), {"Authorization": f"Basic {credentials}"}


async def _pieces(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    with _told_plainly():
        async for piece in response.content.iter_any():
            yield piece


@contextmanager
def _told_plainly() -> Iterator[None]:
    """Raise aiohttp's errors as ours; the words of some hold the URL with its query."""
    import aiohttp
    from aiohttp.http_exceptions import ContentEncodingError

    try:
        yield
    except aiohttp.ConnectionTimeoutError as error:
        raise NotConnectedInTimeError("no connection in time") from error
    except aiohttp.ServerTimeoutError as error:
        raise SilentError("nothing came in time") from error
    except aiohttp.ClientConnectorCertificateError as error:
        raise NotConnectedError(str(error.certificate_error)) from error
    except aiohttp.ClientConnectorError as error:
        raise NotConnectedError(str(error.os_error)) from error
    except aiohttp.ClientHttpProxyError as error:
        raise NotConnectedError(f"the proxy answered {error.status}") from error
    except aiohttp.InvalidURL as error:
        raise NotConnectedError("it is no address") from error
    except aiohttp.ServerDisconnectedError as error:
        raise BrokeOffError("the connection ended before an answer") from error
    except aiohttp.ClientResponseError as error:
        raise BrokeOffError(error.message) from error
    except aiohttp.ClientPayloadError as error:
        if isinstance(error.__cause__, ContentEncodingError):
            raise UndecodableError(error.__cause__.message) from error
        raise BrokeOffError("the connection broke off") from error
    except aiohttp.ClientError as error:
        raise BrokeOffError(str(error) or "the connection broke off") from error


def _is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
