"""What GitHub Copilot CLI says of itself, event by event: `--output-format json`, and its session files."""

from __future__ import annotations

from typing import Any

from valkyrie.trajectory.builder import TrajectoryBuilder
from valkyrie.trajectory.loose import at, items, tokens, word
from valkyrie.trajectory.shape import FinalMetrics, Metrics


class CopilotLog:
    """Events: user.message, assistant.message, tool.execution_complete, skill.invoked, session.error, …"""

    def __init__(self, built: TrajectoryBuilder, *, told: bool = False) -> None:
        """`told`: what the user said, and what was used, is taken from the log too."""
        self._built = built
        self._told = told
        self.answers = 0
        self.error: Any = None
        """Of the session, if no answer came after it."""
        self.session: str | None = None
        self.model: str | None = None
        self.version: str | None = None
        self._next: Metrics | None = None
        self._spent: list[Metrics] = []

    def take(self, event: dict[str, Any], metrics: Metrics | None = None) -> None:
        """One line of the log; `metrics` are those of an answer, where they are known from elsewhere."""
        kind, data, when = event.get("type"), event.get("data"), event.get("timestamp")
        if kind == "assistant.message":
            self._answer(data, metrics or self._next, when)
        elif kind == "tool.execution_complete":
            failed = at(data, "success") is False
            content = at(data, "result", "content") or at(data, "error", "message")
            self._built.result(at(data, "toolCallId"), content, failed=failed)
        elif kind == "skill.invoked" and (name := word(at(data, "name"))):
            self._built.skill(name, word(at(data, "path"), 1000) or "", at=when)
        elif kind == "session.error":
            self.error = data
        elif self._told:
            self._more(str(kind), data, when)

    def final(self) -> FinalMetrics | None:
        """What the log's own records add up to."""
        if not self._spent:
            return None
        return FinalMetrics(
            total_prompt_tokens=sum(one.prompt_tokens or 0 for one in self._spent),
            total_completion_tokens=sum(one.completion_tokens or 0 for one in self._spent),
            total_cached_tokens=sum(one.cached_tokens or 0 for one in self._spent),
        )

    def _more(self, kind: str, data: Any, when: Any) -> None:
        if kind == "session.start":
            self.session = word(at(data, "sessionId"))
            self.model = word(at(data, "selectedModel"))
            self.version = word(at(data, "copilotVersion"))
        elif kind == "user.message" and not word(at(data, "source")):
            self._built.user(at(data, "content"), at=when)
        elif kind == "session.usage_record":
            self._next = _metrics(at(data, "usage"))
            self._spent.append(self._next)
        elif kind == "assistant.usage":
            self._spent.append(_metrics(data))

    def _answer(self, data: Any, metrics: Metrics | None, when: Any) -> None:
        self.answers += 1
        self.error = None
        self._next = None
        self.model = word(at(data, "model")) or self.model
        calls = [
            (at(call, "toolCallId"), at(call, "name"), at(call, "arguments"))
            for call in items(at(data, "toolRequests"))
        ]
        self._built.agent(
            at(data, "content"),
            calls=calls,
            reasoning=at(data, "reasoningText"),
            model=word(at(data, "model")),
            metrics=metrics,
            at=when,
        )


def _metrics(usage: Any) -> Metrics:
    return Metrics(
        prompt_tokens=tokens(at(usage, "inputTokens")),
        completion_tokens=tokens(at(usage, "outputTokens")),
        cached_tokens=tokens(at(usage, "cacheReadTokens")),
    )
