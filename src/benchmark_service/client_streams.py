"""A client's streams: one request goes out over a WebSocket, chunks come back until a result."""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from benchmark_service.client_http import (
    DATASET_VERSION_HEADER,
    checked_headers,
    decode_json,
    detail_of,
    encode_json,
    handshake_redirect,
)
from benchmark_service.errors import (
    BenchmarkServiceConnectionError,
    BenchmarkServiceError,
    BenchmarkServiceProtocolError,
    BenchmarkServiceStreamClosedError,
    BenchmarkServiceUnauthenticatedError,
    StreamIdleError,
)
from benchmark_service.http_client import Resolve, is_loopback, proxy_for, shown_url
from benchmark_service.schemas import RESUMABLE, EvaluateResponseRequest, SetupTaskRequest
from sandboxes.errors import MissingSandboxConfigError
from sandboxes.masker import Masker
from sandboxes.retry import Backoff, Retries, parse_retry_after, seconds_until
from sandboxes.types import DaytonaProviderConfig, SandboxProviderConfig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from websockets.asyncio.client import ClientConnection
    from websockets.exceptions import ConnectionClosed, InvalidStatus


_PROVIDER_HEADERS = {
    "DAYTONA_API_KEY": ("x-api-key", "daytona_api_key"),
    "DAYTONA_API_URL": ("x-api-url", "daytona_api_url"),
    "DAYTONA_TARGET": ("x-target", "daytona_target"),
}


def instance_body(
    task_id: str, instance_id: str, provider: SandboxProviderConfig | None, dataset: str | None
) -> dict[str, Any]:
    """The request about a sandbox. The provider is in it only when the three headers cannot say it all."""
    in_headers = isinstance(provider, DaytonaProviderConfig) and provider.DAYTONA_ORGANIZATION_ID is None
    request = SetupTaskRequest(
        task_id=task_id,
        instance_id=instance_id,
        sandbox_provider=None if in_headers else provider,
        dataset=dataset,
    )
    return request.model_dump(mode="json", exclude_none=True)


def resume_body(
    task_id: str, state: dict[str, Any], provider: SandboxProviderConfig | None, dataset: str | None
) -> dict[str, Any]:
    """The request to go on from a saved state, which is the benchmark's own and travels untouched."""
    request = EvaluateResponseRequest(
        task_id=task_id, eval_resume_state={}, sandbox_provider=provider, dataset=dataset
    )
    return {**request.model_dump(mode="json", exclude_none=True), "eval_resume_state": state}


def stream_headers(own: Mapping[str, str], provider: SandboxProviderConfig | None) -> dict[str, str]:
    """A client's headers, and its sandbox provider as the three a service reads."""
    if not isinstance(provider, DaytonaProviderConfig):
        return dict(own)
    settings = provider.headers()
    others = {name: value for name, value in own.items() if name.lower() not in settings}
    return checked_headers({**others, **settings})


def provider_config_in(headers: Mapping[str, str]) -> DaytonaProviderConfig:
    """The sandbox provider that headers name."""
    lower = {name.lower(): value for name, value in headers.items()}
    values = {
        field: next((lower[name] for name in names if lower.get(name)), None)
        for field, names in _PROVIDER_HEADERS.items()
    }
    missing = [_PROVIDER_HEADERS[field][0] for field, value in values.items() if value is None]
    if missing:
        raise MissingSandboxConfigError(f"Missing required headers: {', '.join(missing)}")
    return DaytonaProviderConfig.model_validate(values)


# A client's WebSocket connections: to the addresses it may use, and never away from its service.

_OPEN_TIMEOUT_S = 60
_PING_INTERVAL_S = 30
# A service may keep its event loop busy for minutes while it grades; beyond this it counts as dead.
_PING_TIMEOUT_S = 600
# Whoever stops listening does not wait for a peer that goes on talking.
_CLOSE_TIMEOUT_S = 1
# Frames may be large: only a few wait in memory, the rest in the peer's socket.
_MAX_QUEUED_FRAMES = 2


