"""How many tasks, or trials of each, it would take to see a difference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from valkyrie.report.statistics.intervals import mean, variance

POWER = 0.8
ALPHA = 0.05
_Z_POWER = 0.8416212335729143
_MOST = 1_000_000
"""Nobody runs more; such a number would only look exact."""


@dataclass(frozen=True, slots=True)
class Needed:
    """What would show a difference of the size seen, four times in five (80 % power, two-sided 5 %)."""

    more_tasks: int
    trials: int | None
    """Of each task, in all, on the tasks there are; None where the data cannot say, or no number would do."""


@dataclass(frozen=True, slots=True)
class _Bar:
    """What a p-value must be below, and what follows from it."""

    alpha: float

    @property
    def z(self) -> float:
        from statistics import NormalDist

        return NormalDist().inv_cdf(1 - self.alpha / 2)

    @property
    def fewest(self) -> int:
        """Tasks that must differ before the smallest possible two-sided p-value is below it."""
        return math.floor(math.log2(2 / self.alpha)) + 1


def needed(
    a: Sequence[Sequence[float]], b: Sequence[Sequence[float]], *, pass_fail: bool, comparisons: int = 1
) -> Needed | None:
    """From the trials of each task on both sides; None where no difference was seen.

    Where several comparisons are made together, the strictest of their bars is to be cleared.
    """
    apart = [mean(left) - mean(right) for left, right in zip(a, b, strict=True)]
    if len(apart) < 2 or abs(mean(apart)) < 1e-9:
        return None
    bar, seen = _Bar(ALPHA / comparisons), abs(mean(apart))
    tasks = _pass_fail_tasks(apart, seen, bar) if pass_fail else _score_tasks(apart, seen, bar)
    if tasks > _MOST:
        return None
    return Needed(max(1, tasks - len(apart)), _trials(a, b, apart, bar))


def _pass_fail_tasks(apart: Sequence[float], seen: float, bar: _Bar) -> int:
    """For McNemar's test (Connor 1987), with a correction for its being exact."""
    differing = mean([abs(value) for value in apart])
    root = bar.z * math.sqrt(differing) + _Z_POWER * math.sqrt(max(0.0, differing - seen * seen))
    plain = (root / seen) ** 2
    exact = plain / 4 * (1 + math.sqrt(1 + 4 / (plain * seen))) ** 2
    return math.ceil(max(exact, bar.fewest / differing) - 1e-9)


def _score_tasks(apart: Sequence[float], seen: float, bar: _Bar) -> int:
    plain = (bar.z + _Z_POWER) ** 2 * variance(apart) / seen**2
    return max(bar.fewest, math.ceil(plain + bar.z**2 / 2 - 1e-9))


def _trials(
    a: Sequence[Sequence[float]], b: Sequence[Sequence[float]], apart: Sequence[float], bar: _Bar
) -> int | None:
    """What varies between trials shrinks with their number; what varies between tasks stays."""
    lists = [*a, *b]
    if any(len(scores) < 2 for scores in lists) or len(apart) < bar.fewest:
        return None
    noise = [variance(scores) for scores in lists]
    within = math.fsum(noise) / len(apart)
    now = math.fsum(one / len(scores) for one, scores in zip(noise, lists, strict=True)) / len(apart)
    between = max(0.0, variance(apart) - now)
    allowed = len(apart) * (mean(apart) / (bar.z + _Z_POWER)) ** 2 - between
    if allowed <= 0 or within <= 0:
        return None
    fewest = min(len(scores) for scores in lists)
    trials = max(fewest + 1, math.ceil(within / allowed - 1e-9))
    return trials if trials <= _MOST else None
