"""Build a trajectory while an agent's log is read, within bounds, from data nobody vouches for."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from valkyrie.trajectory.json_fields import TrajectoryError
from valkyrie.trajectory.json_fields import plain as check_plain
from valkyrie.trajectory.json_fields import timestamp as check_timestamp
from valkyrie.trajectory.model import (
    SCHEMA_VERSION,
    AgentInfo,
    FinalMetrics,
    Observation,
    ObservationResult,
    Step,
    StepMetrics,
    ToolCall,
    Trajectory,
)

MOST_TOKENS = 10**12
MOST_DOLLARS = 1e6


def parsed(text: str | bytes) -> Any:
    """JSON, or None when it is none."""
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return None


def _no_constant(word: str) -> None:
    raise ValueError(f"{word} is no number")


def at(value: Any, *keys: str | int) -> Any:
    """Return what stands below `keys` in plain data, or None."""
    for key in keys:
        if isinstance(key, str) and isinstance(value, dict):
            value = value.get(key)
        elif isinstance(key, int) and isinstance(value, list) and -len(value) <= key < len(value):
            value = value[key]
        else:
            return None
    return value


def items(value: Any) -> list[Any]:
    """A list, or an empty one."""
    return value if isinstance(value, list) else []


def tokens(value: Any) -> int:
    """A number of tokens, or 0 for what is none."""
    if isinstance(value, bool) or not isinstance(value, int):
        return 0
    return min(max(value, 0), MOST_TOKENS)


def dollars(value: Any) -> float | None:
    """A cost, or None for what is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= MOST_DOLLARS and math.isfinite(value) else None


def word(value: Any, most: int = 200) -> str | None:
    """A short text for a name or a message, without control characters; None for what is none."""
    if not isinstance(value, str):
        return None
    clean = "".join(letter if letter.isprintable() else " " for letter in value[:most])
    return clean.strip() or None


# Builds a trajectory while an agent's log is read, within bounds.

MOST_STEPS = 10_000
MOST_CALLS = 200
"""Of one step."""
MOST_TEXT = 100_000
"""Characters kept of one message, result or set of arguments."""
MOST_IN_ALL = 32 * 1024 * 1024
"""Characters kept of all messages, results and arguments together."""


class TrajectoryBuilder:
    """Steps are numbered as they come; results find the step that made their call.

    Nothing an agent wrote makes it raise: what is too long is cut, what does not fit is left out.
    """

    def __init__(self) -> None:
        self._steps: list[Step] = []
        self._calls: dict[str, int] = {}
        self._room = MOST_IN_ALL
        self._left_out = 0
        self.now: str | None = None
        """The time of steps that come without one, in ISO 8601."""

    def __len__(self) -> int:
        return len(self._steps)

    def system(self, message: Any, *, at: Any = None) -> None:
        """Add what the agent's program said to the model, or of itself."""
        self._add("system", message, at)

    def user(self, message: Any, *, at: Any = None, turn: int | None = None) -> None:
        """Add what the task says; `turn` numbers what begins a turn of the conversation, from 0."""
        if self._add("user", message, at) and turn is not None:
            self._steps[-1] = replace(self._steps[-1], extra={"turn": turn})

    def skill(self, name: str, path: str, *, at: Any = None) -> None:
        """The program said that a skill was taken up."""
        if self._add("system", f"skill {name}", at):
            self._steps[-1] = replace(self._steps[-1], extra={"skill": {"name": name, "path": path}})

    def agent(
        self,
        message: Any = "",
        *,
        calls: Sequence[tuple[Any, Any, Any]] = (),
        reasoning: Any = None,
        model: str | None = None,
        metrics: StepMetrics | None = None,
        at: Any = None,
    ) -> None:
        """One answer of the model; `calls` are (id, tool, arguments), the arguments as an object or JSON."""
        kept = self._tool_calls(calls)
        if not self._add("agent", message, at):
            return
        number = len(self._steps) - 1
        self._steps[number] = replace(
            self._steps[number],
            tool_calls=tuple(kept.values()) or None,
            reasoning_content=self._text(reasoning) or None,
            model_name=model,
            metrics=metrics,
        )
        self._calls |= dict.fromkeys(kept, number)

    def result(self, call_id: Any, content: Any, *, failed: bool = False) -> None:
        """Add what a call brought back; of a call that is not known it is left out."""
        number = self._calls.get(str(call_id))
        if number is None:
            self._left_out += 1
            return
        step = self._steps[number]
        before = step.observation.results if step.observation else ()
        if len(before) >= MOST_CALLS:
            self._left_out += 1
            return
        extra = {"is_error": True} if failed else None
        found = ObservationResult(source_call_id=str(call_id), content=self._text(content), extra=extra)
        self._steps[number] = replace(step, observation=Observation((*before, found)))

    def build(
        self, agent: AgentInfo, *, session_id: str | None = None, final: FinalMetrics | None = None
    ) -> Trajectory | None:
        """The trajectory, or None when nothing was seen."""
        if not self._steps:
            return None
        return Trajectory(
            schema_version=SCHEMA_VERSION,
            agent=agent,
            steps=tuple(self._steps),
            session_id=session_id,
            final_metrics=replace(final or FinalMetrics(), total_steps=len(self._steps)),
            extra={"left_out": self._left_out} if self._left_out else None,
        )

    def _add(self, source: str, message: Any, at: Any) -> bool:
        if len(self._steps) >= MOST_STEPS:
            self._left_out += 1
            return False
        number = len(self._steps) + 1
        self._steps.append(
            Step(step_id=number, source=source, message=self._text(message), timestamp=_time(at) or self.now)
        )
        return True

    def _tool_calls(self, calls: Sequence[tuple[Any, Any, Any]]) -> dict[str, ToolCall]:
        kept: dict[str, ToolCall] = {}
        for call_id, tool, arguments in calls[:MOST_CALLS]:
            key = str(call_id or f"call-{len(self._steps) + 1}-{len(kept) + 1}")[:200]
            kept[key] = ToolCall(key, str(tool or "unknown")[:200], self._arguments(arguments))
        self._left_out += len(calls) - len(kept)
        return kept

    def _arguments(self, value: Any) -> dict[str, Any]:
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except (ValueError, RecursionError):
                return {"input": self._text(value)}
        found = value if isinstance(value, Mapping) else {"input": value}
        try:
            size = len(json.dumps(check_plain(found, "arguments"), ensure_ascii=False))
        except (TrajectoryError, RecursionError):
            return {}
        if size > min(MOST_TEXT, self._room):
            return {"input": self._text(json.dumps(found, ensure_ascii=False))}
        self._room -= size
        return dict(found)

    def _text(self, value: Any) -> str:
        if value is None:
            return ""
        if not isinstance(value, str):
            try:
                value = json.dumps(value, ensure_ascii=False)
            except (ValueError, RecursionError, TypeError):
                return ""
        most = min(MOST_TEXT, self._room)
        kept = value if len(value) <= most else f"{value[:most]}… ({len(value) - most:,} more characters)"
        self._room -= min(len(value), most)
        return kept.encode("utf-8", "replace").decode()


def _time(value: Any) -> str | None:
    try:
        return None if value is None else check_timestamp(value, "timestamp")
    except TrajectoryError:
        return None
