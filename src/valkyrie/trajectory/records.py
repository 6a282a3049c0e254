"""A transcript as the `trajectory` of a trial-result record: what results.jsonl holds and is read from.

Whatever a foreign record says beyond that is kept in `Transcript.extra` and written again.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from valkyrie.trajectory.measuring import measured, token_count
from valkyrie.trajectory.reading import TrajectoryError
from valkyrie.trajectory.transcript import Event, Json, Measures, Transcript

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
    """What a foreign record had below a key of ours; taken out of `extra`."""
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
    """How often a model was asked, and which used how many tokens, where the events tell."""
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
    """What a foreign record counts besides; what its events tell as well is counted from them again."""
    types = {event.type for event in events}
    skills = (_BY_SKILL,) if "skill_activation" in types else ()
    own = (*_TOKENS, *((_CALLS, _BY_MODEL) if "token_usage" in types else ()))
    found = {key: value for key, value in metrics.items() if key not in (*_KNOWN_METRICS, *skills)}
    usage = {key: value for key, value in _object(metrics.get("tokenUsage")).items() if key not in own}
    return {**found, "tokenUsage": usage} if usage else found


def _more_metadata(metadata: Json) -> Json:
    return {key: value for key, value in metadata.items() if key not in _KNOWN_METADATA}


def _names(value: Any) -> Iterator[str]:
    """Names of skills, which some write as objects."""
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