async def open_socket(
    url: str, path: str, headers: Mapping[str, str], *, max_bytes: int, resolve: Resolve | None = None
) -> ClientConnection:
    """A connection to a service's stream, at an address that `resolve` gives if there is one."""
    place = urlsplit(url)
    host = place.hostname or ""
    if resolve is None or proxy_for(place.scheme, host):
        way: dict[str, Any] = {"proxy": None if is_loopback(url) else True}
        return await _connect(url + path, headers, max_bytes, way)
    addresses = await resolve(host, place.port or (443 if place.scheme == "https" else 80))
    for address in addresses[:-1]:
        with suppress(OSError):
            return await _connect(url + path, headers, max_bytes, {"proxy": None, "host": address})
    return await _connect(url + path, headers, max_bytes, {"proxy": None, "host": addresses[-1]})


async def _connect(
    url: str, headers: Mapping[str, str], max_bytes: int, way: Mapping[str, Any]
) -> ClientConnection:
    from websockets.asyncio.client import connect

    class FaithfulConnect(connect):
        def process_redirect(self, exc: Exception) -> Exception | str:
            return handshake_redirect(self.uri, exc) or exc

    return await FaithfulConnect(
        "ws" + url.removeprefix("http"),
        additional_headers=headers,
        open_timeout=_OPEN_TIMEOUT_S,
        ping_interval=_PING_INTERVAL_S,
        ping_timeout=_PING_TIMEOUT_S,
        close_timeout=_CLOSE_TIMEOUT_S,
        max_size=max_bytes,
        max_queue=_MAX_QUEUED_FRAMES,
        compression=None,
        **way,
    )


# A client's streams: one request goes out over a socket, chunks come back until a result.

TextCallback = Callable[[str], Awaitable[None] | None]
StateCallback = Callable[[dict[str, Any]], Awaitable[None] | None]

RESUME_PATH = "/ws/evaluate-response"
_IDLE_VARIABLE = "BENCHMARK_SERVICE_WS_IDLE_TIMEOUT_S"
_DEFAULT_IDLE_S = 3600.0
_FRAMES_AT_A_TIME = 50
_ERROR_CHARS = 4000
_ISO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)")
_BUSY = frozenset({429, 502, 503, 504})
_UNREADABLE = frozenset({1002, 1003, 1007, 1009})
_ENDED = frozenset({1000, 1005, 1011})
"""Closings by which the service itself ends a stream; the others are breaks."""


def idle_timeout(chosen: float | None) -> float:
    """Return how long a stream may be silent: as chosen, else by the environment; 0 or less is for ever."""
    if chosen is not None:
        return chosen
    text = os.environ.get(_IDLE_VARIABLE, "").strip()
    try:
        return float(text) if text else _DEFAULT_IDLE_S
    except ValueError:
        raise ValueError(f"{_IDLE_VARIABLE} must be a number of seconds, not {text!r}") from None


@dataclass(frozen=True)
class StreamSpec:
    """One stream to open."""

    operation: str
    """As errors name it: "Evaluate instance"."""
    path: str
    body: dict[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict)
    on_message: TextCallback | None = None
    on_error: TextCallback | None = None
    on_resume_state: StateCallback | None = None


@dataclass
class _Seen:
    """What a stream said so far, as much as is kept of it."""

    last_error: BenchmarkServiceError | None = None
    warned_of_type: bool = False
    version_confirmed: bool = False
    frames: int = 0
    heard_at: float = 0.0
    """When the last frame came, by the event loop's clock."""


