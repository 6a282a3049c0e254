"""The parts of a trajectory, and the rules between them."""

# ruff: noqa: RUF009 - `may` and `must` make a dataclasses.field, each time anew

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from valkyrie.trajectory import json_fields as r
from valkyrie.trajectory.json_fields import TrajectoryError, may, must, record, sequence

SCHEMA_VERSION = "ATIF-v1.8"
VERSIONS = tuple(map("ATIF-v1.{}".format, range(9)))
_AGENT_ONLY = ("model_name", "reasoning_effort", "reasoning_content", "tool_calls", "metrics")
_MEDIA = ("image/jpeg", "image/png", "image/gif", "image/webp")

Extra = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TrajectoryImage:
    """An image kept beside the trajectory."""

    media_type: str = must(r.one_of(*_MEDIA))
    path: str = must(r.name)


@dataclass(frozen=True, slots=True)
class ContentPart:
    """Text or an image."""

    type: str = must(r.one_of("text", "image"))
    text: str | None = may(r.text)
    source: TrajectoryImage | None = may(partial(record, TrajectoryImage))


def _content(value: Any, where: str) -> str | tuple[ContentPart, ...]:
    if isinstance(value, str):
        return value
    parts: tuple[ContentPart, ...] = sequence(partial(record, ContentPart))(value, where)
    for at, part in enumerate(parts):
        wanted, other = ("text", part.source) if part.type == "text" else ("source", part.text)
        if getattr(part, wanted) is None or other is not None:
            raise TrajectoryError(f"{where}[{at}]: a part of type {part.type} has {wanted} and nothing else.")
    return parts


def _effort(value: Any, where: str) -> str | float:
    return value if isinstance(value, str) else r.number(value, where)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool the model asked for."""

    tool_call_id: str = must(r.name)
    function_name: str = must(r.name)
    arguments: Mapping[str, Any] = must(r.mapping)
    extra: Extra | None = may(r.mapping)


@dataclass(frozen=True, slots=True)
class SubagentRef:
    """Another trajectory that did part of the work: embedded (`trajectory_id`) or in a file."""

    trajectory_id: str | None = may(r.text)
    trajectory_path: str | None = may(r.text)
    session_id: str | None = may(r.text)
    extra: Extra | None = may(r.mapping)


@dataclass(frozen=True, slots=True)
class ObservationResult:
    """What one call brought back."""

    source_call_id: str | None = may(r.text)
    content: str | Sequence[ContentPart] | None = may(_content)
    subagent_trajectory_ref: Sequence[SubagentRef] | None = may(sequence(partial(record, SubagentRef)))
    extra: Extra | None = may(r.mapping)


@dataclass(frozen=True, slots=True)
class Observation:
    """What the step's calls, or the system, brought back."""

    results: Sequence[ObservationResult] = must(sequence(partial(record, ObservationResult)))


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """What the model used in one step."""

    prompt_tokens: int | None = may(r.count)
    """Cached ones included."""
    completion_tokens: int | None = may(r.count)
    cached_tokens: int | None = may(r.count)
    cost_usd: float | None = may(r.number)
    prompt_token_ids: Sequence[int] | None = may(sequence(r.whole))
    completion_token_ids: Sequence[int] | None = may(sequence(r.whole))
    logprobs: Sequence[float] | None = may(sequence(r.number))
    extra: Extra | None = may(r.mapping)


@dataclass(frozen=True, slots=True)
class FinalMetrics:
    """What the model used in all."""

    total_prompt_tokens: int | None = may(r.count)
    total_completion_tokens: int | None = may(r.count)
    total_cached_tokens: int | None = may(r.count)
    total_cost_usd: float | None = may(r.number)
    total_steps: int | None = may(r.count)
    extra: Extra | None = may(r.mapping)


@dataclass(frozen=True, slots=True)
class AgentInfo:
    """Whose trajectory it is."""

    name: str = must(r.name)
    version: str = must(r.name)
    model_name: str | None = may(r.text)
    tool_definitions: Sequence[Any] | None = may(sequence(r.mapping))
    extra: Extra | None = may(r.mapping)


