"""Write and read transcripts as the `trajectory` of result records, and read a trial's kept ones."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from valkyrie.trajectory.conversion import trajectory_of, transcript_of
from valkyrie.trajectory.json_fields import TrajectoryError
from valkyrie.trajectory.model import Trajectory
from valkyrie.trajectory.transcript import (
    INSTRUCTION,
    TRANSCRIPT,
    Event,
    Json,
    Measures,
    Transcript,
    is_too_large,
    measured,
    token_count,
)

_TOKENS = {
    "inputTokens": "input_tokens",
    "outputTokens": "output_tokens",
    "totalTokens": "total_tokens",
    "cacheReadTokens": "cache_read_tokens",
    "cacheWriteTokens": "cache_write_tokens",
}
_COUNTS = {
    "turnCount": "turn_count",
    "toolCallCount": "tool_call_count",
    "errorCount": "error_count",
    "skillActivationCount": "skill_activation_count",
}
_ABOUT = {
    "startedAt": "started_at",
    "completedAt": "completed_at",
    "model": "model",
    "executor": "executor",
    "sessionID": "session_id",
}
_BY_SKILL, _CALLS, _BY_MODEL = "skillActivationBreakdown", "callCount", "byModel"
_KNOWN_METRICS = frozenset(("tokenUsage", "wallTimeMs", "cost", *_COUNTS))
_KNOWN_METADATA = frozenset((*_ABOUT, "skillsLoaded"))
_OWN = ("id", "stimulus", "events", "metrics", "output", "workDir", "metadata", "endReason")
_ENDS = {"completed": None, "agent_timeout": "timeout"}
"""Other people's words for how an agent ended, and ours."""


def to_record(transcript: Transcript, *, id: str, stimulus: Json | str, work_dir: str) -> Json:
    """Plain data; `from_record` makes the same transcript of it again."""
    extra = dict(transcript.extra)
    metrics, metadata = _part(extra, "metrics"), _part(extra, "metadata")
    record: Json = {
        "id": id,
        "stimulus": stimulus,
        "events": [_event(event) for event in transcript.events],
        "metrics": _metrics(transcript.measures, metrics, transcript.events),
        "output": transcript.output,
        "workDir": work_dir,
        "metadata": {
            **metadata,
            **{key: getattr(transcript, name) for key, name in _ABOUT.items()},
            "skillsLoaded": list(transcript.skills_loaded),
        },
    }
    if transcript.end_reason is not None:
        record["endReason"] = transcript.end_reason
    return {**extra, **record}


def from_record(record: Mapping[str, Any]) -> Transcript:
    """The transcript of a record, our own or a foreign one; raises TrajectoryError when it is none."""
    if not isinstance(record, Mapping):
        raise TrajectoryError("trajectory: an object is expected.")
    if not isinstance(record.get("events"), list) and not isinstance(record.get("output"), str):
        raise TrajectoryError("trajectory: an object with events or an output is expected.")
    events = tuple(_events(record.get("events")))
    metrics, metadata = _object(record.get("metrics")), _object(record.get("metadata"))
    extra = {key: value for key, value in record.items() if key not in _OWN}
    for key, part in (("metrics", _more_metrics(metrics, events)), ("metadata", _more_metadata(metadata))):
        if part:
            extra[key] = part
    end = _text(record.get("endReason"))
    return Transcript(
        output=_text(record.get("output")) or "",
        events=events,
        measures=_measures(metrics) if metrics else measured(events),
        skills_loaded=tuple(_names(metadata.get("skillsLoaded"))),
        end_reason=_ENDS.get(end or "", end),
        extra=extra,
        **{name: _text(metadata.get(key)) for key, name in _ABOUT.items()},
    )


def _part(extra: Json, key: str) -> Json:
    """Return what a foreign record had below a key of ours; taken out of `extra`."""
    return _object(extra.pop(key, None))


def _event(event: Event) -> Json:
    when = {} if event.timestamp is None else {"timestamp": event.timestamp}
    return {"type": event.type, **when, "data": event.data}


