"""95 % intervals of a mean over tasks."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from functools import lru_cache

Interval = tuple[float, float]

Z_95 = 1.959963984540054
Z_90 = 1.6448536269514722
RESAMPLES = 2000
MANY_TASKS = 400
"""From here on the resampled mean is normal to within its own noise, and the formula gives it at once."""
FEW_TASKS = 6
"""Below this, resampling cannot leave the range of what was seen, which misses the mean far too often."""
_T_95 = (12.706204736432095, 4.302652729911275, 3.182446305284263, 2.7764451051977987)
"""Student's 97.5 % points for 1 to 4 degrees of freedom, where the series is not yet good."""


def wilson(passed: int, total: int) -> Interval | None:
    """95 % interval of a pass rate (Wilson's score interval)."""
    if total <= 0:
        return None
    rate, z2 = passed / total, Z_95 * Z_95
    centre = (rate + z2 / (2 * total)) / (1 + z2 / total)
    half = Z_95 * math.sqrt(rate * (1 - rate) / total + z2 / (4 * total * total)) / (1 + z2 / total)
    return max(0.0, centre - half), min(1.0, centre + half)


def mean_interval(
    by_task: Mapping[str, Sequence[float]],
    *,
    scale: Interval = (0.0, 1.0),
    families: Mapping[str, str] | None = None,
) -> tuple[Interval | None, str]:
    """Return the 95 % interval of the mean over tasks, and how it was found, or why there is none.

    Trials of a task are averaged first: they are no independent evidence about tasks of this kind. `scale` is
    the range of possible scores. With `families` (task to family) the interval goes over families.
    """
    if families:
        members: dict[str, list[float]] = {}
        for task, scores in by_task.items():
            if scores:
                members.setdefault(families.get(task, task), []).append(mean(scores))
        if not members:
            return None, "nothing was graded"
        found = [mean(values) for values in members.values()]
        return ends_added(found, scale), f"Student's t over {len(found)} families"
    lists = [scores for scores in by_task.values() if scores]
    means = [mean(scores) for scores in lists]
    if not means:
        return None, "nothing was graded"
    if all(value in (0.0, 1.0) for value in means):
        single = all(len(scores) == 1 for scores in lists)
        return wilson(round(sum(means)), len(means)), "Wilson" if single else "Wilson over tasks"
    return means_interval(means)


def means_interval(means: Sequence[float], clip: Interval = (0.0, 1.0)) -> tuple[Interval | None, str]:
    """The same for one number per task; `clip` holds where all numbers are within it."""
    if len(means) == 1:
        return None, "one task says nothing about others"
    if len(set(means)) == 1:
        return None, "all tasks alike"
    if len(means) > MANY_TASKS:
        return _clipped(_normal(means), means, clip), "normal over tasks"
    if len(means) < FEW_TASKS:
        return _clipped(student(means), means, clip), "Student's t over tasks"
    return resampled(means), "bootstrap over tasks"


def bootstrap(by_task: Mapping[str, Sequence[float]], seed: int = 0) -> Interval | None:
    """95 % interval of the mean over tasks, by resampling tasks; repetitions of a task stay together."""
    means = [mean(scores) for scores in by_task.values() if scores]
    if len(set(means)) < 2:
        return None  # resampling equal values says they are certain, which they are not
    return _normal(means) if len(means) > MANY_TASKS else resampled(means, seed)


def resampled(means: Sequence[float], seed: int = 0) -> Interval:
    """Percentiles of resampled means, taken further out the fewer tasks there are.

    Plain percentiles are too narrow by √((n-1)/n), and by normal instead of Student's t; Hesterberg's
    correction moves them out by just that.
    """
    return _resampled(tuple(sorted(means)), seed)  # the order tasks come in must not matter


@lru_cache(maxsize=64)
def _resampled(ordered: tuple[float, ...], seed: int) -> Interval:
    """It takes long, and a run is looked at more often than it changes."""
    count = len(ordered)
    reach = math.sqrt(count / (count - 1)) * t_95(count - 1)
    skipped = int(RESAMPLES * normal_tail(reach))
    rng = random.Random(seed)  # noqa: S311 - the same data must give the same interval
    found = sorted(math.fsum(rng.choices(ordered, k=count)) / count for _ in range(RESAMPLES))
    return found[skipped], found[RESAMPLES - 1 - skipped]


def ends_added(values: Sequence[float], scale: Interval, reach: float | None = None) -> Interval:
    """Return Student's t interval with one value added at each end of the scale, clipped to it."""
    added = [*values, *scale]
    low, high = _around(added, t_95(len(added) - 1) if reach is None else reach)
    return max(scale[0], low), min(scale[1], high)


def student(values: Sequence[float]) -> Interval:
    """Student's t interval of a mean; at least two values."""
    return _around(values, t_95(len(values) - 1))


def _normal(values: Sequence[float]) -> Interval:
    return _around(values, Z_95)


def _around(values: Sequence[float], reach: float) -> Interval:
    centre = mean(values)
    half = reach * math.sqrt(variance(values) / len(values))
    return centre - half, centre + half


def _clipped(found: Interval, values: Sequence[float], clip: Interval) -> Interval:
    if min(values) < clip[0] or max(values) > clip[1]:
        return found
    return max(found[0], clip[0]), min(found[1], clip[1])


def mean(values: Sequence[float]) -> float:
    """Of at least one value; their order does not matter."""
    return math.fsum(values) / len(values)


def variance(values: Sequence[float]) -> float:
    """Of the population the values are a sample of; at least two."""
    centre = mean(values)
    return math.fsum((value - centre) ** 2 for value in values) / (len(values) - 1)


def normal_tail(z: float) -> float:
    """How often a standard normal number is above `z`."""
    return math.erfc(z / math.sqrt(2)) / 2


def t_95(freedom: int) -> float:
    """Student's 97.5 % point."""
    if freedom <= len(_T_95):
        return _T_95[freedom - 1]
    z, n = Z_95, freedom
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * n**4)
    )
