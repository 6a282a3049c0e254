"""What happened in one trial as events: count them, cut out a turn, mend an account that was cut."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from valkyrie.config import values

Json = dict[str, Any]

TRANSCRIPT = "transcript.json"
"""The file, beside trajectory.json, in which an agent that speaks in events leaves its transcript."""
INSTRUCTION = "instruction.md"
"""The file beside them with what the agent was told, where it left no account that says so."""


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened.

    Types: tool_call {toolName, toolCallId, arguments, turnId?}, tool_result {toolName, toolCallId, success?,
    result}, assistant_message, user_message, reasoning {content}, turn_start, turn_end {turnId},
    skill_activation {name, path}, error {message}, system, custom, token_usage.
    """

    type: str
    data: Json = field(default_factory=dict)
    timestamp: str | None = None
    """ISO 8601."""


@dataclass(frozen=True, slots=True)
class Measures:
    """What a trial used, in numbers."""

    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    turn_count: int = 0
    tool_call_count: int = 0
    error_count: int = 0
    skill_activation_count: int = 0
    wall_time_ms: float = 0.0
    cost: float | None = None


@dataclass(frozen=True, slots=True)
class Transcript:
    """One trial's story."""

    output: str
    """The last thing the agent said."""
    events: Sequence[Event] = ()
    measures: Measures = field(default_factory=Measures)
    model: str | None = None
    executor: str | None = None
    session_id: str | None = None
    started_at: str | None = None
    completed_at: str | None = None
    skills_loaded: Sequence[str] = ()
    end_reason: str | None = None
    """`timeout`, `killed`, or None for an agent that ended by itself."""
    extra: Json = field(default_factory=dict)
    """Keys of a foreign record that have no place here."""

    def of_type(self, *types: str) -> Iterator[Event]:
        return (event for event in self.events if event.type in types)


# Counting what a transcript's events say.


MOST_TOKENS = 10**12


def measured(events: Iterable[Event], *, wall_time_ms: float = 0.0) -> Measures:
    """Return what the events come to; a transcript with no turns of the model counted has its messages
    counted."""
    found = Measures(wall_time_ms=wall_time_ms)
    calls = errors = skills = messages = asked = 0
    for event in events:
        calls += event.type == "tool_call"
        errors += event.type == "error"
        skills += event.type == "skill_activation"
        messages += event.type == "assistant_message"
        if event.type == "token_usage":
            asked += 1
            found = with_usage(found, event.data)
    return replace(
        found,
        turn_count=asked or messages,
        tool_call_count=calls,
        error_count=errors,
        skill_activation_count=skills,
    )


def with_usage(so_far: Measures, usage: Json) -> Measures:
    """With the tokens of one `tokenUsage` added."""
    prompt, output = token_count(usage.get("inputTokens")), token_count(usage.get("outputTokens"))
    cost = usage.get("cost")
    known = isinstance(cost, int | float) and not isinstance(cost, bool)
    return replace(
        so_far,
        input_tokens=so_far.input_tokens + prompt,
        output_tokens=so_far.output_tokens + output,
        total_tokens=so_far.total_tokens + prompt + output,
        cache_read_tokens=so_far.cache_read_tokens + token_count(usage.get("cacheReadTokens")),
        cache_write_tokens=so_far.cache_write_tokens + token_count(usage.get("cacheWriteTokens")),
        cost=(so_far.cost or 0.0) + float(cost) if known and cost is not None else so_far.cost,
    )