class ServiceStreams:
    """Opens streams to one service."""

    def __init__(
        self,
        url: str,
        backoff: Backoff,
        *,
        max_chunk_bytes: int,
        idle_timeout_s: float,
        probe: Callable[[], Awaitable[bool]],
        dataset_version: str | None = None,
        resolve: Resolve | None = None,
    ) -> None:
        self._url = url
        self._resolve = resolve
        self._backoff = backoff
        self._max_chunk_bytes = max_chunk_bytes
        self._idle_timeout_s = idle_timeout_s if idle_timeout_s > 0 else None
        self._probe = probe
        self._dataset_version = dataset_version

    async def result(self, spec: StreamSpec) -> Any:
        """Send the request, hand every chunk on, return the data of the result."""
        masker = Masker.from_settings({**spec.headers, **(spec.body.get("sandbox_provider") or {})})
        async with self._socket(spec, masker) as socket:
            clock = asyncio.get_running_loop().time
            seen = _Seen(heard_at=clock())
            while True:
                frame = await self._frame(spec, socket, seen, masker)
                seen.heard_at = clock()
                seen.frames += 1
                if seen.frames % _FRAMES_AT_A_TIME == 0:
                    await asyncio.sleep(0)  # thousands may have come in one piece: let others go on
                chunk = self._chunk(spec, frame, masker)
                if await self._is_result(spec, chunk, seen, masker):
                    return chunk["data"]

    async def evaluation(
        self,
        spec: StreamSpec,
        state: dict[str, Any] | None,
        backoff: Backoff,
        provider: SandboxProviderConfig | None,
    ) -> Any:
        """The result of a stream that may break: each break is resumed from the newest saved state."""
        committed = spec.on_resume_state

        async def keep(newest: dict[str, Any]) -> None:
            nonlocal state
            await _tell(committed, newest)
            state = newest

        spec = replace(spec, on_resume_state=keep)
        retries = Retries(backoff)
        while True:
            try:
                return await self.result(spec)
            except BenchmarkServiceError as error:
                delay = retries.next_delay() if state is not None and _is_break(error) else None
                if state is None or delay is None:
                    raise
            again = f"the stream broke; resuming the evaluation (attempt {retries.failed})"
            await _tell(spec.on_message, again)
            await backoff.sleep(delay)
            body = resume_body(spec.body["task_id"], state, provider, spec.body.get("dataset"))
            spec = replace(spec, operation="Resume evaluation", path=RESUME_PATH, body=body)

    @asynccontextmanager
    async def _socket(self, spec: StreamSpec, masker: Masker) -> AsyncIterator[ClientConnection]:
        from websockets.exceptions import ConnectionClosed

        socket = await self._open(spec, masker)
        try:
            try:
                await socket.send(encode_json(spec.body), text=True)
            except ConnectionClosed:
                pass  # The reason comes with the first read.
            yield socket
        finally:
            try:
                await socket.close()
            finally:
                # Cancelled again while closing: the connection must not outlive the call.
                socket.transport.abort()

    async def _open(self, spec: StreamSpec, masker: Masker) -> ClientConnection:
        """A socket. Opening is repeated freely: the request only goes out afterwards."""
        from websockets.exceptions import InvalidStatus, WebSocketException

        where = f"{spec.operation}: cannot open a stream to {shown_url(self._url + spec.path)}"
        retries = Retries(self._backoff)
        while True:
            try:
                return await self._connect(spec)
            except InvalidStatus as error:
                refused = _refused(where, error, masker)
                busy = refused.status_code in _BUSY
                delay = retries.next_delay(refused.retry_after) if busy else None
                if delay is None:
                    raise refused from None
            except (OSError, WebSocketException) as error:
                delay = retries.next_delay()
                if delay is None:
                    said = masker.text(str(error))
                    raise BenchmarkServiceConnectionError(
                        f"{where} ({said}); check that it is running and that its URL is right"
                    ) from error
            await self._backoff.sleep(delay)

    async def _connect(self, spec: StreamSpec) -> ClientConnection:
        headers = dict(spec.headers)
        if self._dataset_version is not None:
            headers[DATASET_VERSION_HEADER] = self._dataset_version
        return await open_socket(
            self._url, spec.path, headers, max_bytes=self._max_chunk_bytes, resolve=self._resolve
        )

    async def _frame(
        self, spec: StreamSpec, socket: ClientConnection, seen: _Seen, masker: Masker
    ) -> str | bytes:
        from websockets.exceptions import ConnectionClosed

        try:
            async with asyncio.timeout(self._idle_timeout_s):
                return await socket.recv()
        except TimeoutError:
            raise await self._idle(spec) from None
        except ConnectionClosed as closed:
            raise self._ended(spec, closed, seen, masker) from None

    async def _idle(self, spec: StreamSpec) -> StreamIdleError:
        health = "still answers" if await self._probe() else "does not answer either"
        return StreamIdleError(
            f"{spec.operation}: nothing came from {shown_url(self._url + spec.path)} for "
            f"{self._idle_timeout_s:g} s; its /health {health} ({_IDLE_VARIABLE} sets the limit)"
        )

    def _ended(
        self, spec: StreamSpec, closed: ConnectionClosed, seen: _Seen, masker: Masker
    ) -> BenchmarkServiceError:
        """Return what the end of a stream without a result means."""
        if closed.sent is not None and not closed.rcvd_then_sent and closed.sent.code in _UNREADABLE:
            return self._unreadable(spec, closed.sent.code, closed.sent.reason)
        code = closed.rcvd.code if closed.rcvd else 1006
        reason = masker.text(closed.rcvd.reason) if closed.rcvd else ""
        if code == 1008:
            return _denied(spec.operation, reason)
        if seen.last_error is not None and code in _ENDED | _UNREADABLE:
            return seen.last_error
        if code in _UNREADABLE:
            return BenchmarkServiceProtocolError(
                f"{spec.operation}: the service did not accept our request (closed with {code} {reason})"
            )
        ours = closed.sent.reason if closed.sent and not closed.rcvd else ""
        said = f" ({reason or ours})" if reason or ours else ""
        before = f"; its last error was: {seen.last_error}" if seen.last_error else ""
        return BenchmarkServiceStreamClosedError(
            f"{spec.operation}: the stream closed with code {code}{said} before a result came{before}",
            close_code=code,
            close_reason=reason,
            idle_s=asyncio.get_running_loop().time() - seen.heard_at,
        )

    def _unreadable(self, spec: StreamSpec, code: int, reason: str) -> BenchmarkServiceProtocolError:
        if code == 1009:
            what = f"a chunk larger than {self._max_chunk_bytes} bytes"
        else:
            what = f"frames that are not WebSocket text ({reason})"
        return BenchmarkServiceProtocolError(f"{spec.operation}: the service sent {what}")

    def _chunk(self, spec: StreamSpec, frame: str | bytes, masker: Masker) -> dict[str, Any]:
        try:
            chunk = decode_json(frame)
            _check_chunk(chunk)
        except ValueError as error:
            text = frame[:400].decode("utf-8", "replace") if isinstance(frame, bytes) else frame[:400]
            raise BenchmarkServiceProtocolError(
                f"{spec.operation}: the service sent a malformed chunk ({error}), "
                f"beginning {masker.text(text)[:200]!r}"
            ) from None
        checked: dict[str, Any] = chunk
        return checked

    async def _is_result(self, spec: StreamSpec, chunk: dict[str, Any], seen: _Seen, masker: Masker) -> bool:
        """Hand a chunk on; true when it ends the stream."""
        self._check_version(spec, chunk, seen)
        match chunk["type"]:
            case "result":
                return True
            case "message":
                await _tell(spec.on_message, chunk["data"])
            case "error":
                seen.last_error = _error_of(spec.operation, chunk, masker)
                if spec.on_error is not None:
                    await _tell(spec.on_error, chunk["data"])
                else:
                    await _tell(spec.on_message, f"error: {chunk['data']}")
            case "eval_resume_state":
                await _tell(spec.on_resume_state, chunk["data"])
            case "dataset_version":
                pass
            case other if not seen.warned_of_type:
                seen.warned_of_type = True
                await _tell(
                    spec.on_message, f"the service sends chunks of unknown type {other[:80]!r}; ignored"
                )
        return False

    def _check_version(self, spec: StreamSpec, chunk: dict[str, Any], seen: _Seen) -> None:
        """With a pinned dataset the first thing a service says, errors aside, is the version it serves."""
        if self._dataset_version is None or seen.version_confirmed or chunk["type"] == "error":
            return
        data = chunk.get("data")
        confirmed = data.get("id") if chunk["type"] == "dataset_version" and isinstance(data, dict) else None
        if confirmed != self._dataset_version:
            raise BenchmarkServiceProtocolError(
                f"{spec.operation}: asked for dataset version {self._dataset_version!r}, the service "
                f"confirmed {confirmed!r}; it may not support choosing versions"
            )
        seen.version_confirmed = True


