"""httpx over connections of our own, and past them where the environment names a proxy."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import httpx

from benchmark_service import wires
from benchmark_service.addresses import proxy_for
from benchmark_service.http1 import NotHttpError, request
from benchmark_service.wire import (
    BrokeOffError,
    NotConnectedError,
    NotConnectedInTimeError,
    Place,
    SilentError,
    WireError,
)

_AS_HTTPX: dict[type[WireError], type[httpx.TransportError]] = {
    NotConnectedInTimeError: httpx.ConnectTimeout,
    NotConnectedError: httpx.ConnectError,
    SilentError: httpx.ReadTimeout,
    BrokeOffError: httpx.RemoteProtocolError,
}


class Lanes(httpx.AsyncBaseTransport):
    """A transport for httpx.

    Proxies of the environment are used, but not for this very machine. How many requests are under way is
    up to the callers.
    """

    def __init__(self, own: wires.Wires | None = None) -> None:
        self._wires = own or wires.Wires()
        self._proxied: dict[str, httpx.AsyncHTTPTransport] = {}
        self._proxies: dict[Place, str | None] = {}

    async def handle_async_request(self, asked: httpx.Request) -> httpx.Response:
        place = Place(asked.url.scheme, asked.url.host, asked.url.port)
        if place not in self._proxies:
            self._proxies[place] = proxy_for(place.scheme, place.host)
        if proxy := self._proxies[place]:
            return await self._through(proxy).handle_async_request(asked)
        content = await asked.aread()
        try:
            spoken = request(asked.method, asked.url.raw_path, asked.headers.raw, content)
        except NotHttpError as error:
            raise httpx.LocalProtocolError(str(error)) from error
        timeouts = asked.extensions.get("timeout", {})
        with _told_as_httpx_does():
            answer = await self._wires.ask(place, spoken, timeouts, bodiless=asked.method == "HEAD")
        return as_httpx(answer, asked)

    async def aclose(self) -> None:
        self._wires.close()
        while self._proxied:
            await self._proxied.popitem()[1].aclose()

    def _through(self, proxy: str) -> httpx.AsyncHTTPTransport:
        if proxy not in self._proxied:
            self._proxied[proxy] = httpx.AsyncHTTPTransport(verify=wires.trusted(), proxy=proxy)
        return self._proxied[proxy]


def as_httpx(answer: wires.Answer, asked: httpx.Request | None = None) -> httpx.Response:
    """An answer with all that httpx makes of one; its body is still to be read."""
    headers = list(answer.head.headers)
    return httpx.Response(answer.head.status, headers=headers, stream=_Body(answer), request=asked)


class _Body(httpx.AsyncByteStream):
    """An answer's body as httpx wants it."""

    def __init__(self, answer: wires.Answer) -> None:
        self._answer = answer

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _told_as_httpx_does():
            async for piece in self._answer.pieces:
                yield piece

    async def aclose(self) -> None:
        await self._answer.aclose()


@contextmanager
def _told_as_httpx_does() -> Iterator[None]:
    try:
        yield
    except WireError as error:
        raise _AS_HTTPX[type(error)](str(error)) from error
