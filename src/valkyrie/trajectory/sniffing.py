"""What was handed over on stdin, whatever it is: trial results, ATIF, or an agent's own log.

Recognised: trial-result lines (results.jsonl), older outcomes (`stimulus` beside `trajectory`), bare
trajectories, ATIF, the events of Copilot CLI and the stream of Claude Code; as one JSON value, a list of
them, or one a line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from valkyrie.trajectory.builder import TrajectoryBuilder
from valkyrie.trajectory.claude_log import ClaudeLog
from valkyrie.trajectory.converting import ERROR, transcript_of
from valkyrie.trajectory.copilot_log import CopilotLog
from valkyrie.trajectory.loose import at, word
from valkyrie.trajectory.reading import TrajectoryError
from valkyrie.trajectory.records import from_record
from valkyrie.trajectory.shape import AgentInfo, Trajectory
from valkyrie.trajectory.transcript import Event, Json, Transcript
from valkyrie.trajectory.turns import turn_slice

__all__ = ["Foreign", "read_foreign", "turn_slice"]

FORMS = (
    "trial results (results.jsonl), outcomes with a stimulus and a trajectory, ATIF, the output of "
    "copilot --output-format json, or of claude --output-format stream-json"
)
_PASSED_OVER = frozenset({"comparison", "run-summary", "eval-summary"})
"""Lines that stand between trial results and are none."""
_COPILOT = ("assistant.", "user.", "session.", "tool.")
_CLAUDE = frozenset({"system", "assistant", "user", "result"})


@dataclass(frozen=True, slots=True)
class Foreign:
    """One trial somebody else ran."""

    stimulus: str | None
    """Its name, where the data says it."""
    transcript: Transcript
    """Of a trial that ended in an error: nothing but that error."""
    record: Json | None = None
    """The whole record, for data that is one."""


def read_foreign(text: str, *, skills: Sequence[str] = ()) -> list[Foreign]:
    """Every trial in the text, in order; `skills` are those the agents were offered.

    Raises TrajectoryError that names the line and what was expected.
    """
    if not text.strip():
        raise TrajectoryError(f"there is nothing to read. Expected: {FORMS}.")
    found = list(_values(text))
    values = [value for _, value in found if value is not None]
    if _is_copilot(values):
        return [Foreign(None, _copilot(values, skills))]
    if _is_claude(values):
        return [Foreign(None, _claude(values, skills))]
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


def _record(value: Any, line: int, skills: Sequence[str]) -> Foreign:
    if not isinstance(value, dict):
        raise TrajectoryError(f"line {line}: an object is expected: {FORMS}.")
    try:
        if "trajectory" in value:
            return _outcome(value, skills)
        if isinstance(value.get("schema_version"), str):
            return Foreign(_named(at(value, "extra", "stimulus")), _atif(value, skills))
        if isinstance(value.get("events"), list):
            return Foreign(_named(value.get("stimulus")), from_record(value))
    except TrajectoryError as error:
        raise TrajectoryError(f"line {line}: {error}") from None
    said = f" (its type is {word(value.get('type'), 40)!r})" if _kind(value) else ""
    raise TrajectoryError(f"line {line}: this is none of what can be read{said}. Expected: {FORMS}.")


def _outcome(value: Json, skills: Sequence[str]) -> Foreign:
    """A trial's result: with a trajectory in either form, or with the error it ended in."""
    inner = value["trajectory"]
    name = _named(value.get("stimulus")) or _named(at(inner, "stimulus")) or _named(value.get("stimulusName"))
    if inner is None:
        said = value.get("error")
        message = word(said if isinstance(said, str) else at(said, "message"), 1000)
        error = Event("error", {"message": message or "the trial has no trajectory"})
        return Foreign(name, Transcript("", (error,)), value)
    if isinstance(inner, dict) and isinstance(inner.get("schema_version"), str):
        return Foreign(name, _atif(inner, skills), value)
    return Foreign(name, from_record(inner), value)


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
