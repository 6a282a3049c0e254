"""Requests to a tracker, what its errors mean, and how long its silence is borne."""

from __future__ import annotations

import asyncio
import inspect
import json
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import MISSING, dataclass, field, fields
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar
from urllib.parse import quote, urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx
from pydantic import TypeAdapter, ValidationError

from benchmark_service.http_client import is_loopback
from sandboxes.retry import Backoff, Retries, parse_retry_after
from valkyrie import __version__, errors
from valkyrie.domain import Json
from valkyrie.errors import (
    AccessError,
    InfrastructureError,
    MissingSecretError,
    StoreError,
    UnknownError,
    UsageError,
    UserError,
    ValkyrieError,
)

BUSY = frozenset({502, 503, 504})
"""The tracker, or what stands before it, may answer a little later."""
ADDRESS_HINT = "config key tracker_url, or TRACKER_SERVICE_URL"
KEY_HINT = "config key api_key, or VALKYRIE_API_KEY"
_BY_STATUS: dict[int, type[ValkyrieError]] = {
    400: UsageError,
    401: AccessError,
    403: AccessError,
    404: UnknownError,
    405: UsageError,
    409: UserError,
    413: UserError,
    422: UserError,
}
_LONGEST = 2000


class TrackerUnreachableError(InfrastructureError):
    """No answer came from the tracker."""

    default_cause = "tracker_unreachable"

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent
        """The request may have arrived: what it asked for may have been done."""


class BusyError(Exception):
    """The tracker says that it cannot answer now; `error` is what to raise when it stays so."""

    def __init__(self, error: ValkyrieError) -> None:
        super().__init__(str(error))
        self.error = error


def later(error: ValkyrieError) -> bool:
    """Return whether the tracker cannot answer now; what fails behind it (a service, a disk) is an answer."""
    return isinstance(error, StoreError) or error.cause in ("busy", "tracker_unreachable")


def unreachable(url: str, reason: str, *, sent: bool) -> TrackerUnreachableError:
    return TrackerUnreachableError(
        f"The tracker at {url} does not answer: {reason}. Is it running, and is its address right "
        f"({ADDRESS_HINT})?",
        sent=sent,
    )


def strange(url: str, what: str) -> InfrastructureError:
    """Return the error for what answers and is no tracker, or one of another version."""
    return InfrastructureError(
        f"What answers at {url} does not speak as a tracker of this version: {what[:_LONGEST]}. Is its "
        f"address right ({ADDRESS_HINT}), and is it of the same version?",
        cause="tracker_strange",
    )


def refusal(url: str, status: int, body: bytes, retry_after: float | None) -> ValkyrieError:
    """Return the error an answer stands for: of the class the tracker raised, with its words."""
    try:
        said = json.loads(body)["error"]
        error = _again(said, retry_after)
    except (ValueError, KeyError, TypeError):
        error = _unexplained(url, status, retry_after)
    if isinstance(error, AccessError):
        return AccessError(f"{error} (tracker {url}; the key comes from {KEY_HINT})", cause=error.cause)
    return error


def _again(said: dict[str, Any], retry_after: float | None) -> ValkyrieError:
    kind = getattr(errors, str(said["type"]), None)
    message = str(said["message"])
    if kind is MissingSecretError:
        missing = _missing(said.get("missing"))
        return MissingSecretError(message, missing=missing, cause=said.get("cause"))
    if not (isinstance(kind, type) and issubclass(kind, ValkyrieError)):
        kind = ValkyrieError
    error: ValkyrieError = kind(message, cause=said.get("cause"), retry_after=retry_after)
    return error


def _missing(named: Any) -> dict[str, str]:
    """Environment variable → secret name; a bare list of names is taken for both."""
    if isinstance(named, dict):
        return {str(variable): str(name) for variable, name in named.items()}
    return {str(name): str(name) for name in named or ()}


def _unexplained(url: str, status: int, retry_after: float | None) -> ValkyrieError:
    """An answer that is not in the tracker's form: a proxy's, or another program's."""
    if status in BUSY or status == 429:
        return InfrastructureError(
            f"The tracker at {url} cannot answer now (HTTP {status}).",
            cause="tracker_unreachable",
            retry_after=retry_after,
        )
    kind = _BY_STATUS.get(status)
    if kind is None or status in (404, 405):
        return strange(url, f"it answered HTTP {status}")
    return kind(f"The tracker at {url} refused the request (HTTP {status}).")


# How long a tracker that does not answer is asked again.

PATIENT_S = 60.0
"""A stream that was heard before: long enough for a tracker to be restarted."""
QUICK_S = 3.0
"""A single request nobody answers: long enough for a hiccup, short enough for a wrong address."""
BUSY_S = 20.0
"""A single request that is answered with `not now`."""
BACKOFF = Backoff(first_s=0.1, longest_s=5.0)

