"""Connections for many requests at once.

httpcore's pool looks at all its connections, for each of them, with every request: a hundred requests at once
cost it ten times what the requests do. Here a request takes the connection that was used last, or a new one.
"""

from __future__ import annotations

import ssl
import time
import urllib.request
from collections.abc import AsyncIterator
from functools import cache

import httpx

from benchmark_service.client_http import is_loopback
from benchmark_service.wire import Resolve, Wire

KEEPALIVE_S = 4.0
"""Connections are let go of before servers do it (uvicorn after 5 s), so that none breaks in use."""
MOST_IDLE = 256
"""Connections kept to one place; those beyond are closed after use."""

_Place = tuple[str, str, int | None]


class Lanes(httpx.AsyncBaseTransport):
    """A transport for httpx, or to be asked directly.

    Proxies of the environment are used, but not for this very machine. How many requests are under way is
    up to the callers.
    """

    def __init__(
        self,
        *,
        keepalive_s: float = KEEPALIVE_S,
        most_idle: int = MOST_IDLE,
        resolve: Resolve | None = None,
    ) -> None:
        """`resolve` says where connections go to; a proxy's are its own affair."""
        self._keepalive_s, self._most_idle = keepalive_s, most_idle
        self._resolve = resolve
        self._idle: dict[_Place, list[tuple[float, Wire]]] = {}
        self._proxied: dict[str, httpx.AsyncHTTPTransport] = {}
        self._proxies: dict[_Place, str | None] = {}
        self._closed = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url
        place = (url.scheme, url.host, url.port)
        if place not in self._proxies:
            self._proxies[place] = proxy_for(url)
        if proxy := self._proxies[place]:
            return await self._through(proxy).handle_async_request(request)
        timeouts = request.extensions.get("timeout", {})
        trust = trusted() if url.scheme == "https" else None
        wire = self._waiting(place) or await Wire.to(url, trust, timeouts, self._resolve)
        try:
            response = await wire.exchange(request, timeouts)
        except BaseException:
            wire.close()
            raise
        assert isinstance(response.stream, httpx.AsyncByteStream)
        response.stream = _Answer(response.stream, self, wire, place)
        return response

    def give_back(self, wire: Wire, place: _Place) -> None:
        """Keep a connection whose answer was read, or close it."""
        idle = self._idle.setdefault(place, [])
        if self._closed or not wire.reusable or len(idle) >= self._most_idle:
            wire.close()
        else:
            idle.append((time.monotonic() + self._keepalive_s, wire))

    async def aclose(self) -> None:
        self._closed = True
        for idle in self._idle.values():
            for _, wire in idle:
                wire.close()
        self._idle.clear()
        while self._proxied:
            await self._proxied.popitem()[1].aclose()

    def _waiting(self, place: _Place) -> Wire | None:
        idle = self._idle.get(place)
        while idle:
            until, wire = idle.pop()
            if wire.reusable and time.monotonic() < until:
                return wire
            wire.close()
        return None

    def _through(self, proxy: str) -> httpx.AsyncHTTPTransport:
        if proxy not in self._proxied:
            self._proxied[proxy] = httpx.AsyncHTTPTransport(verify=trusted(), proxy=proxy)
        return self._proxied[proxy]


class _Answer(httpx.AsyncByteStream):
    """The body of an answer; its end frees the connection."""

    def __init__(self, stream: httpx.AsyncByteStream, lanes: Lanes, wire: Wire, place: _Place) -> None:
        self._stream, self._lanes, self._wire, self._place = stream, lanes, wire, place
        self._ended = False

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._stream.__aiter__()

    async def aclose(self) -> None:
        if self._ended:
            return
        self._ended = True
        try:
            await self._stream.aclose()
        finally:
            self._lanes.give_back(self._wire, self._place)


@cache
def trusted() -> ssl.SSLContext:
    """Whom to trust; reading the certificates takes longer than many a request."""
    return httpx.create_ssl_context()


def proxy_for(url: httpx.URL) -> str | None:
    """The proxy the environment names for a place."""
    if is_loopback(str(url)) or urllib.request.proxy_bypass_environment(url.host):  # type: ignore[attr-defined]
        return None
    proxies = urllib.request.getproxies_environment()
    return proxies.get(url.scheme) or proxies.get("all")