@dataclass(frozen=True, slots=True)
class Step:
    """One turn of the system, the user or the agent."""

    step_id: int = must(r.count)
    source: str = must(r.one_of("system", "user", "agent"))
    message: str | Sequence[ContentPart] = must(_content)
    timestamp: str | None = may(r.timestamp)
    model_name: str | None = may(r.text)
    reasoning_effort: str | float | None = may(_effort)
    reasoning_content: str | None = may(r.text)
    tool_calls: Sequence[ToolCall] | None = may(sequence(partial(record, ToolCall)))
    observation: Observation | None = may(partial(record, Observation))
    metrics: StepMetrics | None = may(partial(record, StepMetrics))
    is_copied_context: bool | None = may(r.flag)
    llm_call_count: int | None = may(r.count)
    extra: Extra | None = may(r.mapping)


def _embedded(value: Any, where: str) -> Trajectory:
    found = record(Trajectory, value, where)
    check(found, where)
    return found


@dataclass(frozen=True, slots=True)
class Trajectory:
    """All that an agent did on one task."""

    schema_version: str = must(r.one_of(*VERSIONS))
    agent: AgentInfo = must(partial(record, AgentInfo))
    steps: Sequence[Step] = must(sequence(partial(record, Step)))
    session_id: str | None = may(r.text)
    trajectory_id: str | None = may(r.text)
    notes: str | None = may(r.text)
    final_metrics: FinalMetrics | None = may(partial(record, FinalMetrics))
    continued_trajectory_ref: str | None = may(r.text)
    subagent_trajectories: Sequence[Trajectory] | None = may(sequence(_embedded))
    extra: Extra | None = may(r.mapping)

    @classmethod
    def from_json(cls, data: Mapping[str, Any] | str | bytes) -> Trajectory:
        """Read one of any version. Raises TrajectoryError that names the place."""
        if isinstance(data, str | bytes):
            try:
                data = json.loads(data)
            except (ValueError, RecursionError) as error:
                raise TrajectoryError(f"trajectory: no JSON ({error}).") from None
        try:
            return _embedded(data, "trajectory")
        except RecursionError:
            raise TrajectoryError("trajectory: nested too deep.") from None

    def to_json(self) -> dict[str, Any]:
        """Plain data of version 1.8, checked first: what is written can be read."""
        newest = _as_newest(self)
        try:
            check(newest, "trajectory")
            r.plain(whole_data := r.written(newest), "trajectory")
        except RecursionError:
            raise TrajectoryError("trajectory: nested too deep.") from None
        return dict(whole_data)


def _as_newest(trajectory: Trajectory) -> Trajectory:
    inner = trajectory.subagent_trajectories
    return replace(
        trajectory,
        schema_version=SCHEMA_VERSION,
        subagent_trajectories=None if inner is None else tuple(map(_as_newest, inner)),
    )


def check(trajectory: Trajectory, where: str) -> None:
    """The rules between the parts. Raises TrajectoryError."""
    if not trajectory.steps:
        raise TrajectoryError(f"{where}.steps: at least one step is expected.")
    for at, step in enumerate(trajectory.steps):
        place = f"{where}.steps[{at}]"
        if step.step_id != at + 1:
            raise TrajectoryError(f"{place}.step_id: {at + 1} is expected, not {step.step_id}.")
        _check_step(step, place)
    ids = [inner.trajectory_id for inner in trajectory.subagent_trajectories or ()]
    if len(set(ids)) != len(ids):
        raise TrajectoryError(f"{where}.subagent_trajectories: two have the same trajectory_id.")


def _check_step(step: Step, where: str) -> None:
    if step.source != "agent":
        for key in _AGENT_ONLY:
            if getattr(step, key) is not None:
                raise TrajectoryError(f"{where}.{key}: only steps of the agent have it.")
    calls = [call.tool_call_id for call in step.tool_calls or ()]
    if len(set(calls)) != len(calls):
        raise TrajectoryError(f"{where}.tool_calls: two have the same tool_call_id.")
    for at, result in enumerate(step.observation.results if step.observation else ()):
        place = f"{where}.observation.results[{at}]"
        if result.source_call_id is not None and result.source_call_id not in calls:
            said = result.source_call_id[:60]
            raise TrajectoryError(f"{place}.source_call_id: no call of this step is called {said!r}.")
        for ref in result.subagent_trajectory_ref or ():
            if not (ref.trajectory_id or ref.trajectory_path or ref.session_id):
                raise TrajectoryError(f"{place}.subagent_trajectory_ref: names no trajectory.")
