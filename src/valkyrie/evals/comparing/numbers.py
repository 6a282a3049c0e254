"""The numbers of a comparison, each with its interval. Errored pairs are in none of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from valkyrie.evals.comparing.outcomes import Outcome, counted
from valkyrie.evals.results import TrialResult
from valkyrie.nouns import Json
from valkyrie.report.statistics import SURE, differences, holm, mcnemar, mean, sign_flip
from valkyrie.report.statistics.intervals import means_interval, variance
from valkyrie.trajectory.reading import TrajectoryError
from valkyrie.trajectory.records import from_record
from valkyrie.trajectory.transcript import Measures

METRICS: Mapping[str, Callable[[Measures], float]] = {
    "totalTokens": lambda used: used.total_tokens,
    "inputTokens": lambda used: used.input_tokens,
    "outputTokens": lambda used: used.output_tokens,
    "turnCount": lambda used: used.turn_count,
    "toolCallCount": lambda used: used.tool_call_count,
    "wallTimeMs": lambda used: used.wall_time_ms,
}


@dataclass(frozen=True, slots=True)
class Average:
    """A mean over stimuli. Of a single stimulus its trials are taken, which say nothing about others."""

    mean: float
    low: float | None
    high: float | None
    deviation: float
    p_value: float
    """Two-sided, by the sign-flip test; after a correction where several were looked at together."""

    @property
    def varies(self) -> bool:
        """The spread is larger than the difference itself."""
        return self.deviation > abs(self.mean)

    @property
    def sure(self) -> bool:
        """It is more than chance, by a two-sided test at 5 %."""
        return self.p_value < SURE

    @property
    def surely_below(self) -> bool:
        """It is below 0 by a one-sided test at 5 %. The test is symmetric: half of the two-sided p-value."""
        return self.mean < 0 and self.p_value / 2 < SURE


def average(by_task: Mapping[str, Sequence[float]], most: float = math.inf) -> Average | None:
    """The mean over stimuli of the means of their trials; None where there is nothing.

    `most` is how far from 0 a value can be.
    """
    lists = [values for values in by_task.values() if values]
    if not lists:
        return None
    units = list(lists[0]) if len(lists) == 1 else [mean(values) for values in lists]
    deviation = math.sqrt(variance(units)) if len(units) > 1 else 0.0
    if math.isinf(most):
        interval, _ = means_interval(units, (-most, most))
        low, high = interval or (None, None)
        return Average(mean(units), low, high, deviation, sign_flip(units)[0])
    found = differences(units, width=most)
    return Average(found.difference, *found.interval, deviation, found.p_value)


@dataclass(frozen=True)
class Numbers:
    """All numbers of the pairs that count."""

    outcomes: Sequence[Outcome]

    @cached_property
    def counted(self) -> Sequence[Outcome]:
        return counted(self.outcomes)

    @cached_property
    def score(self) -> Average | None:
        """Of the scores −1..1."""
        return average(_by_task([(one.pair.task, one.score) for one in self.counted]), 1.0)

    @property
    def wins(self) -> int:
        """Of the treatment."""
        return sum(one.winner == "treatment" for one in self.counted)

    @property
    def losses(self) -> int:
        return sum(one.winner == "baseline" for one in self.counted)

    @property
    def ties(self) -> int:
        return len(self.counted) - self.wins - self.losses

    @property
    def disagreements(self) -> int:
        """Pairs about which a judge changed its mind with the order."""
        return sum(one.disagreed for one in self.counted)

    @property
    def judged(self) -> int:
        return sum(one.judged for one in self.counted)

    def mcnemar(self) -> Json:
        """Over pairs with a verdict on both sides; the mid-p value, which is not that of the exact test."""
        pairs = [one.pair for one in self.counted]
        verdicts = [(one.baseline.passed, one.treatment.passed) for one in pairs]
        lost = verdicts.count((True, False))
        won = verdicts.count((False, True))
        same = verdicts.count((True, True)) + verdicts.count((False, False))
        return {
            "baselineOnly": lost,
            "treatmentOnly": won,
            "concordant": same,
            "pValue": mcnemar(won, lost),
            "exact": False,
        }

    @cached_property
    def deltas(self) -> Mapping[str, Average]:
        """Treatment minus baseline, of what both measured; p-values are corrected for looking at all."""
        measured = [
            (one.pair, before, after)
            for one in self.counted
            if (before := measures_of(one.pair.baseline)) and (after := measures_of(one.pair.treatment))
        ]
        found: dict[str, Average] = {}
        for name, value in METRICS.items():
            if not any(value(before) or value(after) for _, before, after in measured):
                continue
            apart = [(pair.task, value(after) - value(before)) for pair, before, after in measured]
            if (one := average(_by_task(apart))) is not None:
                found[name] = one
        corrected = holm([one.p_value for one in found.values()])
        return {
            name: replace(one, p_value=p_value)
            for (name, one), p_value in zip(found.items(), corrected, strict=True)
        }


def measures_of(trial: TrialResult) -> Measures | None:
    """What a trial used, as its trajectory says; None without one."""
    if trial.transcript is None:
        return None
    try:
        return from_record(trial.transcript).measures
    except TrajectoryError:
        return None


def stimuli_of(outcomes: Sequence[Outcome]) -> Mapping[str, Sequence[Outcome]]:
    """By stimulus, in order."""
    found: dict[str, list[Outcome]] = {}
    for one in outcomes:
        found.setdefault(one.pair.task, []).append(one)
    return found


def _by_task(values: Sequence[tuple[str, float]]) -> Mapping[str, Sequence[float]]:
    found: dict[str, list[float]] = {}
    for task, value in values:
        found.setdefault(task, []).append(value)
    return found
