"""From events to ATIF's steps: what the model said, thought and called at once is one step."""

from __future__ import annotations

from typing import Any

from valkyrie.trajectory.builder import TrajectoryBuilder
from valkyrie.trajectory.measuring import token_count
from valkyrie.trajectory.shape import AgentInfo, FinalMetrics, Metrics, Trajectory
from valkyrie.trajectory.transcript import Event, Json, Transcript


def trajectory_of(transcript: Transcript) -> Trajectory:
    """The steps of a transcript, cut where they are too long; what ATIF has no place for is left out."""
    return _Stepping(transcript).trajectory()


class _Stepping:
    """Gathers events into steps."""

    def __init__(self, transcript: Transcript) -> None:
        self._transcript = transcript
        self._built = TrajectoryBuilder()
        self._said: list[str] = []
        self._thought: list[str] = []
        self._calls: list[tuple[Any, Any, Any]] = []
        self._skills: list[Event] = []
        self._metrics: Metrics | None = None
        self._since: str | None = None

    def trajectory(self) -> Trajectory:
        told = self._transcript
        for event in told.events:
            self._take(event)
        self._close()
        if not len(self._built):
            self._built.agent(told.output, at=told.completed_at)
        info = AgentInfo(name=told.executor or "unknown", version="unknown", model_name=told.model)
        used = told.measures
        final = FinalMetrics(
            total_prompt_tokens=used.input_tokens,
            total_completion_tokens=used.output_tokens,
            total_cached_tokens=used.cache_read_tokens,
            total_cost_usd=used.cost,
        )
        built = self._built.build(info, session_id=told.session_id, final=final)
        if built is None:  # a step was just seen to be there
            raise AssertionError("a trajectory without steps")
        return built

    def _take(self, event: Event) -> None:
        kind, data = event.type, event.data
        if kind == "user_message":
            self._close()
            self._built.user(data.get("content"), at=event.timestamp, turn=_number(data.get("turnId")))
        elif kind == "skill_activation":
            self._skills.append(event)
        elif kind in ("system", "error"):
            self._close()
            self._built.system(data.get("content") or data.get("message"), at=event.timestamp)
        elif kind == "reasoning":
            self._next(event, done=bool(self._said or self._calls or self._metrics))
            self._thought.append(_words(data.get("content")))
        elif kind == "assistant_message":
            self._next(event, done=bool(self._said or self._calls or self._metrics))
            self._said.append(_words(data.get("content")))
        elif kind == "tool_call":
            self._next(event, done=self._metrics is not None)
            self._calls.append((data.get("toolCallId"), data.get("toolName"), data.get("arguments")))
        elif kind == "token_usage":
            self._metrics = _metrics(data)
        elif kind == "tool_result":
            self._close()
            failed = data.get("success") is False
            self._built.result(data.get("toolCallId"), data.get("result"), failed=failed)

    def _next(self, event: Event, *, done: bool) -> None:
        if done:
            self._close()
        self._since = self._since or event.timestamp

    def _close(self) -> None:
        if self._said or self._thought or self._calls or self._metrics:
            self._built.agent(
                "\n".join(self._said),
                calls=self._calls,
                reasoning="\n".join(self._thought),
                metrics=self._metrics,
                at=self._since,
            )
        for event in self._skills:
            name, path = _words(event.data.get("name")), _words(event.data.get("path"))
            self._built.skill(name, path, at=event.timestamp)
        self._said, self._thought, self._calls, self._skills = [], [], [], []
        self._metrics, self._since = None, None


def _words(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _number(value: Any) -> int | None:
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else None


def _metrics(data: Json) -> Metrics:
    cost, written = data.get("cost"), token_count(data.get("cacheWriteTokens"))
    known = isinstance(cost, int | float) and not isinstance(cost, bool)
    return Metrics(
        prompt_tokens=token_count(data.get("inputTokens")),
        completion_tokens=token_count(data.get("outputTokens")),
        cached_tokens=token_count(data.get("cacheReadTokens")),
        cost_usd=float(cost) if known and cost is not None else None,
        extra={"cache_write_tokens": written} if written else None,
    )
