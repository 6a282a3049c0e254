"""What several trials of each task say: pass@k and pass^k."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

Tally = tuple[int, int]
"""(passed, trials) of one task."""


def pass_at(tallies: Sequence[Tally], k: int) -> float | None:
    """Mean over tasks of the chance that at least one of k trials passes; unbiased.

    None unless every task has k trials.
    """
    return _mean_over_tasks(tallies, k, lambda passed, n: 1 - math.comb(n - passed, k) / math.comb(n, k))


def pass_all(tallies: Sequence[Tally], k: int) -> float | None:
    """pass^k: mean over tasks of the chance that all of k trials pass; unbiased."""
    return _mean_over_tasks(tallies, k, lambda passed, n: math.comb(passed, k) / math.comb(n, k))


def _mean_over_tasks(tallies: Sequence[Tally], k: int, chance: Callable[[int, int], float]) -> float | None:
    if not tallies or not 1 <= k <= min(trials for _, trials in tallies):
        return None
    kinds = Counter(tallies)
    return math.fsum(count * chance(*tally) for tally, count in kinds.items()) / len(tallies)
