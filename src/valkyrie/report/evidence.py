"""Trials of two runs as units of evidence that may be looked at while the runs go on.

Quick tasks end first, and an agent has a hand in how quick they are. So tasks are looked at in an order that
was fixed before the run, and only as far as every earlier one has ended on both sides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from valkyrie.nouns import TrialState, ended_by_agent
from valkyrie.plan import shuffled_place
from valkyrie.report.statistics.anytime import family_units
from valkyrie.report.statistics.intervals import Interval, mean

ENDED = (TrialState.FINISHED, TrialState.ERROR)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the first tasks say of A minus B, as far as both sides ended them."""

    units: Sequence[Interval]
    """A minus B, at least and at most, of each task or family."""
    tasks: Sequence[Sequence[str]]
    """Of each unit, those that came before it without one included: nothing of them counts on either side."""
    planned: int
    """Tasks in common."""
    whole: bool
    """All of them ended on both sides."""
    families: int | None
    """Units are families; how many there are."""
    scale: float
    """What a unit is of a task's difference: 1, or the mean family's size over the largest one's."""

    @property
    def planned_units(self) -> int:
        """Units there are when all tasks have ended, unless nothing of some can be said."""
        return self.planned if self.families is None else self.families

    def tasks_of(self, units: int) -> list[str]:
        """Return the tasks of the first units."""
        return [task for some in self.tasks[:units] for task in some]


def gather_evidence(a: Sequence[Any], b: Sequence[Any], *, planned_order: bool) -> Evidence:
    """Return the units of two runs' trials: rows or views, each in the order of its plan.

    `planned_order`: the plan's order is a shuffled one. Else tasks are put in one that their names give.
    """
    mine, theirs = _by_task(a), _by_task(b)
    family: dict[str, str] = {row.task_id: row.family or row.task_id for row in a}
    grouped = any(row.family is not None for row in a)
    common = [task for task in mine if task in theirs]
    if not planned_order:
        common.sort(key=lambda task: (shuffled_place("", family[task]), shuffled_place("", task)))
    sizes = Counter(family[task] for task in common)
    largest = max(sizes.values(), default=1)
    units: list[Interval] = []
    tasks: list[list[str]] = []
    found: list[tuple[str, Interval]] = []
    passed: list[str] = []
    done = 0
    for number, task in enumerate(common):
        if not (_has_ended(mine[task]) and _has_ended(theirs[task])):
            break
        passed.append(task)
        unit = _difference(mine[task], theirs[task])
        if unit is not None:
            found.append((family[task], unit))
        if number + 1 < len(common) and family[common[number + 1]] == family[task]:
            continue
        done = number + 1
        if found:
            names, values = [name for name, _ in found], [value for _, value in found]
            units += family_units(values, names, largest)
            tasks.append(passed)
            found, passed = [], []
    return Evidence(
        units,
        tasks,
        planned=len(common),
        whole=done == len(common),
        families=len(sizes) if grouped else None,
        scale=len(common) / len(sizes) / largest if sizes else 1.0,
    )


def _by_task(rows: Sequence[Any]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for row in rows:
        found.setdefault(row.task_id, []).append(row)
    return found


def _has_ended(rows: Sequence[Any]) -> bool:
    return all(row.state in ENDED for row in rows)


def _difference(a: Sequence[Any], b: Sequence[Any]) -> Interval | None:
    """Return A minus B at least and at most; None where no trial of either says anything.

    What a trial lacks that failed for reasons outside its agent may have been anything.
    """
    mine, theirs = [_worth(row) for row in a], [_worth(row) for row in b]
    if all(value is None for value in (*mine, *theirs)):
        return None
    low = _mean(mine, 0.0) - _mean(theirs, 1.0)
    high = _mean(mine, 1.0) - _mean(theirs, 0.0)
    return round(low, 12) + 0.0, round(high, 12) + 0.0


def _worth(row: Any) -> float | None:
    """Return what a trial that ended counts, from 0 to 1: nothing if its agent ended it; None: not known."""
    if row.state == TrialState.ERROR:
        return 0.0 if ended_by_agent(row.state, row.category) else None
    return None if row.score is None else min(1.0, max(0.0, row.score))


def _mean(values: Sequence[float | None], lacking: float) -> float:
    return mean([lacking if value is None else value for value in values])


def positions_after(rows: Sequence[Any], tasks: Sequence[str]) -> int:
    """Return the position of a plan after which nothing of these tasks comes."""
    wanted: Mapping[str, None] = dict.fromkeys(tasks)
    return max((row.position + 1 for row in rows if row.task_id in wanted), default=0)
