"""Ask a model's endpoint: send a request, read its answer or stream, try again what may pass."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    nullcontext,
    suppress,
)
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar
from weakref import WeakKeyDictionary

from benchmark_runner.llm import LLMConfig
from benchmark_runner.models.chat_completions import ChatCompletionsDialect
from benchmark_runner.models.dialect import Dialect, Json, Message, ModelRequest, Reply, TokenUsage
from benchmark_runner.models.endpoint import (
    BrokenStreamError,
    ChatConfigError,
    ChatError,
    ChatRefusalError,
    ChatUnavailableError,
    Endpoint,
    TransientError,
    UnreadableAnswerError,
    failure_of,
    find_endpoint,
    quotable,
    stream_failure,
)
from benchmark_runner.models.messages import MessagesDialect
from benchmark_runner.models.responses import ResponsesDialect
from benchmark_service.http_client import (
    BrokeOffError,
    HttpClient,
    HttpConnectionError,
    Incoming,
    NotConnectedError,
    NotConnectedInTimeError,
    SilentError,
    UndecodableError,
)
from sandboxes.masker import Masker
from sandboxes.retry import Backoff, Retries

CONNECT_S = 15.0
READ_S = 600.0
"""Between two signs of life; how long an answer may take in all is up to who asks."""
Resource = TypeVar("Resource")


class Connections:
    """Where requests go out; with `most_at_once`, further ones wait."""

    def __init__(self, *, most_at_once: int | None = None) -> None:
        self._http = HttpClient(connect_s=CONNECT_S, read_s=READ_S)
        self._room = asyncio.Semaphore(most_at_once) if most_at_once else nullcontext()

    @asynccontextmanager
    async def post(self, url: str, headers: Mapping[str, str], content: bytes) -> AsyncIterator[Incoming]:
        """Send a request; the answer's body is read inside. No redirect is followed: a key goes to one
        place."""
        async with self._room, self._http.request("POST", url, headers, content) as incoming:
            yield incoming

    async def close(self) -> None:
        """Close all connections."""
        await self._http.close()


class LoopShared(Generic[Resource]):
    """One resource per event loop: the first user opens it, the last one closes it."""

    def __init__(self, close: Callable[[Resource], Awaitable[None]]) -> None:
        self._close = close
        self._held: WeakKeyDictionary[asyncio.AbstractEventLoop, list[Resource]] = WeakKeyDictionary()
        """The resource, once for each user."""

    @asynccontextmanager
    async def hold(self, make: Callable[[], Resource]) -> AsyncIterator[Resource]:
        """Hold the resource of the running loop."""
        loop = asyncio.get_running_loop()
        users = self._held.setdefault(loop, [])
        resource = users[0] if users else make()
        users.append(resource)
        try:
            yield resource
        finally:
            users.pop()
            if not users:
                del self._held[loop]
                await self._close(resource)


_shared = LoopShared(Connections.close)


def kept_connections() -> AbstractAsyncContextManager[Connections]:
    """Hold the connections of this event loop: opened by the first who asks, closed by the last who leaves.

    Whoever asks models again and again holds this around it all, so that connections last from one question
    to the next.
    """
    return _shared.hold(Connections)


# What was asked and answered, kept in a file.

FILE = "chat.jsonl"


@dataclass(slots=True)
class Exchange:
    """One request, the tries that failed, and what came of it."""

    request: Json
    failed: list[str] = field(default_factory=list)
    response: Json | None = None
    error: str | None = None
    _begun: float = field(default_factory=time.monotonic)
    _at: datetime = field(default_factory=lambda: datetime.now(UTC))

    def append_to(self, folder: Path, endpoint: Endpoint) -> None:
        """Append it to the folder's file, without the key."""
        line: dict[str, Any] = {
            "at": self._at.isoformat(timespec="milliseconds"),
            "seconds": round(time.monotonic() - self._begun, 3),
            "model": endpoint.model,
            "url": endpoint.place,
            "failed_tries": self.failed,
            "request": self.request,
        }
        line |= {"error": self.error} if self.response is None else {"response": self.response}
        text = json.dumps(Masker([endpoint.key or ""]).data(line), ensure_ascii=False)
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / FILE).open("ab", buffering=0) as file:
            file.write(f"{text}\n".encode("utf-8", "replace"))


