"""The class runners ask a model with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmark_runner.llm import LLMConfig
from benchmark_runner.models.client import BACKOFF, DIALECTS, ask_endpoint
from benchmark_runner.models.connections import Connections, kept_connections
from benchmark_runner.models.dialect import Message, ModelRequest, Reply, TokenUsage
from benchmark_runner.models.endpoint import find_endpoint
from benchmark_runner.models.errors import ChatError, ChatRefusalError, quotable
from benchmark_runner.models.exchange import Exchange
from sandboxes.retry import Backoff


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
