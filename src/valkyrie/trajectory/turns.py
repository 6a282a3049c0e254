"""One turn of a conversation, cut out of its transcript."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from valkyrie.trajectory.measuring import measured, milliseconds_between
from valkyrie.trajectory.transcript import Event, Measures, Transcript


def turn_slice(transcript: Transcript, turn: int) -> Transcript | None:
    """What happened in this turn (from 0) of what the user said; None when it did not come to that turn.

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
    """Where each turn of the user begins: at a message that is numbered, or else at any message of a person.

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
    """The last words of the agent, if it said any."""
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
