"""Between the two forms of what an agent did: ATIF's steps, and the events graders look at."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from valkyrie.trajectory.activating import skill_called, skills_read
from valkyrie.trajectory.measuring import measured, milliseconds_between, token_count
from valkyrie.trajectory.shape import (
    ContentPart,
    Metrics,
    ObservationResult,
    Step,
    Trajectory,
)
from valkyrie.trajectory.stepping import trajectory_of
from valkyrie.trajectory.transcript import Event, Json, Measures, Transcript
from valkyrie.trajectory.turns import last_said, turn_slice

__all__ = ["Spent", "trajectory_of", "transcript_of", "turn_slice"]

TURN = "turn"
"""In `extra` of a user's step: which turn of the conversation it begins, from 0."""
SKILL = "skill"
"""In `extra` of a system's step: the name and path of a skill the program says was taken up."""
ERROR = "error"
"""In `extra` of a trajectory: why the agent gave up."""


class Spent(Protocol):
    """What an attempt used, as `agents.protocol.Usage` says it."""

    @property
    def input_tokens(self) -> int: ...
    @property
    def cached_tokens(self) -> int: ...
    @property
    def output_tokens(self) -> int: ...
    @property
    def cost(self) -> float | None: ...
    @property
    def model(self) -> str | None: ...
    @property
    def steps(self) -> int: ...


def transcript_of(
    trajectory: Trajectory,
    *,
    skills: Sequence[str] = (),
    seconds: float | None = None,
    usage: Spent | None = None,
    end_reason: str | None = None,
) -> Transcript:
    """The events of a trajectory; `skills` are those that were offered, `usage` wins over its own numbers.

    Measures' `turn_count` is how often the model was asked; the user's turns are its turn_start events.
    """
    events = tuple(_Telling(trajectory, frozenset(skills)).events())
    times = [event.timestamp for event in events if event.timestamp]
    first, last = (times[0], times[-1]) if times else (None, None)
    took = seconds * 1000 if seconds is not None else milliseconds_between(first, last)
    return Transcript(
        output=last_said(events) or "",
        events=events,
        measures=_measures(trajectory, events, took or 0.0, usage),
        model=(usage.model if usage else None) or trajectory.agent.model_name,
        executor=trajectory.agent.name,
        session_id=trajectory.session_id,
        started_at=first,
        completed_at=last,
        skills_loaded=tuple(skills),
        end_reason=end_reason,
    )


