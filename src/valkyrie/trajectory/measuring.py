"""Counting what a transcript's events say."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from valkyrie.trajectory.transcript import Event, Json, Measures

MOST_TOKENS = 10**12


def measured(events: Iterable[Event], *, wall_time_ms: float = 0.0) -> Measures:
    """What the events come to; a transcript with no turns of the model counted has its messages counted."""
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
    """How long it is from one ISO 8601 time to another; None when either is none."""
    try:
        start, end = datetime.fromisoformat(first or ""), datetime.fromisoformat(last or "")
        return max(0.0, (end - start).total_seconds() * 1000)
    except (ValueError, TypeError):
        return None
