"""Requests to a tracker: the key, the address, what is asked again, and what an answer must look like."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx
from pydantic import TypeAdapter, ValidationError

from sandboxes.retry import parse_retry_after
from valkyrie import __version__
from valkyrie.client.faults import BUSY, BusyError, later, refusal, strange, unreachable
from valkyrie.client.retries import SilenceLimits, persist
from valkyrie.errors import AccessError, UsageError

CONNECT_S = 5.0
CHUNK = 1 << 18
_LARGEST_REFUSAL = 1 << 20
# Not DELETE: repeated after a lost answer, it would say that nothing was there.
_REPEATABLE = frozenset({"GET", "HEAD", "PUT"})

View = TypeVar("View")
Params = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class TrackerCall:
    """One request, so described that it can be made again."""

    method: str
    path: str
    params: Params = ()
    body: Any = None
    """Sent as JSON."""
    file: Path | None = None
    """Sent as it is, piece by piece."""
    headers: Mapping[str, str] = field(default_factory=dict)
    repeatable: bool | None = None
    """Whether it may be done twice; None leaves it to the method."""

    @property
    def safe_to_repeat(self) -> bool:
        return self.method in _REPEATABLE if self.repeatable is None else self.repeatable


class Connection:
    """A pool of connections to one tracker; neither its repr nor its errors hold the key."""

    def __init__(
        self,
        url: str,
        api_key: str | None,
        *,
        timeout: float,
        limits: SilenceLimits,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.url = checked_url(url)
        self.limits = limits
        self.on_line: Callable[[str | None], None] = lambda _lost: None
        """Called with why a stream is not heard any more, and with None when it is heard again."""
        self._adapters: dict[Any, TypeAdapter[Any]] = {}
        self._client = httpx.AsyncClient(
            headers={"User-Agent": f"valkyrie/{__version__}", **_authorization(api_key)},
            timeout=httpx.Timeout(timeout, connect=min(CONNECT_S, timeout)),
            transport=transport or _transport(self.url),
            follow_redirects=False,
        )

    def __repr__(self) -> str:
        return f"Connection({self.url!r})"

    async def close(self) -> None:
        await self._client.aclose()

    async def ask(self, call: TrackerCall) -> Any:
        """Return the JSON a request is answered with; None for an empty answer."""

        async def once() -> Any:
            async with self.stream(call) as response:
                return self._json(await response.aread())

        return await persist(once, self.limits, repeatable=call.safe_to_repeat)

    async def get(self, kind: type[View], call: TrackerCall) -> View:
        """Return the answer as a view."""
        return self.view(kind, await self.ask(call))

    async def exists(self, path: str) -> bool:
        """Return whether something is there."""

        async def once() -> bool:
            with self._translated():
                response = await self._client.head(self.url + path)
            if response.status_code == httpx.codes.NOT_FOUND:
                return False
            self._check(response, b"")
            return True

        return await persist(once, self.limits, repeatable=True)

    async def download(self, call: TrackerCall, target: Path) -> None:
        """The answer's bytes in a file, never all of them in memory."""

        async def once() -> None:
            with await asyncio.to_thread(target.open, "wb") as file:
                async with self.stream(call) as response:
                    async for piece in response.aiter_bytes(CHUNK):
                        await asyncio.to_thread(file.write, piece)

        await persist(once, self.limits, repeatable=call.safe_to_repeat)

    @asynccontextmanager
    async def stream(
        self, call: TrackerCall, *, silence_s: float | None = -1
    ) -> AsyncIterator[httpx.Response]:
        """An answer to be read piece by piece; one that is a refusal is raised.

        `silence_s`: how long the tracker may say nothing, when that is not the client's own timeout.
        """
        request = self._request(call)
        if silence_s is None or silence_s >= 0:
            request.extensions["timeout"] = {**request.extensions["timeout"], "read": silence_s}
        with self._translated():
            response = await self._client.send(request, stream=True)
            try:
                if not response.is_success:
                    self._check(response, await _beginning(response))
                yield response
            finally:
                await response.aclose()

    def view(self, kind: type[View], data: Any) -> View:
        """Plain data as a view; keys it does not know are passed over."""
        adapter = self._adapters.get(kind) or self._adapters.setdefault(kind, TypeAdapter(kind))
        try:
            found: View = adapter.validate_python(data)
            return found
        except ValidationError as error:
            wrong = "; ".join(
                f"{'.'.join(map(str, one['loc'])) or 'answer'}: {one['msg']}"
                for one in error.errors(include_input=False, include_url=False)[:3]
            )
            raise strange(self.url, wrong) from None

    def _request(self, call: TrackerCall) -> httpx.Request:
        content: bytes | AsyncIterator[bytes] | None = None
        headers = dict(call.headers)
        if call.file is not None:
            content = _pieces(call.file)
            headers["Content-Length"] = str(call.file.stat().st_size)
            headers["Content-Type"] = "application/zip"
        elif call.body is not None:
            content = encoded(call.body)
            headers["Content-Type"] = "application/json"
        return self._client.build_request(
            call.method,
            self.url + call.path,
            params=list(call.params) or None,
            content=content,
            headers=headers,
        )

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Troubles of the network in our words."""
        try:
            yield
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            raise unreachable(self.url, _words(error), sent=False) from None
        except httpx.RequestError as error:
            raise unreachable(self.url, _words(error), sent=True) from None

    def _check(self, response: httpx.Response, body: bytes) -> None:
        if response.is_success:
            return
        if response.is_redirect:
            where = response.headers.get("location", "elsewhere")
            raise strange(self.url, f"it sends us to {where[:200]}")
        retry_after = parse_retry_after(response.headers.get("retry-after"))
        error = refusal(self.url, response.status_code, body, retry_after)
        raise BusyError(error) if response.status_code in BUSY and later(error) else error

    def _json(self, content: bytes) -> Any:
        if not content:
            return None
        try:
            return json.loads(content)
        except ValueError:
            raise strange(self.url, "its answer is not JSON") from None


def path(*parts: str) -> str:
    """A path of the API; each part is one segment whatever is in it."""
    return "/v1/" + "/".join(quote(part, safe="") for part in parts)


def checked_url(url: str) -> str:
    """A tracker's address without its last slash, or UsageError."""
    try:
        parts = urlsplit(url.strip())
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fits = False
    if not fits or "?" in url or "#" in url:
        raise UsageError("A tracker's address looks like https://tracker.example.com or http://host:port.")
    if "@" in parts.netloc:
        raise UsageError("A tracker's address holds no user or password; the API key is given apart from it.")
    return url.strip().rstrip("/")