# Read a server's answer within bounds: whole, or as the stream it was asked for.

MOST_BYTES = 64 * 1024 * 1024
"""Of one answer."""
_MOST_ERROR = 64 * 1024
_LINGER_S = 1.0
"""How long a stream may stay open after its last event, before the connection is given up."""
_END = b"[DONE]"


async def read_answer(endpoint: Endpoint, dialect: Dialect, incoming: Incoming) -> Json:
    """Return the answer in the API's own form, however it came."""
    if not 200 <= incoming.status < 300:
        words = await _bounded(incoming, _MOST_ERROR, cut=True)
        raise failure_of(endpoint, incoming.status, incoming.headers, words.decode("utf-8", "replace"))
    if incoming.headers.get("content-type", "").startswith("text/event-stream"):
        return await _collected(dialect, incoming)
    return _object(await _bounded(incoming, MOST_BYTES))


async def _bounded(incoming: Incoming, most: int, *, cut: bool = False) -> bytes:
    found = bytearray()
    async for piece in incoming.pieces:
        found += piece
        if len(found) > most:
            if cut:
                break
            raise UnreadableAnswerError(f"more than {most} bytes")
    return bytes(found[:most])


async def _collected(dialect: Dialect, incoming: Incoming) -> Json:
    collector, events, pieces = dialect.collector(), _Events(), incoming.pieces
    # A connection that breaks after the answer's end takes nothing from it.
    with suppress(BrokeOffError):
        async for piece in pieces:
            for data in events.feed(piece):
                if data != _END:
                    collector.add(_object(data))
            if events.ended:
                await _linger(pieces)
                break
    whole = collector.whole()
    if whole is None:
        raise TransientError("broke off in the middle of its answer")
    return whole


async def _linger(pieces: AsyncIterator[bytes]) -> None:
    """Come to the stream's end, so that its connection can be used again."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_LINGER_S):
            async for _ in pieces:
                pass


class _Events:
    """Server-sent events, put together from the pieces they come in."""

    def __init__(self) -> None:
        self.ended = False
        self._line: list[bytes] = []
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Yield the data of the events that are complete with this piece."""
        self._size += len(piece)
        if self._size > MOST_BYTES:
            raise UnreadableAnswerError(f"more than {MOST_BYTES} bytes")
        first, *more = piece.split(b"\n")
        self._line.append(first)
        for part in more:
            line = b"".join(self._line).rstrip(b"\r")
            self._line = [part]
            if line.startswith(b"data:"):
                self._data.append(line[5:].strip())
            elif not line and self._data:
                data = b"\n".join(self._data)
                self._data = []
                self.ended = self.ended or data == _END
                yield data


def _object(data: bytes) -> Json:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        raise UnreadableAnswerError("no JSON") from None
    if not isinstance(found, dict):
        raise UnreadableAnswerError("no JSON object")
    return found


# Send a request to a model's endpoint: try again what may pass, raise at once what will not.

DIALECTS: Mapping[str, Dialect] = {
    "chat": ChatCompletionsDialect(),
    "responses": ResponsesDialect(),
    "messages": MessagesDialect(),
}
BACKOFF = Backoff(first_s=0.5, longest_s=600.0, jitter=1.0, attempts=8)
"""Half a minute on average; the task's timeout ends it earlier."""


