"""How many tasks or trials show a difference, and what several trials of each task say."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from valkyrie.domain import Json
from valkyrie.report.statistics.intervals import (
    Interval,
    mean,
    mean_interval,
    means_interval,
    normal_distribution,
    variance,
)

ByTask = Mapping[str, Sequence[float]]
POWER = 0.8
ALPHA = 0.05
_Z_POWER = 0.8416212335729143
_SIZES = (30, 100, 300, 1000, 3000, 10_000)
_MOST = 1_000_000
"""Nobody runs more; such a number would only look exact."""


@dataclass(frozen=True, slots=True)
class Needed:
    """What would show a gap of a stated size, four times in five (80 % power, two-sided 5 %).

    Numbers are rounded: they stand and fall with the gap, which is not known.
    """

    more_tasks: int
    trials: int | None
    """Of each task, in all, on the tasks there are; None where the data cannot say, or no number would do."""
    tasks: int
    """In all."""
    gap: float
    """The true gap this is for: the one seen."""
    least: float
    """What the gap may be, by its interval."""
    most: float


@dataclass(frozen=True, slots=True)
class _Bar:
    """What a p-value must be below, and what follows from it."""

    alpha: float

    @property
    def z(self) -> float:
        return normal_distribution().inv_cdf(1 - self.alpha / 2)

    @property
    def fewest(self) -> int:
        """Tasks that must differ before the smallest possible two-sided mid-p value is below it."""
        return math.floor(math.log2(1 / self.alpha)) + 1


def needed(
    a: Sequence[Sequence[float]],
    b: Sequence[Sequence[float]],
    *,
    pass_fail: bool,
    comparisons: int = 1,
    interval: Interval | None = None,
) -> Needed | None:
    """Tell from the trials of each task on both sides; None where no difference was seen.

    Where several comparisons are made together, the strictest of their bars is to be cleared.
    """
    apart = [mean(left) - mean(right) for left, right in zip(a, b, strict=True)]
    if len(apart) < 2 or abs(mean(apart)) < 1e-9:
        return None
    bar, seen = _Bar(ALPHA / comparisons), abs(mean(apart))
    tasks = _pass_fail_tasks(apart, seen, bar) if pass_fail else _score_tasks(apart, seen, bar)
    if tasks > _MOST:
        return None
    tasks = max(len(apart) + 1, rounded_up(tasks))
    low, high = interval or (seen, seen)
    if interval and mean(apart) < 0:
        low, high = -high, -low
    trials = _trials(a, b, apart, bar)
    return Needed(
        more_tasks=tasks - len(apart),
        trials=trials and rounded_up(trials),
        tasks=tasks,
        gap=seen,
        least=max(0.0, low),
        most=max(seen, high),
    )


def rounded_up(count: int) -> int:
    """Return a number with at most two digits that are not 0."""
    unit = int(10 ** max(0, len(str(count)) - 2))
    return -(-count // unit) * unit


def _pass_fail_tasks(apart: Sequence[float], seen: float, bar: _Bar) -> int:
    """For McNemar's mid-p test (Connor 1987)."""
    differing = mean([abs(value) for value in apart])
    root = bar.z * math.sqrt(differing) + _Z_POWER * math.sqrt(max(0.0, differing - seen * seen))
    return math.ceil(max((root / seen) ** 2, bar.fewest / differing) - 1e-9)


def _score_tasks(apart: Sequence[float], seen: float, bar: _Bar) -> int:
    plain = (bar.z + _Z_POWER) ** 2 * variance(apart) / seen**2
    return max(bar.fewest, math.ceil(plain + bar.z**2 / 2 - 1e-9))


def _trials(
    a: Sequence[Sequence[float]], b: Sequence[Sequence[float]], apart: Sequence[float], bar: _Bar
) -> int | None:
    """Return what varies between trials shrinks with their number; what varies between tasks stays."""
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


_NOISE = (0.05, 0.10)
"""Without past data: the variance between trials of a task, at least and at most."""
_UNLIKE = (0.0, 0.05)
"""Without past data: how much the true difference of two agents varies between tasks."""
_AGREEMENT = 0.75
"""How far two agents agree on which tasks are hard, where only one of them is known."""


def detectable(
    tasks: int, trials: int, *, within: float | None = None, between: float | None = None
) -> tuple[float, float]:
    """Return the range of true gaps between two agents that such a run shows 4 times in 5.

    `within` is the variance between trials of a task, `between` that between tasks, both of past runs;
    without them the range is that of usual benchmarks. Gaps are shares of the scale.
    """
    noise = _NOISE if within is None else (within, within)
    unlike = _UNLIKE if between is None else (0.0, 2 * between * (1 - _AGREEMENT))
    reach = _Bar(ALPHA).z + _Z_POWER
    low, high = (
        min(1.0, reach * math.sqrt((extra + 2 * one / max(1, trials)) / max(1, tasks)))
        for one, extra in zip(noise, unlike, strict=True)
    )
    return low, high


@dataclass(frozen=True, slots=True)
class Spread:
    """Where the uncertainty of a mean over tasks comes from."""

    between: float
    """The variance of tasks' true scores."""
    within: float | None
    """The variance between trials of a task; None where no task has two."""
    tasks: int
    trials: float
    """Of each task, on average."""

    @property
    def between_share(self) -> float | None:
        """The share of the score's uncertainty that only more tasks make smaller; None where not known."""
        if self.within is None:
            return None
        total = self.between + self.within / self.trials
        return self.between / total if total > 0 else None


def spread(by_task: Mapping[str, Sequence[float]]) -> Spread:
    """Part the variance of scores into that between tasks and that between trials of a task."""
    lists = [scores for scores in by_task.values() if scores]
    repeated = [scores for scores in lists if len(scores) > 1]
    trials = len(lists) / math.fsum(1 / len(scores) for scores in lists) if lists else 0.0
    means = [mean(scores) for scores in lists]
    seen = variance(means) if len(means) > 1 else 0.0
    if not repeated:
        return Spread(seen, None, len(lists), trials)
    freedom = sum(len(scores) - 1 for scores in repeated)
    within = math.fsum(variance(scores) * (len(scores) - 1) for scores in repeated) / freedom
    return Spread(max(0.0, seen - within / trials), within, len(lists), trials)


# What several trials of each task say: pass@k, pass^k, and how often two trials of a task disagree.

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
