"""Build trajectories step by step, and convert between them and transcripts."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from valkyrie.trajectory.json_fields import TrajectoryError
from valkyrie.trajectory.json_fields import plain as check_plain
from valkyrie.trajectory.json_fields import timestamp as check_timestamp
from valkyrie.trajectory.model import (
    SCHEMA_VERSION,
    AgentInfo,
    ContentPart,
    FinalMetrics,
    Observation,
    ObservationResult,
    Step,
    StepMetrics,
    ToolCall,
    Trajectory,
)
from valkyrie.trajectory.transcript import (
    Event,
    Json,
    Measures,
    Transcript,
    last_said,
    measured,
    milliseconds_between,
    token_count,
    turn_slice,
)

MOST_TOKENS = 10**12
MOST_DOLLARS = 1e6


def parsed(text: str | bytes) -> Any:
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
    return value if isinstance(value, list) else []


def tokens(value: Any) -> int:
    """A number of tokens, or 0 for what is none."""
    if isinstance(value, bool) or not isinstance(value, int):
        return 0
    return min(max(value, 0), MOST_TOKENS)


def dollars(value: Any) -> float | None:
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


# Convert between ATIF's steps and the events graders look at.

_SKILL_TOOLS = frozenset({"skill", "activate_skill", "load_skill", "use_skill", "loadskill"})
_SAID_IN = ("skill", "name", "command", "skill_name", "skillName")
_CHANGES = re.compile(r"write|edit|create|patch|replace|insert|delete|todo", re.IGNORECASE)
_FILE = re.compile(r"[^\s'\"=:;|&<>()]*[/\\]([A-Za-z0-9._-]{1,64})[/\\]SKILL\.md")
_DEEPEST = 6


def skill_called(tool: str, arguments: Mapping[str, Any]) -> str | None:
    """The skill an agent's own tool for skills was called with."""
    if tool.lower() not in _SKILL_TOOLS:
        return None
    for key in _SAID_IN:
        said = arguments.get(key)
        if isinstance(said, str) and said.strip():
            # Those of a plugin are called plugin:skill; a slash before it or words after it are no part.
            return said.split()[0].lstrip("/").rpartition(":")[2][:64] or None
    return None


def skills_read(tool: str, arguments: Mapping[str, Any], known: Collection[str]) -> Iterator[tuple[str, str]]:
    """(name, path) of each known skill whose SKILL.md a tool was pointed at to look at it."""
    if not known or _CHANGES.search(tool):
        return
    seen = set()
    for text in _texts(arguments):
        if "SKILL.md" not in text:
            continue
        for match in _FILE.finditer(text):
            if match[1] in known and match[1] not in seen:
                seen.add(match[1])
                yield match[1], match[0]


def _texts(value: Any, depth: int = 0) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif depth < _DEEPEST and isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item, depth + 1)
    elif depth < _DEEPEST and isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item, depth + 1)


# From events to ATIF's steps: what the model said, thought and called at once is one step.


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
        self._metrics: StepMetrics | None = None
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


def _metrics(data: Json) -> StepMetrics:
    cost, written = data.get("cost"), token_count(data.get("cacheWriteTokens"))
    known = isinstance(cost, int | float) and not isinstance(cost, bool)
    return StepMetrics(
        prompt_tokens=token_count(data.get("inputTokens")),
        completion_tokens=token_count(data.get("outputTokens")),
        cached_tokens=token_count(data.get("cacheReadTokens")),
        cost_usd=float(cost) if known and cost is not None else None,
        extra={"cache_write_tokens": written} if written else None,
    )


# Between the two forms of what an agent did: ATIF's steps, and the events graders look at.

TURN = "turn"
"""In `extra` of a user's step: which turn of the conversation it begins, from 0."""
SKILL = "skill"
"""In `extra` of a system's step: the name and path of a skill the program says was taken up."""
ERROR = "error"
"""In `extra` of a trajectory: why the agent gave up."""


class AttemptUsage(Protocol):
    """What an attempt used, as `agents.protocol.AgentUsage` says it."""

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
    usage: AttemptUsage | None = None,
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


def _usage(metrics: StepMetrics, model: str | None) -> Json:
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


def _measures(
    trajectory: Trajectory, events: Sequence[Event], took: float, usage: AttemptUsage | None
) -> Measures:
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


__all__ = [
    "AttemptUsage",
    "trajectory_of",
    "transcript_of",
    "turn_slice",
]
