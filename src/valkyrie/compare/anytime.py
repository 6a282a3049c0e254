"""Comparisons of runs that go on or stop when decided: only what holds whenever one looks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from valkyrie.compare.pairs import PairSide, ScoredTrials, TaskTrial
from valkyrie.compare.views import Comparison, Metric, Verdict
from valkyrie.domain import RunState, TrialState, ended_by_agent
from valkyrie.plan import shuffled_place
from valkyrie.report.statistics.anytime import (
    ERROR_RATE,
    AnytimeStanding,
    DecidedOutcome,
    confidence_sequence,
    family_units,
    look,
)
from valkyrie.report.statistics.intervals import Interval, mean

if TYPE_CHECKING:
    from valkyrie.views import RunView


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


# Comparisons of runs that go on, or stop when they are decided: only what holds whenever one looks.

_OPEN = "none while trials are open"
Run = tuple["RunView", ScoredTrials]
_VERDICTS: dict[DecidedOutcome | None, Verdict] = {
    DecidedOutcome.A_AHEAD: "better",
    DecidedOutcome.B_AHEAD: "worse",
    DecidedOutcome.ALIKE: "same",
    None: "unclear",
}


def as_it_goes(one: Comparison, a: Run, b: Run, metric: Metric) -> Comparison:
    """Return the comparison with what may be said of it before its runs have ended by themselves.

    Tests and intervals for a fixed number of tasks say too much when they are looked at again and again: a
    comparison of runs that go on has none of them, and one of a job that stops when it is decided has those
    that hold at every look. Trials that a decision spared belong to the runs here: they are planned.
    """
    rule = a[0].arguments.get("stop_rule")
    ruled = rule is not None and a[0].job_id is not None and a[0].job_id == b[0].job_id
    if one.ended and not ruled:
        return one
    rule = rule if ruled else None
    comparisons = one.comparisons if rule is None else int(rule["comparisons"])
    margin = one.margin if rule is None else rule["margin"]
    found: AnytimeStanding | None = None
    if one.fraction:
        mine, theirs = ([_counted(trial, metric) for trial in trials.rows()] for _, trials in (a, b))
        evidence = gather_evidence(mine, theirs, planned_order=ruled)
        error = ERROR_RATE if rule is None else float(rule["error"])
        found = look(
            evidence.units,
            error=error,
            margin=margin,
            comparisons=comparisons,
            scale=evidence.scale,
            planned=evidence.planned_units if ruled else None,
            whole=evidence.whole,
        )
        found = replace(found, families=evidence.families)
    verdict: Verdict = "nothing" if one.difference is None else _VERDICTS[found.outcome if found else None]
    said = replace(
        one,
        anytime=found,
        margin=margin,
        comparisons=comparisons,
        verdict=verdict,
        seen=verdict,
        undecided=False,
        needed=None,
        lowest=None,
        highest=None,
        limits=found.interval if one.ended and found else None,
    )
    if not one.ended or found is None:
        return replace(said, interval=None, interval_method=_OPEN, p_value=None, p_adjusted=None, test=None)
    if found.last:
        method = "Student's t at the last look"
        return replace(
            said,
            difference=found.difference,
            interval=found.interval,
            interval_method=method,
            p_value=found.error,  # at most: it was held against this
            p_adjusted=min(1.0, found.error * comparisons),
            test=method,
        )
    if found.p_value is not None:
        method = "lead in wins over losses"
        return replace(
            said,
            difference=found.difference,
            interval=found.interval,
            interval_method=method,
            p_value=found.p_value,
            p_adjusted=min(1.0, found.p_value * comparisons),
            test=method,
        )
    chance = min(1.0, 1 / found.e_value)
    return replace(
        said,
        difference=found.difference,
        interval=found.interval,
        interval_method="betting confidence sequence",
        p_value=chance,
        p_adjusted=min(1.0, chance * comparisons),
        test="betting e-value",
    )


def with_anytime_interval(one: PairSide, run: RunView, *, early: bool) -> PairSide:
    """Return the side with an interval of its score that holds although its run ended early or goes on.

    `early`: some run beside it may have ended early, so that all have intervals of that kind.
    """
    if RunState(run.state).terminal and not early:
        return one
    scores = one.summary.scores
    means = [mean(found.counted) for found in one.tasks.values() if found.counted]
    if RunState(run.state).terminal and one.summary.fraction and means:
        low, high = confidence_sequence([(2 * value - 1, 2 * value - 1) for value in means])
        leading = replace(
            scores.infrastructure_excluded,
            interval=((low + 1) / 2, (high + 1) / 2),
            method="betting confidence sequence over tasks",
        )
    else:
        leading = replace(scores.infrastructure_excluded, interval=None, method=_OPEN)
    others = {
        name: leading
        if found == scores.infrastructure_excluded
        else replace(found, interval=None, method=_OPEN)
        for name, found in (("all_trials", scores.all_trials), ("graded_only", scores.graded_only))
    }
    changed = replace(scores, infrastructure_excluded=leading, **others)
    return replace(one, summary=replace(one.summary, scores=changed))


def _counted(trial: TaskTrial, metric: Metric) -> TaskTrial:
    """The trial with what is compared as its score."""
    if metric == "score" or (trial.score is None and trial.passed is None):
        return trial
    passed = trial.passed if trial.passed is not None else (trial.score or 0.0) >= 1
    return replace(trial, score=float(passed))
