"""The client all judges of an event loop share: bounded, patient, and with errors in the platform's words."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Self

from benchmark_runner.models.client import DIALECTS, Exchange, ask_endpoint
from benchmark_runner.models.connections import Connections, LoopShared
from benchmark_runner.models.dialect import FunctionTool, ModelRequest, Reply
from benchmark_runner.models.endpoint import ChatError, ChatTooLongError, ChatUnavailableError
from sandboxes.retry import Backoff
from valkyrie.domain import Json
from valkyrie.errors import GraderError, JudgeError, UserError, ValkyrieError
from valkyrie.grade.judges.endpoint import JudgeEndpoint
from valkyrie.grade.protocol import JUDGE_REFUSED, JUDGE_REFUSED_QUESTION

BACKOFF = Backoff(first_s=0.5, longest_s=20.0, jitter=1.0, attempts=4)
"""A wait that an endpoint asks for beyond this is left to the next attempt of the trial."""
AT_ONCE = 16
"""Requests in flight; more wait."""
_WHATEVER_IS_ASKED = frozenset({401, 402, 403, 404, 405, 429, *range(300, 400)})
"""Statuses of an endpoint that takes no question; 429 is final where a quota is spent."""


class QuestionTooLongError(GraderError):
    """The question is longer than the judge's model can read."""

    default_cause = "judge_too_long"


class JudgeClient:
    """One pool of connections for all judges. Use as `async with`."""

    def __init__(self, *, backoff: Backoff = BACKOFF, most_at_once: int = AT_ONCE) -> None:
        self._backoff = backoff
        self._connections: Connections | None = Connections(most_at_once=most_at_once)
        self._unforced: set[str] = set()
        """Endpoints that refuse to be told which tool to use."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        if self._connections is not None:
            await self._connections.aclose()
            self._connections = None

    async def ask(self, endpoint: JudgeEndpoint, messages: Sequence[Json], tool: FunctionTool) -> Reply:
        """Return one answer.

        Raises JudgeError after tries in vain, QuestionTooLongError, and UserError where the endpoint refuses.
        """
        try:
            if endpoint.url not in self._unforced:
                try:
                    return await self._ask(endpoint, messages, tool, forced=True)
                except ChatError as error:
                    if error.status != 400 or "tool_choice" not in str(error):
                        raise
                    self._unforced.add(endpoint.url)
            return await self._ask(endpoint, messages, tool, forced=False)
        except ChatError as error:
            raise _in_our_words(error) from None

    async def _ask(
        self, endpoint: JudgeEndpoint, messages: Sequence[Json], tool: FunctionTool, *, forced: bool
    ) -> Reply:
        assert self._connections is not None, "the client is closed"
        sampling = {"reasoning_effort": endpoint.reasoning_effort} if endpoint.reasoning_effort else {}
        request = ModelRequest(messages, sampling, tool=tool, forced=forced)
        body = DIALECTS[endpoint.api].body(endpoint, request)
        return await ask_endpoint(self._connections, endpoint, Exchange(body), self._backoff)


def _in_our_words(error: ChatError) -> ValkyrieError:
    if isinstance(error, ChatUnavailableError):
        return JudgeError(str(error), retry_after=error.retry_after)
    if isinstance(error, ChatTooLongError):
        return QuestionTooLongError(str(error))
    cause = JUDGE_REFUSED if error.status in _WHATEVER_IS_ASKED else JUDGE_REFUSED_QUESTION
    return UserError(str(error), cause=cause)


_shared = LoopShared(JudgeClient.close)


def shared_client(backoff: Backoff = BACKOFF) -> AbstractAsyncContextManager[JudgeClient]:
    """Hold the client of this event loop: opened by the first who asks, closed by the last who leaves.

    Whoever runs many trials holds it around them, so that connections last from one judge to the next. The
    back-off is that of who opens it.
    """
    return _shared.hold(lambda: JudgeClient(backoff=backoff))
