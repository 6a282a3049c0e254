"""Comparisons of runs that go on, or stop when they are decided: only what holds whenever one looks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from valkyrie.nouns import RunState
from valkyrie.report.comparison_views import Comparison, Metric, Verdict
from valkyrie.report.evidence import gather_evidence
from valkyrie.report.pairing import Side
from valkyrie.report.scored_trials import ScoredTrials, TaskTrial
from valkyrie.report.statistics.anytime import (
    ERROR_RATE,
    AnytimeStanding,
    DecidedOutcome,
    confidence_sequence,
    look,
)
from valkyrie.report.statistics.intervals import mean

if TYPE_CHECKING:
    from valkyrie.views import RunView

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


def with_anytime_interval(one: Side, run: RunView, *, early: bool) -> Side:
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