def _events(value: Any) -> Iterator[Event]:
    for at, one in enumerate(value if isinstance(value, list) else []):
        if not isinstance(one, (dict, Mapping)) or not isinstance(one.get("type"), str):
            raise TrajectoryError(f"trajectory.events[{at}]: an object with a type is expected.")
        data = one.get("data", {})
        data = dict(data) if isinstance(data, (dict, Mapping)) else {"value": data}
        beside = {key: item for key, item in one.items() if key not in ("type", "timestamp", "data")}
        yield Event(one["type"], {**beside, **data}, _text(one.get("timestamp")))


def _metrics(measures: Measures, more: Json, events: Sequence[Event]) -> Json:
    usage = {**_object(more.get("tokenUsage")), **_usage_by_call(events)}
    skills = Counter(str(one.data.get("name")) for one in events if one.type == "skill_activation")
    if skills:
        more = {**more, _BY_SKILL: dict(skills)}
    found: Json = {
        **more,
        "tokenUsage": {**usage, **{key: getattr(measures, name) for key, name in _TOKENS.items()}},
        **{key: getattr(measures, name) for key, name in _COUNTS.items()},
        "wallTimeMs": measures.wall_time_ms,
    }
    return found if measures.cost is None else {**found, "cost": measures.cost}


def _usage_by_call(events: Sequence[Event]) -> Json:
    """Return how often a model was asked, and which used how many tokens, where the events tell."""
    asked = [one.data for one in events if one.type == "token_usage"]
    if not asked:
        return {}
    by_model: dict[str, Json] = {}
    for data in asked:
        if isinstance(model := data.get("model"), str):
            counts = by_model.setdefault(model, {"inputTokens": 0, "outputTokens": 0})
            for key in counts:
                counts[key] += token_count(data.get(key))
    return {_CALLS: len(asked), **({_BY_MODEL: by_model} if by_model else {})}


def _measures(metrics: Json) -> Measures:
    usage = _object(metrics.get("tokenUsage"))
    tokens = {name: token_count(usage.get(key)) for key, name in _TOKENS.items()}
    if "totalTokens" not in usage:
        tokens["total_tokens"] = tokens["input_tokens"] + tokens["output_tokens"]
    return Measures(
        **tokens,
        **{name: token_count(metrics.get(key)) for key, name in _COUNTS.items()},
        wall_time_ms=_number(metrics.get("wallTimeMs")) or 0.0,
        cost=_number(metrics.get("cost")),
    )


def _more_metrics(metrics: Json, events: Sequence[Event]) -> Json:
    """Return what a foreign record counts besides; what its events tell as well is counted from them
    again."""
    types = {event.type for event in events}
    skills = (_BY_SKILL,) if "skill_activation" in types else ()
    own = (*_TOKENS, *((_CALLS, _BY_MODEL) if "token_usage" in types else ()))
    found = {key: value for key, value in metrics.items() if key not in (*_KNOWN_METRICS, *skills)}
    usage = {key: value for key, value in _object(metrics.get("tokenUsage")).items() if key not in own}
    return {**found, "tokenUsage": usage} if usage else found


def _more_metadata(metadata: Json) -> Json:
    return {key: value for key, value in metadata.items() if key not in _KNOWN_METADATA}


def _names(value: Any) -> Iterator[str]:
    """Yield names of skills, which some write as objects."""
    for one in value if isinstance(value, list) else []:
        name = one.get("name") if isinstance(one, Mapping) else one
        if isinstance(name, str):
            yield name


def _object(value: Any) -> Json:
    return dict(value) if isinstance(value, (dict, Mapping)) else {}  # the abstract type is slow to ask


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


# What was kept of an agent's account of a trial, read from the folder of its attempt.

TRAJECTORY = "trajectory.json"
AGENT_FOLDER = "agent"
GRADING_FOLDER = "grading"
FILES = (f"{AGENT_FOLDER}/*{TRAJECTORY}", f"*{TRANSCRIPT}", f"{AGENT_FOLDER}/*{INSTRUCTION}")
"""Patterns of the files that are read here, for `outputs`."""