async def ask_endpoint(
    connections: Connections, endpoint: Endpoint, exchange: Exchange, backoff: Backoff = BACKOFF
) -> Reply:
    """Return the answer to the exchange's request; what happens meanwhile is noted there.

    Raises ChatUnavailableError after tries in vain, another ChatError where trying again is of no use.
    """
    dialect = DIALECTS[endpoint.api]
    headers = {
        "content-type": "application/json",
        "accept-encoding": "identity",
        "user-agent": "benchmark-runner",
        **dialect.headers(endpoint.key),
    }
    content, retries = _encoded(exchange.request), Retries(backoff)
    while True:
        try:
            async with connections.post(endpoint.url, headers, content) as incoming:
                exchange.response = answer = await read_answer(endpoint, dialect, incoming)
            return dialect.read(answer)
        except (TransientError, UnreadableAnswerError, BrokenStreamError, HttpConnectionError) as error:
            failure = _transient(endpoint, error)
        exchange.failed.append(str(failure))
        delay = retries.next_delay(failure.retry_after)
        if delay is None or (failure.retry_after or 0.0) > backoff.longest_s:
            break
        await backoff.sleep(delay)
    later = f"; it asks to wait {failure.retry_after:g} s" if failure.retry_after else ""
    times = f"{retries.failed} {'time' if retries.failed == 1 else 'times'}"
    raise ChatUnavailableError(
        f"{endpoint.title} {failure}{later}. Tried {times}.",
        failure.status,
        failure.retry_after,
    )


def _transient(endpoint: Endpoint, error: Exception) -> TransientError:
    """Return why a try failed where that may pass. Raises ChatError where a stream says that it will not."""
    match error:
        case TransientError():
            return error
        case BrokenStreamError():
            failure = stream_failure(endpoint, error.error)
            if isinstance(failure, TransientError):
                return failure
            raise failure from None
        case UnreadableAnswerError() | UndecodableError():
            return TransientError(f"answered with something else than its API ({error})")
        case SilentError() | NotConnectedInTimeError():
            return TransientError("did not answer in time")
        case NotConnectedError():
            return TransientError(f"cannot be reached ({quotable(endpoint, str(error))})")
        case _:
            return TransientError("broke off in the middle of its answer")


def _encoded(body: Json) -> bytes:
    """Return JSON as a server takes it; half a surrogate pair, which UTF-8 cannot carry, becomes `?`."""
    try:
        return json.dumps(body, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")
    except (TypeError, ValueError, RecursionError) as error:
        raise ChatConfigError(f"What would be asked is not JSON: {error}") from None


# The class runners ask a model with.


class ChatModel:
    """One model, asked over the connections all models of the event loop share. Use as `async with`."""

    def __init__(
        self,
        model: str,
        llm_config: LLMConfig | None = None,
        *,
        log_dir: Path | str | None = None,
        backoff: Backoff | None = None,
    ) -> None:
        self._config = llm_config or LLMConfig()
        self.endpoint = find_endpoint(model, self._config)
        self.usage = TokenUsage()
        """Tokens of all answers so far."""
        self._log_dir = Path(log_dir) if log_dir is not None else None
        self._backoff = backoff or BACKOFF
        self._open = AsyncExitStack()
        self._connections: Connections | None = None

    async def __aenter__(self) -> Self:
        self._connections = await self._open.enter_async_context(kept_connections())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connections = None
        await self._open.aclose()

    async def ask(
        self, messages: str | Sequence[Message], *, extra: Mapping[str, Any] | None = None
    ) -> Reply:
        """Return the model's answer to a conversation, or to one question. Raises ChatError.

        `extra` goes into the request as it is: `{"stop": [...]}`, `{"tools": [...]}`.
        """
        if self._connections is None:
            raise RuntimeError("ask inside `async with ChatModel(…) as chat`")
        given: Sequence[Message] = (
            [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        )
        stream = self._config.provider_config.stream_completions
        body = DIALECTS[self.endpoint.api].body(
            self.endpoint, ModelRequest(given, self._config.sampling, stream)
        )
        exchange = Exchange({**body, **(extra or {})})
        try:
            reply = await ask_endpoint(self._connections, self.endpoint, exchange, self._backoff)
            if reply.finish_reason == "refusal":
                said = quotable(self.endpoint, reply.text)
                raise ChatRefusalError(f"{self.endpoint.title} declined to answer: {said}")
        except ChatError as error:
            exchange.error = str(error)
            raise
        finally:
            if self._log_dir is not None:
                exchange.append_to(self._log_dir, self.endpoint)
        self.usage += reply.usage
        return reply