def encoded(body: Any) -> bytes:
    """JSON; half a surrogate pair, which UTF-8 cannot carry, becomes `?`."""
    return json.dumps(body, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")


def _authorization(api_key: str | None) -> dict[str, str]:
    if not api_key:
        return {}
    if not (api_key.isascii() and api_key.isprintable()) or " " in api_key:
        # Said here, without it: the library would quote it.
        raise AccessError("The API key has characters no key has; copy it again.")
    return {"Authorization": f"Bearer {api_key}"}


def _transport(url: str) -> httpx.AsyncBaseTransport:
    """Notices a host that went away while nothing was being said. Certificates are loaded only for https."""
    numbers = {"TCP_KEEPIDLE": 20, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}  # not every system has all
    alive = [
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in numbers.items()
        if hasattr(socket, name)
    ]
    tls = True if url.startswith("https:") else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return httpx.AsyncHTTPTransport(
        verify=tls,
        proxy=_proxy(url),
        limits=httpx.Limits(max_keepalive_connections=20),  # streams hold one each, however many there are
        socket_options=[(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), *alive],
    )


def _proxy(url: str) -> str | None:
    """Return the environment's proxy for this address; none leads to this machine itself."""
    parts = urlsplit(url)
    proxy = getproxies().get(parts.scheme)
    if not proxy or proxy_bypass(parts.netloc):
        return None
    from benchmark_service.http_connections import is_loopback

    return None if is_loopback(url) else proxy


async def _pieces(file: Path) -> AsyncIterator[bytes]:
    with await asyncio.to_thread(file.open, "rb") as opened:
        while piece := await asyncio.to_thread(opened.read, CHUNK):
            yield piece


async def _beginning(response: httpx.Response) -> bytes:
    """As much of a refusal as one can be long."""
    content = b""
    async for piece in response.aiter_bytes():
        content += piece
        if len(content) > _LARGEST_REFUSAL:
            break
    return content


def _words(error: Exception) -> str:
    if isinstance(error, httpx.TimeoutException):
        return "it took too long"
    return str(error).rstrip(".") or "the connection broke off"