@dataclass(frozen=True, slots=True)
class AgentAccount:
    """What an agent did in a trial, or in one step of it."""

    step: str
    """Empty where the task has no steps."""
    instruction: str | None
    trajectory: Trajectory | None
    problem: str | None = None
    """Why there is a file and no trajectory: agents may leave anything."""

    def to_json(self) -> Json:
        """Return plain data; the trajectory as ATIF."""
        # One without a single step is none that can be written.
        trajectory = self.trajectory.to_json() if self.trajectory and self.trajectory.steps else None
        told = {"step": self.step or None, "instruction": self.instruction, "trajectory": trajectory}
        return {**told, "problem": self.problem} if self.problem else told


def read_accounts(folder: Path) -> list[AgentAccount]:
    """Return what the agent did, a step of the task each; nothing where nothing was kept."""
    agent = folder / AGENT_FOLDER
    return [_account(folder, step) for step in _steps(agent)] if folder.is_dir() else []


def read_record(folder: Path, *, id: str, stimulus: str) -> Json | None:
    """Return the account as a record of results.jsonl has it; None where there is none that can be read.

    Of a task of several steps it is that of the last.
    """
    for step in reversed(_steps(folder / AGENT_FOLDER)):
        for file in _records(folder, step):
            if (found := _json(file)) is not None:
                return found
        if (data := _json(folder / AGENT_FOLDER / step / TRAJECTORY)) is not None:
            try:
                transcript: Transcript = transcript_of(Trajectory.from_json(data))
            except TrajectoryError:
                continue
            return to_record(transcript, id=id, stimulus=stimulus, work_dir="")
    return None


def _steps(agent: Path) -> list[str]:
    """Folders of the steps, oldest first; of a task without steps there is one, called nothing."""
    inner = [one for one in agent.iterdir() if one.is_dir() and _has_any(one)] if agent.is_dir() else []
    named = [one.name for one in sorted(inner, key=lambda one: (one.stat().st_mtime_ns, one.name))]
    return named if named and not _has_any(agent) else [""]


def _has_any(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (TRAJECTORY, TRANSCRIPT, INSTRUCTION))


def _account(folder: Path, step: str) -> AgentAccount:
    told = _kept_text(folder / AGENT_FOLDER / step / INSTRUCTION)
    try:
        if (data := _json(folder / AGENT_FOLDER / step / TRAJECTORY)) is not None:
            return AgentAccount(step, told, Trajectory.from_json(data))
        for file in _records(folder, step):
            if (record := _json(file)) is not None:
                return AgentAccount(step, told, trajectory_of(from_record(record)))
    except (TrajectoryError, ValueError, KeyError, TypeError, RecursionError) as error:
        return AgentAccount(step, told, None, f"what the agent left cannot be read: {error}"[:500])
    files = (folder / AGENT_FOLDER / step / TRAJECTORY, *_records(folder, step))
    sizes = [one.stat().st_size for one in files if one.is_file()]
    if sizes and is_too_large(max(sizes)):
        return AgentAccount(
            step, told, None, f"it has {max(sizes) >> 20} MiB; raise trajectory_max_mb to read it"
        )
    return AgentAccount(step, told, None)


def _records(folder: Path, step: str) -> Iterator[Path]:
    """Yield where a transcript may be: what grading put together says more than what the agent left."""
    yield folder / GRADING_FOLDER / step / TRANSCRIPT
    yield folder / AGENT_FOLDER / step / TRANSCRIPT


def _json(path: Path) -> Json | None:
    text = _kept_text(path)
    try:
        found = None if text is None else json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _kept_text(path: Path) -> str | None:
    try:
        if path.is_symlink() or not path.is_file() or is_too_large(path.stat().st_size):
            return None
        return path.read_text("utf-8", "replace")
    except OSError:
        return None