def _is_break(error: BenchmarkServiceError) -> bool:
    """Return whether an evaluation may still be going on, or can: not a verdict of the service."""
    if isinstance(error, BenchmarkServiceConnectionError) or error.error_code == RESUMABLE:
        return True
    return error.status_code in (502, 503, 504)


async def _tell(callback: Callable[[Any], Awaitable[None] | None] | None, value: Any) -> None:
    if callback is not None:
        told = callback(value)
        if inspect.isawaitable(told):
            await told


def _check_chunk(chunk: Any) -> None:
    if not isinstance(chunk, dict) or not isinstance(chunk.get("type"), str):
        raise ValueError("no object with a type")
    data = chunk.get("data")
    match chunk["type"]:
        case "message" | "error" if not isinstance(data, str):
            raise ValueError("its data must be text")
        case "eval_resume_state" if not isinstance(data, dict):
            raise ValueError("its data must be an object")
        case "result" if "data" not in chunk:
            raise ValueError("it has no data")


def _error_of(operation: str, chunk: dict[str, Any], masker: Masker) -> BenchmarkServiceError:
    code, status = chunk.get("error_code"), chunk.get("status_code")
    return BenchmarkServiceError(
        f"{operation} failed: {masker.text(chunk['data'])[:_ERROR_CHARS]}",
        status if isinstance(status, int) else None,
        error_code=code if isinstance(code, str) else None,
    )


