"""A conversation of several turns: each is a command of its own, and together they are one story."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from valkyrie.agents.catalogue.reading import Reading
from valkyrie.agents.protocol import Usage
from valkyrie.trajectory import FinalMetrics, Step, Trajectory
from valkyrie.trajectory.converting import ERROR, TURN


class Clock:
    """What is left of the time all turns have together."""

    def __init__(self, limit: float | None) -> None:
        self._end = None if limit is None else time.monotonic() + limit

    def left(self) -> float | None:
        """Seconds; None is no limit."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())


def together(readings: Sequence[Reading], masked: Callable[[str], str], *, ended: bool) -> Reading:
    """What was read of each turn as one: steps in order, usage added up, the last turn's trouble, masked.

    One that did not end by itself is in no trouble of its own.
    """
    if not readings:
        return Reading()
    trouble = readings[-1].trouble if ended else None
    if trouble:
        trouble = replace(trouble, message=masked(trouble.message))
    told = _joined([one.trajectory for one in readings])
    if told and trouble:
        told = replace(told, extra={**(told.extra or {}), ERROR: trouble.message})
    return Reading(told, used_in(readings), trouble)


def append(log: Path, more: Path) -> None:
    """Put one turn's log behind those before it."""
    with log.open("ab") as target, more.open("rb") as source:
        while piece := source.read(1 << 20):
            target.write(piece)
    more.unlink()


def _joined(trajectories: Sequence[Trajectory | None]) -> Trajectory | None:
    found = [(turn, one) for turn, one in enumerate(trajectories) if one is not None]
    if not found:
        return None
    steps: list[Step] = []
    for turn, one in found:
        steps += _numbered(one.steps, turn, len(steps))
    first = found[0][1]
    finals = [one.final_metrics for _, one in found if one.final_metrics]
    return replace(first, steps=tuple(steps), final_metrics=_final(finals, len(steps)))


def _numbered(steps: Sequence[Step], turn: int, before: int) -> list[Step]:
    """The steps of one turn behind those before it; what the user said first begins the turn."""
    found = [replace(step, step_id=before + at + 1) for at, step in enumerate(steps)]
    for at, step in enumerate(found):
        if step.source == "user":
            found[at] = replace(step, extra={**(step.extra or {}), TURN: turn})
            break
    return found


def _final(finals: Sequence[FinalMetrics], steps: int) -> FinalMetrics:
    costs = [one.total_cost_usd for one in finals if one.total_cost_usd is not None]
    if not any(one.total_prompt_tokens or one.total_completion_tokens for one in finals):
        return FinalMetrics(total_steps=steps)
    return FinalMetrics(
        total_prompt_tokens=sum(one.total_prompt_tokens or 0 for one in finals),
        total_completion_tokens=sum(one.total_completion_tokens or 0 for one in finals),
        total_cached_tokens=sum(one.total_cached_tokens or 0 for one in finals),
        total_cost_usd=sum(costs) if costs else None,
        total_steps=steps,
    )


def used_in(readings: Sequence[Reading]) -> Usage | None:
    """What these turns used together; None when none of them says."""
    usages = [one.usage for one in readings if one.usage]
    if not usages:
        return None
    costs = [one.cost for one in usages if one.cost is not None]
    # A turn that was cut short tells no cost; a sum without it would be no sum.
    known = len(costs) == len(usages)
    return Usage(
        input_tokens=sum(one.input_tokens for one in usages),
        cached_tokens=sum(one.cached_tokens for one in usages),
        output_tokens=sum(one.output_tokens for one in usages),
        cost=sum(costs) if known else None,
        cost_source=usages[-1].cost_source if known else None,
        model=usages[-1].model,
        steps=sum(one.steps for one in usages),
    )
