"""What Claude Code says of itself, event by event: its stream-json, and its session files."""

from __future__ import annotations

from typing import Any

from valkyrie.trajectory.builder import TrajectoryBuilder
from valkyrie.trajectory.loose import at, dollars, items, tokens, word
from valkyrie.trajectory.shape import FinalMetrics, Metrics

SYNTHETIC = "<synthetic>"
"""The model of messages the program makes up itself, to say what went wrong."""


class ClaudeLog:
    """Events: system, assistant and user messages, and one result at the end."""

    def __init__(self, built: TrajectoryBuilder, *, told: bool = False) -> None:
        """`told`: what the user said is taken from the log too."""
        self._built = built
        self._told = told
        self.session: str | None = None
        self.model: str | None = None
        self.result: dict[str, Any] | None = None
        """How the last turn ended."""
        self._results: list[dict[str, Any]] = []
        self._begins = True
        """The next answer is the first of a turn."""
        self.retry: dict[str, Any] | None = None
        """The last time a request was tried again."""
        self.failure: dict[str, Any] | None = None
        """The program's own last words on what went wrong."""
        self.spent: dict[str, Metrics] = {}
        """By the id of the answer: one comes in several messages."""

    def take(self, event: dict[str, Any]) -> None:
        """One line of the log."""
        self.session = self.session or word(event.get("session_id") or event.get("sessionId"))
        kind = event.get("type")
        if kind == "assistant":
            self._answer(event)
        elif kind == "user" and not event.get("parent_tool_use_id"):
            self._user(event)
        elif kind == "system" and event.get("subtype") == "api_retry":
            self.retry = event
        elif kind == "system" and event.get("subtype") == "init":
            self._begins = True
        elif kind == "result":
            self.result = event
            self._results.append(event)

    def final(self) -> FinalMetrics:
        """By the results, which count everything; a run that was cut short has only its messages."""
        per_turn = [at(result, "modelUsage") for result in self._results]
        if per_turn and all(isinstance(one, dict) and one for one in per_turn):
            counted = [one for per_model in per_turn for one in per_model.values()]
            cached = sum(tokens(at(one, "cacheReadInputTokens")) for one in counted)
            fresh = sum(
                tokens(at(one, "inputTokens")) + tokens(at(one, "cacheCreationInputTokens"))
                for one in counted
            )
            output = sum(tokens(at(one, "outputTokens")) for one in counted)
        else:
            spent = self.spent.values()
            cached = sum(one.cached_tokens or 0 for one in spent)
            fresh = sum(one.prompt_tokens or 0 for one in spent) - cached
            output = sum(one.completion_tokens or 0 for one in spent)
        return FinalMetrics(
            total_prompt_tokens=fresh + cached,
            total_completion_tokens=output,
            total_cached_tokens=cached,
            total_cost_usd=self._cost() if self.spent else None,
        )

    def milliseconds(self) -> float | None:
        """How long it worked, by its own count; None where it does not say."""
        told = [at(result, "duration_ms") for result in self._results]
        return float(sum(told)) if told and all(isinstance(one, int | float) for one in told) else None

    def _cost(self) -> float | None:
        costs = [dollars(at(result, "total_cost_usd")) for result in self._results]
        known = [cost for cost in costs if cost is not None]
        return sum(known) if known and len(known) == len(costs) else None

    def _user(self, event: dict[str, Any]) -> None:
        content = at(event, "message", "content")
        for block in items(content):
            if at(block, "type") == "tool_result":
                failed = at(block, "is_error") is True
                self._built.result(at(block, "tool_use_id"), _content(at(block, "content")), failed=failed)
        if not self._told or event.get("isMeta") or event.get("isSynthetic"):
            return
        said = content if isinstance(content, str) else _joined(items(content), "text")
        if said:
            self._begins = False
            self._built.user(said, at=event.get("timestamp"))

    def _answer(self, event: dict[str, Any]) -> None:
        message = event.get("message")
        model, blocks = word(at(message, "model")), items(at(message, "content"))
        if model == SYNTHETIC:
            self.failure = event
            self._built.system(_joined(blocks, "text"), at=event.get("timestamp"))
            return
        self.failure = None
        self.model = model or self.model
        if self._told and self._begins:
            # The stream has everything but what it was asked: that a turn begins is told all the same.
            self._begins = False
            self._built.user("", at=event.get("timestamp"))
        metrics = _metrics(at(message, "usage"))
        answer = str(at(message, "id"))
        first = answer not in self.spent
        self.spent[answer] = metrics
        if event.get("parent_tool_use_id"):
            return
        calls = [
            (at(block, "id"), at(block, "name"), at(block, "input"))
            for block in blocks
            if at(block, "type") in ("tool_use", "server_tool_use")
        ]
        self._built.agent(
            _joined(blocks, "text"),
            calls=calls,
            reasoning=_joined(blocks, "thinking"),
            model=model,
            metrics=metrics if first else None,
            at=event.get("timestamp"),
        )


def _metrics(usage: Any) -> Metrics:
    cached = tokens(at(usage, "cache_read_input_tokens"))
    fresh = tokens(at(usage, "input_tokens")) + tokens(at(usage, "cache_creation_input_tokens"))
    return Metrics(
        prompt_tokens=fresh + cached,
        completion_tokens=tokens(at(usage, "output_tokens")),
        cached_tokens=cached,
    )


def _joined(blocks: list[Any], kind: str) -> str:
    texts = (at(block, kind) for block in blocks if at(block, "type") == kind)
    return "\n".join(text for text in texts if isinstance(text, str))


def _content(value: Any) -> Any:
    """A result's text; what is no text (an image) stays as it is."""
    blocks = items(value)
    if blocks and all(at(block, "type") == "text" for block in blocks):
        return _joined(blocks, "text")
    return value
