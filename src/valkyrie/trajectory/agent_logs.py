"""Agents' own logs: Claude Code's and Copilot CLI's events, and which format was handed over on stdin."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from valkyrie.trajectory.conversion import (
    ERROR,
    TrajectoryBuilder,
    at,
    dollars,
    items,
    tokens,
    transcript_of,
    word,
)
from valkyrie.trajectory.json_fields import TrajectoryError
from valkyrie.trajectory.model import AgentInfo, FinalMetrics, StepMetrics, Trajectory
from valkyrie.trajectory.records import from_record
from valkyrie.trajectory.transcript import Event, Json, Transcript, turn_slice

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
        self.spent: dict[str, StepMetrics] = {}
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
        """Return how long it worked, by its own count; None where it does not say."""
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
        metrics = _claude_metrics(at(message, "usage"))
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


def _claude_metrics(usage: Any) -> StepMetrics:
    cached = tokens(at(usage, "cache_read_input_tokens"))
    fresh = tokens(at(usage, "input_tokens")) + tokens(at(usage, "cache_creation_input_tokens"))
    return StepMetrics(
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


# What GitHub Copilot CLI says of itself, event by event: `--output-format json`, and its session files.


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
        self._next: StepMetrics | None = None
        self._spent: list[StepMetrics] = []

    def take(self, event: dict[str, Any], metrics: StepMetrics | None = None) -> None:
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
        """Return what the log's own records add up to."""
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
            self._next = _copilot_metrics(at(data, "usage"))
            self._spent.append(self._next)
        elif kind == "assistant.usage":
            self._spent.append(_copilot_metrics(data))

    def _answer(self, data: Any, metrics: StepMetrics | None, when: Any) -> None:
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


def _copilot_metrics(usage: Any) -> StepMetrics:
    return StepMetrics(
        prompt_tokens=tokens(at(usage, "inputTokens")),
        completion_tokens=tokens(at(usage, "outputTokens")),
        cached_tokens=tokens(at(usage, "cacheReadTokens")),
    )


# What was handed over on stdin, whatever it is: trial results, ATIF, or an agent's own log.
#
# Recognised: trial-result lines (results.jsonl), older outcomes (`stimulus` beside `trajectory`), bare
# trajectories, ATIF, the events of Copilot CLI and the stream of Claude Code; as one JSON value, a list of
# them, or one a line.

FORMS = (
    "trial results (results.jsonl), outcomes with a stimulus and a trajectory, ATIF, the output of "
    "copilot --output-format json, or of claude --output-format stream-json"
)
_PASSED_OVER = frozenset({"comparison", "run-summary", "eval-summary"})
"""Lines that stand between trial results and are none."""
_COPILOT = ("assistant.", "user.", "session.", "tool.")
_CLAUDE = frozenset({"system", "assistant", "user", "result"})


@dataclass(frozen=True, slots=True)
class ForeignTranscript:
    """One trial somebody else ran."""

    stimulus: str | None
    """Its name, where the data says it."""
    transcript: Transcript
    """Of a trial that ended in an error: nothing but that error."""
    record: Json | None = None
    """The whole record, for data that is one."""


def read_foreign(text: str, *, skills: Sequence[str] = ()) -> list[ForeignTranscript]:
    """Return every trial in the text, in order; `skills` are those the agents were offered.

    Raises TrajectoryError that names the line and what was expected.
    """
    if not text.strip():
        raise TrajectoryError(f"there is nothing to read. Expected: {FORMS}.")
    found = list(_values(text))
    values = [value for _, value in found if value is not None]
    if _is_copilot(values):
        return [ForeignTranscript(None, _copilot(values, skills))]
    if _is_claude(values):
        return [ForeignTranscript(None, _claude(values, skills))]
    trials = []
    for line, value in found:
        if value is None:
            raise TrajectoryError(f"line {line}: no JSON. Expected: {FORMS}.")
        if not (isinstance(value, dict) and value.get("type") in _PASSED_OVER):
            trials.append(_record(value, line, skills))
    if not trials:
        raise TrajectoryError(f"no trial was found. Expected: {FORMS}.")
    return trials


def _values(text: str) -> Iterator[tuple[int, Any]]:
    """(line, value): of a list its items, else one a line; None for a line that is no JSON."""
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        whole = None
    if isinstance(whole, list):
        yield from ((1, item) for item in whole)
        return
    if whole is not None:
        yield 1, whole
        return
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except (ValueError, RecursionError):
                yield number, None


def _is_copilot(values: Sequence[Any]) -> bool:
    """Its events are called `who.what`, and their data stands below `data`."""
    told = [value for value in values if isinstance(value, dict) and "data" in value and _kind(value)]
    return any(value["type"].startswith(_COPILOT) for value in told)