def _denied(operation: str, reason: str) -> BenchmarkServiceError:
    """A stream closed by policy: the reason says which."""
    if reason.strip().lower() == "unauthorized":
        return BenchmarkServiceUnauthenticatedError(f"Authentication failed: {reason}", 401)
    said = f"{operation} was refused: {reason or 'the service gave no reason'}"
    if "quota" in reason.lower():
        return BenchmarkServiceError(said, 429, retry_after=retry_after_in(reason))
    return BenchmarkServiceError(said, 403)


def retry_after_in(reason: str, now: Callable[[], float] = time.time) -> float | None:
    """Return the seconds until the ISO time a reason names ("... retry after 2031-01-01T00:00:00Z.")."""
    found = _ISO_TIME.search(reason)
    try:
        return seconds_until(datetime.fromisoformat(found[0]), now) if found else None
    except ValueError:
        return None


def _refused(where: str, error: InvalidStatus, masker: Masker) -> BenchmarkServiceError:
    """A handshake answered with an HTTP error."""
    response = error.response
    text = masker.text((response.body or b"").decode("utf-8", "replace"))
    if response.status_code == 401:
        return BenchmarkServiceUnauthenticatedError(f"Authentication failed: {detail_of(text)}", 401)
    location = response.headers.get("Location")
    said = f"it redirects to {shown_url(location)}" if location else f"response: {detail_of(text)}"
    return BenchmarkServiceError(
        f"{where}: status code {response.status_code}, {said}",
        response.status_code,
        retry_after=parse_retry_after(response.headers.get("Retry-After")),
    )