def token_count(value: object) -> int:
    """A number of tokens, or 0 for what is none."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        return 0
    return min(max(value, 0), MOST_TOKENS)


def milliseconds_between(first: str | None, last: str | None) -> float | None:
    """Return how long it is from one ISO 8601 time to another; None when either is none."""
    try:
        start, end = datetime.fromisoformat(first or ""), datetime.fromisoformat(last or "")
        return max(0.0, (end - start).total_seconds() * 1000)
    except (ValueError, TypeError):
        return None


# One turn of a conversation, cut out of its transcript.


def turn_slice(transcript: Transcript, turn: int) -> Transcript | None:
    """Return what happened in this turn (from 0) of what the user said; None when it did not come to that
    turn.

    What is known of the whole only (tokens, time) stays that of the whole.
    """
    starts = turn_starts(transcript.events)
    if not 0 <= turn < len(starts):
        return None
    begin = starts[turn] if turn else 0
    end = starts[turn + 1] if turn + 1 < len(starts) else len(transcript.events)
    events = tuple(transcript.events[begin:end])
    return replace(
        transcript,
        events=events,
        output=last_said(events) or "",
        measures=_measures(events, transcript.measures),
        end_reason=transcript.end_reason if turn + 1 == len(starts) else None,
    )


def turn_starts(events: Sequence[Event]) -> list[int]:
    """Return where each turn of the user begins: at a message that is numbered, or else at any message of a
    person.

    Programs also put words into the user's mouth (a skill's text, a reminder); those name a source.
    """
    said = [at for at, event in enumerate(events) if event.type == "user_message"]
    numbered = [at for at in said if "turnId" in events[at].data]
    own = [at for at in said if events[at].data.get("source") in (None, "", "user")]
    found = numbered or own or said
    if not found:
        return [at for at, event in enumerate(events) if event.type == "turn_start"] or [0]
    return [at - 1 if at and events[at - 1].type == "turn_start" else at for at in found]


def last_said(events: Sequence[Event]) -> str | None:
    for event in reversed(events):
        content = event.data.get("content")
        if event.type == "assistant_message" and isinstance(content, str) and content.strip():
            return content
    return None


def _measures(events: Sequence[Event], whole: Measures) -> Measures:
    times = [event.timestamp for event in events if event.timestamp]
    took = milliseconds_between(times[0], times[-1]) if len(times) > 1 else None
    found = measured(events, wall_time_ms=whole.wall_time_ms if took is None else took)
    if any(event.type == "token_usage" for event in events):
        return found
    return replace(
        whole,
        wall_time_ms=found.wall_time_ms,
        turn_count=found.turn_count,
        tool_call_count=found.tool_call_count,
        error_count=found.error_count,
        skill_activation_count=found.skill_activation_count,
    )


# An agent's account that was too large to be kept whole: its whole steps are, with a mark.

DEFAULT_LIMIT = 32 << 20
"""Bytes that are kept of an account where nothing else is configured."""
CUT = "cut"
"""In `extra` of a trajectory, or at the top of a transcript: what was left out. Nothing after it is known, so
nobody may take such an account for a whole one."""
_SPACE = re.compile(r"[ \t\r\n]*")
_LISTS = ("steps", "events")
_decoder = json.JSONDecoder()


class _EndError(Exception):
    """The text ends in the middle of a value."""


def configured_limit() -> int:
    """Return how many bytes are kept of an account: `trajectory_max_mb`."""
    return int(values.effective("trajectory_max_mb").value or 0) << 20


def is_too_large(size: int) -> bool:
    """Return whether a kept account has more bytes than are read; a mended one may be longer than what was
    kept."""
    return size > 2 * DEFAULT_LIMIT and size > 2 * configured_limit()


def mend_cut(path: Path, limit: int) -> int | None:
    """Make an account readable that was cut at `limit` bytes: whole steps stay, the last says what is gone.

    Returns how many stayed; None: it is whole, and left as it is.
    """
    text = path.read_text("utf-8", "replace")
    try:
        json.loads(text)
        return None
    except (ValueError, RecursionError):
        pass
    name = "events" if path.name == TRANSCRIPT else "steps"
    try:
        found = _whole_part(text)
    except RecursionError:
        found = {}
    if not isinstance(found.get(name), list):
        found = {name: []}
    kept = len(found[name])
    _mark(found, name, f"The account is larger than {limit >> 20} MiB: what follows step {kept} is not kept.")
    path.write_text(json.dumps(found, ensure_ascii=False), "utf-8", "replace")
    return kept


def is_cut(data: Json) -> bool:
    """Return whether something of an account is missing."""
    extra = data.get("extra")
    return CUT in data or (isinstance(extra, dict) and CUT in extra)


def _mark(found: Json, name: str, message: str) -> None:
    if name == "events":
        found["events"].append({"type": "error", "data": {"message": message}})
        found[CUT] = message
        return
    found["steps"].append({"step_id": len(found["steps"]) + 1, "source": "system", "message": message})
    extra = found.get("extra")
    found["extra"] = {**(extra if isinstance(extra, dict) else {}), CUT: message}


def _whole_part(text: str) -> Json:
    """Return the members of an object before its text ends, and the whole items of a list it ends in."""
    found: Json = {}
    try:
        at = _after(text, 0, "{")
        while True:
            name, at = _decoder.raw_decode(text, _skip(text, at))
            at = _skip(text, _after(text, at, ":"))
            if name in _LISTS and text[at : at + 1] == "[":
                found[name] = []
                at = _items(text, at + 1, found[name])
            else:
                found[name], at = _decoder.raw_decode(text, at)
            at = _after(text, at, ",")
    except (ValueError, _EndError):
        return found


def _items(text: str, at: int, items: list[Any]) -> int:
    """Read items of a list up to its end; what is whole is in `items` when the text ends before that."""
    while True:
        item, at = _decoder.raw_decode(text, _skip(text, at))
        at = _skip(text, at)
        if text[at : at + 1] not in (",", "]"):
            raise _EndError
        items.append(item)
        if text[at] == "]":
            return at + 1
        at += 1


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _after(text: str, at: int, mark: str) -> int:
    at = _skip(text, at)
    if text[at : at + 1] != mark:
        raise _EndError
    return at + 1