def _is_claude(values: Sequence[Any]) -> bool:
    return any(
        isinstance(value, dict)
        and value.get("type") in _CLAUDE
        and ("message" in value or "subtype" in value)
        and ("session_id" in value or "sessionId" in value or "message" in value)
        for value in values
    )


def _kind(value: Mapping[str, Any]) -> bool:
    return isinstance(value.get("type"), str)


def _record(value: Any, line: int, skills: Sequence[str]) -> ForeignTranscript:
    if not isinstance(value, dict):
        raise TrajectoryError(f"line {line}: an object is expected: {FORMS}.")
    try:
        if "trajectory" in value:
            return _outcome(value, skills)
        if isinstance(value.get("schema_version"), str):
            return ForeignTranscript(_named(at(value, "extra", "stimulus")), _atif(value, skills))
        if isinstance(value.get("events"), list):
            return ForeignTranscript(_named(value.get("stimulus")), from_record(value))
    except TrajectoryError as error:
        raise TrajectoryError(f"line {line}: {error}") from None
    said = f" (its type is {word(value.get('type'), 40)!r})" if _kind(value) else ""
    raise TrajectoryError(f"line {line}: this is none of what can be read{said}. Expected: {FORMS}.")


def _outcome(value: Json, skills: Sequence[str]) -> ForeignTranscript:
    """A trial's result: with a trajectory in either form, or with the error it ended in."""
    inner = value["trajectory"]
    name = _named(value.get("stimulus")) or _named(at(inner, "stimulus")) or _named(value.get("stimulusName"))
    if inner is None:
        said = value.get("error")
        message = word(said if isinstance(said, str) else at(said, "message"), 1000)
        error = Event("error", {"message": message or "the trial has no trajectory"})
        return ForeignTranscript(name, Transcript("", (error,)), value)
    if isinstance(inner, dict) and isinstance(inner.get("schema_version"), str):
        return ForeignTranscript(name, _atif(inner, skills), value)
    return ForeignTranscript(name, from_record(inner), value)


def _named(value: Any) -> str | None:
    """A stimulus is its name, or an object that has one."""
    found = value if isinstance(value, str) else at(value, "name")
    return found if isinstance(found, str) and found else None


def _atif(value: Json, skills: Sequence[str]) -> Transcript:
    return transcript_of(Trajectory.from_json(value), skills=skills)


def _copilot(events: Sequence[Any], skills: Sequence[str]) -> Transcript:
    built = TrajectoryBuilder()
    log = CopilotLog(built, told=True)
    session = None
    for event in events:
        if isinstance(event, dict):
            log.take(event)
            session = session or word(event.get("sessionId"))
    info = AgentInfo(name="copilot-cli", version=log.version or "unknown", model_name=log.model)
    error = None if log.error is None else word(at(log.error, "message"), 1000) or "the session failed"
    trajectory = built.build(info, session_id=log.session or session, final=log.final())
    return _told(trajectory, skills, error)


def _claude(events: Sequence[Any], skills: Sequence[str]) -> Transcript:
    built = TrajectoryBuilder()
    log = ClaudeLog(built, told=True)
    for event in events:
        if isinstance(event, dict):
            log.take(event)
    version = next((found for event in events if (found := word(at(event, "claude_code_version")))), None)
    info = AgentInfo(name="claude-code", version=version or "unknown", model_name=log.model)
    failed = at(log.result, "is_error") is True
    error = word(at(log.result, "result"), 1000) or "the session failed" if failed else None
    trajectory = built.build(info, session_id=log.session, final=log.final())
    said = at(log.result, "result")
    if trajectory is None and not failed and isinstance(said, str):
        # `--output-format json` tells how it ended and nothing before.
        return Transcript(said, (Event("assistant_message", {"content": said}), Event("turn_end")))
    told = _told(trajectory, skills, error)
    took = log.milliseconds()
    # As `eval` counts them: answers of sub-agents too, and time by the program's own clock.
    turns, wall = len(log.spent), told.measures.wall_time_ms if took is None else took
    return replace(told, measures=replace(told.measures, turn_count=turns, wall_time_ms=wall))


def _told(trajectory: Trajectory | None, skills: Sequence[str], error: str | None) -> Transcript:
    if trajectory is None:
        events = (Event("error", {"message": error}),) if error else ()
        return Transcript("", events)
    if error:
        trajectory = replace(trajectory, extra={**(trajectory.extra or {}), ERROR: error})
    return transcript_of(trajectory, skills=skills)


__all__ = [
    "ForeignTranscript",
    "read_foreign",
    "turn_slice",
]
