"""A client's HTTP calls to a benchmark service: what is retried, and what an answer must look like."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar
from urllib.parse import urlencode, urljoin, urlsplit

from pydantic import BaseModel, ValidationError

from benchmark_service.errors import (
    BenchmarkServiceConnectionError,
    BenchmarkServiceError,
    BenchmarkServiceProtocolError,
    BenchmarkServiceUnauthenticatedError,
)
from benchmark_service.http_client import (
    BrokeOffError,
    HttpClient,
    HttpConnectionError,
    Incoming,
    NotConnectedError,
    SilentError,
    UndecodableError,
    same_place,
    shown_url,
)
from benchmark_service.schemas import JSON_TOO_LARGE, is_overgrown
from sandboxes.masker import Masker
from sandboxes.retry import Backoff, Retries, parse_retry_after

DATASET_VERSION_HEADER = "X-Benchmark-Dataset-Version"
DETAIL_CHARS = 2000
_BUSY = frozenset({429, 502, 503, 504})
_MAX_REDIRECTS = 5
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")

Params = list[tuple[str, str]]
Model = TypeVar("Model", bound=BaseModel)


class RequestNeverSentError(BenchmarkServiceConnectionError):
    """No connection came about: the service certainly did nothing."""


def checked_url(url: str) -> str:
    """A service's base URL without its last slash; refuses what is not one."""
    if not _is_service_url(url):
        raise ValueError(f"a service URL looks like http://host:port, not {shown_url(url)!r}")
    return url.rstrip("/")


def _is_service_url(url: str) -> bool:
    if not url.isprintable() or "?" in url or "#" in url:
        return False
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").encode("idna")
        return parts.scheme in ("http", "https") and bool(host) and b" " not in host and parts.port != 0
    except ValueError:
        return False


def checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Headers that can travel. Refused here, by name only: libraries would quote the value."""
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not a header name")
        if not value.isascii() or not value.replace("\t", " ").isprintable():
            raise ValueError(f"the value of header {name} has characters a header cannot carry")
    return {name: value.strip() for name, value in headers.items()}


def handshake_redirect(uri: str, refusal: Exception) -> str | None:
    """Return where a handshake is redirected to, if that is still the same service."""
    response = getattr(refusal, "response", None)
    if response is None or response.status_code not in _REDIRECTS:
        return None
    try:
        target = urljoin(uri, response.headers.get("Location", ""))
        target = "ws" + target.removeprefix("http") if target.startswith("http") else target
        return target if target != uri and same_place(uri, target) else None
    except ValueError:
        return None


def decode_json(text: bytes | str) -> Any:
    """Strict JSON: no NaN, no numbers or nesting that break a reader; stray surrogates are replaced."""
    raw = text.encode("utf-8", "replace") if isinstance(text, str) else text
    try:
        value = json.loads(raw, parse_constant=_no_constant)
        if _SURROGATE.search(raw):
            value = json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if is_overgrown(value):
        del value  # or it would live as long as the error's traceback
        raise ValueError(JSON_TOO_LARGE)
    return value


def encode_json(value: Any) -> bytes:
    """JSON any reader takes; half a surrogate pair, which UTF-8 cannot carry, becomes `?`."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"what would be sent is not JSON: {error}") from None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


@dataclass(frozen=True)
class ServiceCall:
    """One HTTP request."""

    operation: str
    """As errors name it: "Retrieve task"."""
    method: str
    path: str
    params: Iterable[tuple[str, str]] = ()
    body: Any = field(default=None, repr=False)
    safe: bool = True
    """May be sent twice. If not, it is repeated only when the service certainly did no work."""
    pinned: bool = True
    """Bound to the client's dataset version, if it has one."""
    attempts: int | None = None


@dataclass(frozen=True, slots=True)
class ServiceAnswer:
    """An answer, read whole."""

    url: str
    status_code: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def text(self) -> str:
        """Whatever can be read of it."""
        return self.content.decode("utf-8", "replace")


