"""What several trials of each task say: pass@k, pass^k, and how often two trials of a task disagree."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from valkyrie.report.statistics.intervals import Interval, mean, mean_interval, means_interval

Tally = tuple[int, int]
"""(passed, trials) of one task."""
_MOST_EXACT = 300
"""Binomial coefficients of more trials than this have hundreds of digits; logarithms are good to eight."""


def pass_at(tallies: Sequence[Tally], k: int) -> float | None:
    """Mean over tasks of the chance that at least one of k trials passes; unbiased.

    None unless every task has k trials.
    """
    return _mean(_chances(tallies, k, _any_of))


def pass_all(tallies: Sequence[Tally], k: int) -> float | None:
    """pass^k: mean over tasks of the chance that all of k trials pass; unbiased."""
    return _mean(_chances(tallies, k, _all_of))


def pass_at_interval(
    tallies: Sequence[Tally], k: int, families: Sequence[str] | None = None
) -> Interval | None:
    """Return the 95 % interval of pass@k over tasks, or over families that are given for each.

    None unless every task has k trials.
    """
    return _interval(_chances(tallies, k, _any_of), families)


def pass_all_interval(
    tallies: Sequence[Tally], k: int, families: Sequence[str] | None = None
) -> Interval | None:
    """Return the same of pass^k."""
    return _interval(_chances(tallies, k, _all_of), families)


def disagreement(tallies: Sequence[Tally]) -> float | None:
    """Return the chance that two trials of a task disagree, as a mean over tasks with two trials or more.

    It is unbiased, so it does not grow with the number of trials; None where no task has two.
    """
    return _mean([2 * passed * (n - passed) / (n * (n - 1)) for passed, n in tallies if n > 1])


def _any_of(passed: int, n: int, k: int) -> float:
    return 1 - _all_of(n - passed, n, k)


def _all_of(passed: int, n: int, k: int) -> float:
    """C(passed, k) / C(n, k): the chance that k of n trials, drawn without putting back, all passed."""
    if passed in (0, n) or k > passed:
        return float(passed == n)
    if n <= _MOST_EXACT:
        return math.comb(passed, k) / math.comb(n, k)
    logs = math.lgamma(passed + 1) - math.lgamma(passed - k + 1) - math.lgamma(n + 1) + math.lgamma(n - k + 1)
    return min(1.0, math.exp(logs))


def _chances(tallies: Sequence[Tally], k: int, chance: Callable[[int, int, int], float]) -> list[float]:
    """Return each task's own estimate; nothing unless every task has k trials."""
    if not tallies or not 1 <= k <= min(trials for _, trials in tallies):
        return []
    kinds = {tally: chance(*tally, k) for tally in set(tallies)}
    return [kinds[tally] for tally in tallies]


def _mean(values: Sequence[float]) -> float | None:
    return mean(values) if values else None


def _interval(values: Sequence[float], families: Sequence[str] | None) -> Interval | None:
    if not families:
        return means_interval(values)[0] if values else None
    tasks = {str(number): [value] for number, value in enumerate(values)}
    known = {str(number): family for number, family in enumerate(families)}
    return mean_interval(tasks, families=known)[0]
