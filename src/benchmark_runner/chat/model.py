"""Asks a model, patiently: what may pass is tried again, what will not is said at once."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmark_runner.chat.completions import ChatCompletions
from benchmark_runner.chat.connections import Connections, kept_connections
from benchmark_runner.chat.endpoint import find_endpoint
from benchmark_runner.chat.errors import ChatConfigError, ChatError, ChatUnavailableError
from benchmark_runner.chat.faults import PassingError, quotable, refusal, told_in_stream
from benchmark_runner.chat.messages import Messages
from benchmark_runner.chat.reading import answer_in
from benchmark_runner.chat.records import Record
from benchmark_runner.chat.responses import Responses
from benchmark_runner.chat.speaking import (
    Api,
    BrokenStreamError,
    Json,
    Message,
    Reply,
    UnreadableAnswerError,
    Usage,
)
from benchmark_runner.llm import LLMConfig
from benchmark_service.wire import BrokeOffError, NotConnectedError, NotConnectedInTimeError, SilentError
from sandboxes.retry import Backoff, Retries

TRIES = 8
"""Half a minute of back-off on average; the task's timeout ends it earlier."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 600.0
_APIS: Mapping[str, type[Api]] = {"chat": ChatCompletions, "responses": Responses, "messages": Messages}


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
        self.usage = Usage()
        """Tokens of all answers so far."""
        self._api = _APIS[self.endpoint.api]()
        self._headers = {
            "content-type": "application/json",
            "accept-encoding": "identity",
            "user-agent": "benchmark-runner",
            **self._api.headers(self.endpoint.key),
        }
        self._log_dir = Path(log_dir) if log_dir is not None else None
        self._backoff = backoff
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
        """The model's answer to a conversation, or to one question. Raises ChatError.

        `extra` goes into the request as it is: `{"stop": [...]}`, `{"tools": [...]}`.
        """
        given: Sequence[Message] = (
            [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        )
        body = {**self._api.body(self.endpoint, given, self._config), **(extra or {})}
        record = Record(body)
        try:
            reply = await self._patiently(body, record)
        except ChatError as error:
            record.error = str(error)
            raise
        finally:
            if self._log_dir is not None:
                record.keep(self._log_dir, self.endpoint)
        self.usage += reply.usage
        return reply

    async def _patiently(self, body: Json, record: Record) -> Reply:
        backoff = self._backoff or Backoff(
            first_s=_FIRST_PAUSE_S, longest_s=_LONGEST_PAUSE_S, jitter=1.0, attempts=TRIES
        )
        content, retries = _encoded(body), Retries(backoff)
        while True:
            try:
                return await self._once(content, record)
            except PassingError as error:
                passing = error
            except UnreadableAnswerError as error:
                passing = PassingError(f"answered with something else than its API ({error})")
            record.failed.append(str(passing))
            delay = retries.next_delay(passing.retry_after)
            if delay is None or (passing.retry_after or 0.0) > backoff.longest_s:
                break
            await backoff.sleep(delay)
        later = f"; it asks to wait {passing.retry_after:g} s" if passing.retry_after else ""
        raise ChatUnavailableError(
            f"Model {self.endpoint.model} at {self.endpoint.place} {passing}{later}. "
            f"Tried {retries.failed} {'time' if retries.failed == 1 else 'times'}.",
            passing.status,
        )

    async def _once(self, content: bytes, record: Record) -> Reply:
        if self._connections is None:
            raise RuntimeError("ask inside `async with ChatModel(…) as chat`")
        try:
            async with self._connections.post(self.endpoint.url, self._headers, content) as incoming:
                answer = await answer_in(self.endpoint, self._api, incoming)
            record.response = answer
            reply = self._api.read(answer)
        except BrokenStreamError as error:
            raise told_in_stream(self.endpoint, error.error) from None
        except (SilentError, NotConnectedInTimeError):
            raise PassingError("did not answer in time") from None
        except BrokeOffError:
            raise PassingError("broke off in the middle of its answer") from None
        except NotConnectedError as error:
            raise PassingError(f"cannot be reached ({quotable(self.endpoint, str(error))})") from None
        if reply.finish_reason == "refusal":
            raise refusal(self.endpoint, reply.text)
        return reply


def _encoded(body: Json) -> bytes:
    """JSON as a server takes it; half a surrogate pair, which UTF-8 cannot carry, becomes `?`."""
    try:
        return json.dumps(body, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")
    except (TypeError, ValueError, RecursionError) as error:
        raise ChatConfigError(f"What would be asked is not JSON: {error}") from None