class ServiceHttp:
    """Sends calls to one service."""

    def __init__(
        self,
        url: str,
        client: HttpClient,
        backoff: Backoff,
        masker: Masker,
        *,
        timeout: float,
        max_bytes: int,
        dataset_version: str | None = None,
    ) -> None:
        self._url = url
        self._client = client
        self._backoff = backoff
        self._mask = masker.text
        self._timeout = timeout
        self._max_bytes = max_bytes
        self._dataset_version = dataset_version

    async def ask(self, model: type[Model], call: ServiceCall) -> Model:
        """The answer to a call, as a model."""
        return checked(model, await self.json(call), call.operation)

    async def json(self, call: ServiceCall) -> Any:
        """The decoded answer to a call; anything but 200 with JSON raises."""
        response = await self.send(call)
        self.check(call, response)
        try:
            return decode_json(response.content)
        except ValueError as error:
            kind = response.headers.get("content-type", "no content type")
            raise BenchmarkServiceProtocolError(
                f"{call.operation}: {shown_url(response.url)} answered {kind} "
                f"instead of JSON ({error}), "
                f"beginning {self._mask(_first_line(response.text))!r}; is this a benchmark service's URL?",
                response.status_code,
            ) from None

    async def send(self, call: ServiceCall) -> ServiceAnswer:
        """The answer, whatever its status, after the retries that are safe."""
        retries = Retries(replace(self._backoff, attempts=call.attempts or self._backoff.attempts))
        while True:
            try:
                response = await self._once(call)
            except BenchmarkServiceConnectionError as error:
                repeatable = call.safe or isinstance(error, RequestNeverSentError)
                delay = retries.next_delay() if repeatable else None
                if delay is None:
                    raise
            else:
                asked = parse_retry_after(response.headers.get("retry-after"))
                repeatable = _worth_repeating(call, response.status_code, asked)
                delay = retries.next_delay(asked) if repeatable else None
                if delay is None:
                    return response
            await self._backoff.sleep(delay)

    def check(self, call: ServiceCall, response: ServiceAnswer) -> None:
        """Raise for an answer that is not a success, or not of the dataset version asked for."""
        if response.status_code == 401:
            raise BenchmarkServiceUnauthenticatedError(
                f"Authentication failed: {self._mask(detail_of(self._mask(response.text)))}", 401
            )
        if response.status_code != 200:
            raise BenchmarkServiceError(
                f"{call.operation} failed with status code {response.status_code}, "
                f"response: {self._mask(detail_of(self._mask(response.text)))}",
                response.status_code,
                retry_after=parse_retry_after(response.headers.get("retry-after")),
            )
        if self._dataset_version is not None and call.pinned:
            confirmed = response.headers.get(DATASET_VERSION_HEADER)
            if confirmed != self._dataset_version:
                raise BenchmarkServiceProtocolError(
                    f"{call.operation}: asked for dataset version {self._dataset_version!r}, the service "
                    f"confirmed {confirmed!r}; it may not support choosing versions"
                )

    async def _once(self, call: ServiceCall) -> ServiceAnswer:
        content = encode_json(call.body) if call.body is not None else None
        try:
            # The client bounds each read; a service that drips bytes is bounded here.
            async with asyncio.timeout(self._timeout * 10):
                return await self._exchange(call, content)
        except NotConnectedError as error:
            raise RequestNeverSentError(self._unreachable(call, error)) from error
        except (SilentError, TimeoutError) as error:
            raise BenchmarkServiceConnectionError(
                f"{call.operation}: {shown_url(self._url)} did not answer within {self._timeout:g} s; "
                "is the service overloaded?"
            ) from error
        except UndecodableError as error:
            raise BenchmarkServiceProtocolError(
                f"{call.operation}: the answer of {shown_url(self._url)} cannot be decoded: {error}"
            ) from error
        except HttpConnectionError as error:
            raise BenchmarkServiceConnectionError(self._unreachable(call, error)) from error

    async def _exchange(self, call: ServiceCall, content: bytes | None) -> ServiceAnswer:
        headers = {"Content-Type": "application/json"} if content is not None else {}
        if self._dataset_version is not None and call.pinned:
            headers[DATASET_VERSION_HEADER] = self._dataset_version
        query = urlencode(list(call.params))
        method, url = call.method, self._url + call.path + (f"?{query}" if query else "")
        for _ in range(_MAX_REDIRECTS):
            async with self._client.request(method, url, headers, content) as incoming:
                status, location = incoming.status, incoming.headers.get("location")
                if status not in _REDIRECTS or location is None:
                    return await self._read(call, url, incoming)
            url = self._following(call, url, location, status)
            if status in (301, 302, 303):
                method, content = "GET", None
        raise BenchmarkServiceError(f"{call.operation}: {shown_url(self._url)} redirects in circles")

    def _following(self, call: ServiceCall, url: str, location: str, status: int) -> str:
        try:
            following = urljoin(url, location)
            stays = same_place(url, following)
        except ValueError:
            raise BrokeOffError("it redirects to what is no URL") from None
        if not stays:
            raise BenchmarkServiceError(
                f"{call.operation}: {shown_url(url)} redirects to {shown_url(following)}, "
                "which is another place; if it is right, configure that URL for the service",
                status,
            )
        return following

    async def _read(self, call: ServiceCall, url: str, incoming: Incoming) -> ServiceAnswer:
        content = bytearray()
        async for piece in incoming.pieces:
            content += piece
            if len(content) > self._max_bytes:
                raise BenchmarkServiceProtocolError(
                    f"{call.operation}: {shown_url(self._url)} answered more than {self._max_bytes} bytes"
                )
        return ServiceAnswer(url, incoming.status, incoming.headers, bytes(content))

    def _unreachable(self, call: ServiceCall, error: Exception) -> str:
        said = f" ({self._mask(str(error))})" if str(error) else ""
        return (
            f"{call.operation}: cannot reach the service at {shown_url(self._url)}{said}; "
            "check that it is running and that its URL is right"
        )


