"""What a run can show before it is run, and what its spread was made of after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from valkyrie.domain import Json
from valkyrie.report.formats import plural
from valkyrie.report.statistics import detectable, mean, spread

ByTask = Mapping[str, Sequence[float]]
_SIZES = (30, 100, 300, 1000, 3000, 10_000)
_MOSTLY, _HARDLY = 0.75, 0.25


def planned_gaps(tasks: int, trials: int, past: Sequence[ByTask] = ()) -> Json:
    """Return which true gaps between two agents a run of so many tasks shows 4 times in 5, as data.

    `past` are scores of earlier runs by task, one item for each agent. Those with several trials of a task
    say how much trials and tasks vary; without them the range is that of usual benchmarks.
    """
    known = [found for found in map(spread, past) if found.within is not None and found.tasks > 1]
    within = mean([found.within or 0.0 for found in known]) if known else None
    between = mean([found.between for found in known]) if known else None
    more = next((size for size in _SIZES if size > tasks * 1.5), tasks * 4)

    def gaps(count: int) -> Json:
        low, high = detectable(count, trials, within=within, between=between)
        return {"tasks": count, "trials": trials, "low": round(low, 4), "high": round(high, 4)}

    return {**gaps(tasks), "more": gaps(more), "past_agents": len(known)}


def gaps_text(found: Mapping[str, Any]) -> str:
    """`30 tasks × 1 trial: gaps of about 16 to 26 points; 100 tasks: 9 to 14`."""
    more = found["more"]
    each = f"{plural(found['tasks'], 'task')} × {plural(found['trials'], 'trial')}"
    past = found["past_agents"]
    source = f" (from {plural(past, 'agent')} in past runs)" if past else ""
    return f"{each}: gaps of about {_range(found)} points; {more['tasks']:,} tasks: {_range(more)}{source}"


def _range(found: Mapping[str, Any]) -> str:
    low, high = (max(1, round(100 * found[end])) for end in ("low", "high"))
    return str(low) if low == high else f"{low} to {high}"


def spread_json(by_task: ByTask) -> Json | None:
    """Return where the uncertainty of a score comes from; None where no task has two trials."""
    found = spread(by_task)
    if found.within is None or found.between_share is None:
        return None
    return {
        "between_tasks": found.between,
        "between_trials": found.within,
        "between_tasks_share": found.between_share,
    }


def spread_text(found: Mapping[str, Any]) -> str:
    """`83 % between tasks, 17 % between trials: more tasks help, more trials do not`."""
    share = float(found["between_tasks_share"])
    if share >= _MOSTLY:
        advice = "more tasks help, more trials do not"
    elif share <= _HARDLY:
        advice = "more trials help nearly as much as more tasks"
    else:
        advice = "more tasks help most, more trials help too"
    tasks = round(100 * share)
    return f"{tasks} % between tasks, {100 - tasks} % between trials: {advice}"