class _Telling:
    """Walks the steps once."""

    def __init__(self, trajectory: Trajectory, skills: Collection[str]) -> None:
        self._trajectory = trajectory
        self._skills = skills
        self._taken: set[str] = set()
        self._called: set[str] = set()
        self._turn = -1
        self._numbered = any(_begins(step) is not None for step in trajectory.steps)

    def events(self) -> Iterator[Event]:
        for step in self._trajectory.steps:
            if step.source == "user":
                yield from self._user(step)
            elif step.source == "system":
                yield from self._system(step)
            else:
                yield from self._agent(step)
        yield from self._end(None)
        error = (self._trajectory.extra or {}).get(ERROR)
        if isinstance(error, str) and error:
            yield Event("error", {"message": error})

    def _system(self, step: Step) -> Iterator[Event]:
        skill = (step.extra or {}).get(SKILL)
        if isinstance(skill, Mapping) and isinstance(skill.get("name"), str):
            # Said once more of what a tool was called for.
            if skill["name"] not in self._called:
                yield Event("skill_activation", dict(skill), step.timestamp)
            self._called.discard(skill["name"])
            self._taken.add(skill["name"])
            return
        yield Event("system", {"content": _text(step.message)}, step.timestamp)
        for result in _results(step):
            yield Event("system", {"content": _text(result.content)}, step.timestamp)

    def _user(self, step: Step) -> Iterator[Event]:
        begins = not self._numbered or _begins(step) is not None
        if not begins:
            yield Event("user_message", {"content": _text(step.message), "source": "agent"}, step.timestamp)
            return
        yield from self._end(step.timestamp)
        self._turn += 1
        yield Event("turn_start", {"turnId": str(self._turn)}, step.timestamp)
        data = {"content": _text(step.message), "turnId": str(self._turn)}
        yield Event("user_message", data, step.timestamp)

    def _end(self, when: str | None) -> Iterator[Event]:
        if self._turn >= 0:
            yield Event("turn_end", {"turnId": str(self._turn)}, when)

    def _agent(self, step: Step) -> Iterator[Event]:
        when = step.timestamp
        if step.reasoning_content:
            yield Event("reasoning", {"content": step.reasoning_content}, when)
        if message := _text(step.message):
            yield Event("assistant_message", {"content": message}, when)
        results = {result.source_call_id: result for result in _results(step)}
        for call in step.tool_calls or ():
            data: Json = {
                "toolName": call.function_name,
                "toolCallId": call.tool_call_id,
                "arguments": dict(call.arguments),
            }
            yield Event("tool_call", data | self._turn_id(), when)
            if not _failed(results.get(call.tool_call_id)):
                yield from self._skills_of(call.function_name, dict(call.arguments), when)
        if step.metrics:
            yield Event("token_usage", _usage(step.metrics, step.model_name), when)
        yield from self._results_of(step)

    def _skills_of(self, tool: str, arguments: Json, when: str | None) -> Iterator[Event]:
        if called := skill_called(tool, arguments):
            self._taken.add(called)
            self._called.add(called)
            yield Event("skill_activation", {"name": called, "path": ""}, when)
            return
        for name, path in skills_read(tool, arguments, self._skills):
            # Reading on in the same file is no second time.
            if name not in self._taken:
                self._taken.add(name)
                self._called.add(name)
                yield Event("skill_activation", {"name": name, "path": path}, when)

    def _results_of(self, step: Step) -> Iterator[Event]:
        tools = {call.tool_call_id: call.function_name for call in step.tool_calls or ()}
        for result in _results(step):
            data: Json = {
                "toolName": tools.get(result.source_call_id or "", ""),
                "toolCallId": result.source_call_id or "",
                "success": not _failed(result),
                "result": _text(result.content),
            }
            yield Event("tool_result", data | self._turn_id(), step.timestamp)

    def _turn_id(self) -> Json:
        return {"turnId": str(self._turn)} if self._turn >= 0 else {}


def _begins(step: Step) -> int | None:
    found = (step.extra or {}).get(TURN) if step.source == "user" else None
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def _results(step: Step) -> Sequence[ObservationResult]:
    return step.observation.results if step.observation else ()


def _failed(result: ObservationResult | None) -> bool:
    return bool(result and result.extra and result.extra.get("is_error") is True)


def _text(content: str | Sequence[ContentPart] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(part.text or f"[{part.type}]" for part in content)


def _usage(metrics: Metrics, model: str | None) -> Json:
    found: Json = {
        "inputTokens": metrics.prompt_tokens or 0,
        "outputTokens": metrics.completion_tokens or 0,
        "cacheReadTokens": metrics.cached_tokens or 0,
    }
    if written := token_count((metrics.extra or {}).get("cache_write_tokens")):
        found["cacheWriteTokens"] = written
    if metrics.cost_usd is not None:
        found["cost"] = metrics.cost_usd
    return found | ({"model": model} if model else {})


def _measures(trajectory: Trajectory, events: Sequence[Event], took: float, usage: Spent | None) -> Measures:
    found = measured(events, wall_time_ms=took)
    if not any(event.type == "token_usage" for event in events):
        # An answer of tools alone says nothing, and was asked for all the same.
        found = replace(found, turn_count=sum(step.source == "agent" for step in trajectory.steps))
    final = trajectory.final_metrics
    if usage is not None:
        found = _with(found, usage.input_tokens, usage.output_tokens, usage.cached_tokens, usage.cost)
        return replace(found, turn_count=usage.steps or found.turn_count)
    if final is not None and (final.total_prompt_tokens or final.total_completion_tokens):
        return _with(
            found,
            final.total_prompt_tokens or 0,
            final.total_completion_tokens or 0,
            final.total_cached_tokens or 0,
            final.total_cost_usd,
        )
    return found


def _with(found: Measures, prompt: int, output: int, cached: int, cost: float | None) -> Measures:
    return replace(
        found,
        input_tokens=prompt,
        output_tokens=output,
        total_tokens=prompt + output,
        cache_read_tokens=cached,
        cost=found.cost if cost is None else cost,
    )