Result = TypeVar("Result")
Silence = TrackerUnreachableError | BusyError


@dataclass(frozen=True, slots=True)
class SilenceLimits:
    """Seconds without an answer, by what is waited for."""

    stream: float = PATIENT_S
    quick: float = QUICK_S
    busy: float = BUSY_S

    @classmethod
    def within(cls, seconds: float) -> SilenceLimits:
        """Return the usual limits, none of them longer than this."""
        return cls(seconds, min(QUICK_S, seconds), min(BUSY_S, seconds))


class TrackerRetries:
    """The tries of one request, or of one stream since it was last heard."""

    def __init__(self, limits: SilenceLimits) -> None:
        self._limits = limits
        self._streaming = False
        self._retries = Retries(BACKOFF)

    def heard(self) -> None:
        """Note that a stream spoke: from now on its silence is borne longer, each time anew."""
        self._streaming = True
        self._retries.reset()

    async def pause(self, silence: Silence) -> None:
        """Sleep before the next try; raise the error of this one if there is none."""
        busy = isinstance(silence, BusyError)
        error = silence.error if isinstance(silence, BusyError) else silence
        limit = self._limits.stream if self._streaming else self._limits.busy if busy else self._limits.quick
        await self._retries.pause(error, error.retry_after, within_s=limit)


async def persist(
    once: Callable[[], Awaitable[Result]], limits: SilenceLimits, *, repeatable: bool
) -> Result:
    """Do it until it is answered. What may not be done twice is repeated only if it never arrived."""
    retries = TrackerRetries(limits)
    while True:
        try:
            return await once()
        except TrackerUnreachableError as error:
            if error.sent and not repeatable:
                raise unknown_outcome(error) from None
            await retries.pause(error)
        except BusyError as error:
            if not repeatable:
                raise error.error from None
            await retries.pause(error)


def unknown_outcome(error: TrackerUnreachableError) -> TrackerUnreachableError:
    """Return the error for a request that arrived, perhaps, and was answered to nobody."""
    return TrackerUnreachableError(
        f"{error} Whether it did what was asked is not known: look (`valk run list`, `valk run fetch`) "
        "before asking again.",
        sent=True,
    )


# Requests to a tracker: the key, the address, what is asked again, and what an answer must look like.

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
        return self.view(kind, await self.ask(call))

    async def exists(self, path: str) -> bool:

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
    return None if is_loopback(url) else proxy


async def _pieces(file: Path) -> AsyncIterator[bytes]:
    with await asyncio.to_thread(file.open, "rb") as opened:
        while piece := await asyncio.to_thread(opened.read, CHUNK):
            yield piece


async def _beginning(response: httpx.Response) -> bytes:
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


# Requests as they are sent: what they say beyond their defaults, as a body, as a query, as keywords.

Fields = ParamSpec("Fields")
Request = TypeVar("Request")
Verbs = TypeVar("Verbs")
Answer = TypeVar("Answer")


def fields_of(
    kind: Callable[Fields, Request],
) -> Callable[
    [Callable[[Verbs, str, Request], Awaitable[Answer]]],
    Callable[Concatenate[Verbs, str, Fields], Coroutine[Any, Any, Answer]],
]:
    """Let people call a verb with the fields of its request: `resume(ref, concurrency=3)`."""

    def decorate(
        verb: Callable[[Verbs, str, Request], Awaitable[Answer]],
    ) -> Callable[Concatenate[Verbs, str, Fields], Coroutine[Any, Any, Answer]]:
        @wraps(verb)
        async def call(self: Verbs, ref: str, /, *args: Fields.args, **fields: Fields.kwargs) -> Answer:
            return await verb(self, ref, kind(*args, **fields))

        first = list(inspect.signature(verb).parameters.values())[:2]
        rest = inspect.signature(kind).parameters.values()
        call.__signature__ = inspect.Signature([*first, *rest])  # type: ignore[attr-defined]
        return call

    return decorate


def changed(view: Any) -> Json:
    """Return what a request says beyond its defaults: an older tracker need not know the rest."""
    said: Json = {}
    for one in fields(view):
        value = getattr(view, one.name)
        default = one.default_factory() if one.default_factory is not MISSING else one.default
        if value is not None and value != default:
            said[one.name] = value if not isinstance(value, Mapping) else dict(value)
    return said


def params(values: Mapping[str, Any]) -> Params:
    """Query parameters that have a value; of a sequence one for each."""
    found: list[tuple[str, str]] = []
    for name, value in values.items():
        many = value if isinstance(value, tuple | list) else [value]
        found += [
            (name, str(one).lower() if isinstance(one, bool) else str(one)) for one in many if one is not None
        ]
    return found


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