def _worth_repeating(call: ServiceCall, status: int, retry_after: float | None) -> bool:
    if call.safe:
        return status in _BUSY
    # A gateway's 502 or 504, or a bare 503, may hide work that was begun.
    return status == 429 or (status == 503 and retry_after is not None)


def detail_of(text: str) -> str:
    """A service's own words in an error answer: its `detail`, or the text, or an HTML page's text."""
    try:
        body = decode_json(text)
    except ValueError:
        body = None
    if isinstance(body, dict) and body.get("detail"):
        detail = body["detail"]
        return (detail if isinstance(detail, str) else json.dumps(detail))[:DETAIL_CHARS]
    if text.lstrip()[:1] == "<":
        without_tags = re.sub(r"<[^<>]*>", " ", text[: 4 * DETAIL_CHARS])
        return " ".join(without_tags.split())[:200] or "an empty page"
    return text.strip()[:DETAIL_CHARS] or "no details"


def _first_line(text: str) -> str:
    return next(iter(text.strip().splitlines()), "")[:200]


def checked(model: type[Model], data: Any, operation: str) -> Model:
    """Return what a service answered, as a model; its mistakes are named without quoting values."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        wrong = "; ".join(
            f"{'.'.join(map(str, e['loc'])) or 'the answer'}: {e['msg']}" for e in error.errors()[:5]
        )
        raise BenchmarkServiceProtocolError(
            f"{operation}: the service's answer does not fit: {wrong[:DETAIL_CHARS]}"
        ) from None


def given(**params: str | None) -> Params:
    """Query parameters that have a value."""
    return [(name, value) for name, value in params.items() if value is not None]


def batches(task_ids: Sequence[str], max_chars: int) -> Iterator[list[str]]:
    """Yield ids in groups whose query strings stay below a length; at least one in each."""
    batch: list[str] = []
    length = 0
    for task_id in task_ids:
        size = len(urlencode({"task_ids": task_id})) + 1
        if batch and length + size > max_chars:
            yield batch
            batch, length = [], 0
        batch.append(task_id)
        length += size
    if batch:
        yield batch
