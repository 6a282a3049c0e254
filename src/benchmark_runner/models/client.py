"""Send a request to a model's endpoint: try again what may pass, raise at once what will not."""

from __future__ import annotations

import json
from collections.abc import Mapping

from benchmark_runner.models.answer_stream import read_answer
from benchmark_runner.models.chat_completions import ChatCompletionsDialect
from benchmark_runner.models.connections import Connections
from benchmark_runner.models.dialect import Dialect, Json, Reply
from benchmark_runner.models.endpoint import Endpoint
from benchmark_runner.models.errors import (
    BrokenStreamError,
    ChatConfigError,
    ChatUnavailableError,
    TransientError,
    UnreadableAnswerError,
    quotable,
    stream_failure,
)
from benchmark_runner.models.exchange import Exchange
from benchmark_runner.models.messages import MessagesDialect
from benchmark_runner.models.responses import ResponsesDialect
from benchmark_service.http_connections import (
    HttpConnectionError,
    NotConnectedError,
    NotConnectedInTimeError,
    SilentError,
)
from sandboxes.retry import Backoff, Retries

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
        case UnreadableAnswerError():
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
