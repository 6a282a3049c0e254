"""Two agents on the same tasks: how far apart, and whether that could be chance."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from valkyrie.report.statistics.intervals import (
    METHOD,
    TAIL,
    Z_90,
    Z_95,
    Groups,
    Interval,
    family_groups,
    family_words,
    lower_limit,
    mean,
    normal_distribution,
    normal_tail,
    unseen_share,
    upper_limit,
)

SURE = 0.05
"""Two-sided p-values below this are more than chance."""
_MOST_BITS = 1_000_000_000
"""Bits the exact count may add up; well below a tenth of a second."""
_FINEST = 10_000
"""Differences that are no multiples of 1/10,000 are rounded to as fine a step as can be counted."""
_COARSEST = 100
"""Where not even this many steps up to the largest difference can be counted, the normal limit is taken."""
_NEAR = 1e-9


@dataclass(frozen=True, slots=True)
class Paired:
    """A minus B, per task."""

    difference: float
    interval: Interval
    """95 %; it excludes 0 exactly when `p_value` is below 0.05."""
    interval_method: str
    p_value: float
    test: str
    pass_fail: bool
    """Every task simply passed or failed on both sides."""
    apart: Sequence[float]
    """Each task's difference."""
    lowest: float
    """One-sided 95 % limit of A minus B; it holds alone, not together with `highest`."""
    highest: float
    families: int | None = None
    """How many families the tasks are of; None where no families were given."""


class NoWorse(StrEnum):
    """What the data say about a limit to how much worse A may be than B."""

    NO_WORSE = "no worse"
    WORSE = "worse"
    CANT_TELL = "can't tell"


def no_worse_than(found: Paired, margin: float) -> NoWorse:
    """Tell whether A is no worse than B by more than `margin`, each way with 95 % confidence."""
    return within_margin(found.lowest, found.highest, margin)


def within_margin(lowest: float, highest: float, margin: float) -> NoWorse:
    """Tell the same from the two one-sided limits."""
    if lowest >= -margin:
        return NoWorse.NO_WORSE
    return NoWorse.WORSE if highest < -margin else NoWorse.CANT_TELL


def surely_alike(interval: Interval, units: int, margin: float, width: float = 1.0) -> bool:
    """Tell whether a difference is surely within `margin`, from its interval over so many tasks or families.

    So many tasks may all have missed a kind of task on which one agent wholly fails: that too must fit.
    """
    return -margin <= interval[0] and interval[1] <= margin and unseen_share(units) * width <= margin


def paired(
    a: Sequence[float],
    b: Sequence[float],
    *,
    families: Sequence[str] | None = None,
    scale: Interval = (0.0, 1.0),
) -> Paired:
    """Compare one number per task and side, the same task at the same place; at least one.

    `families` names each task's family: limits and test then go over families. `scale` is the range of
    possible scores.
    """
    pairs = {pair: pair[0] - pair[1] for pair in set(zip(a, b, strict=True))}
    apart = [pairs[pair] for pair in zip(a, b, strict=True)]
    width = max([*a, *b, scale[1]]) - min([*a, *b, scale[0]])
    pass_fail = all(left in (0.0, 1.0) and right in (0.0, 1.0) for left, right in pairs)
    return differences(apart, families=families, width=width, pass_fail=pass_fail)


def differences(
    apart: Sequence[float],
    *,
    families: Sequence[str] | None = None,
    width: float = 1.0,
    pass_fail: bool = False,
) -> Paired:
    """Do the same from one difference per task, none of which can be larger than `width`."""
    tidy = {value: _tidy(value) for value in set(apart)}  # few: most tasks differ by the same number
    apart = [tidy[value] for value in apart]
    if families is None:
        groups: Groups = [(value, 1.0, count) for value, count in Counter(apart).items()]
        units: Sequence[float] = apart
        method, test = METHOD, "mid-p McNemar" if pass_fail else "sign flip"
    else:
        groups = family_groups(apart, families)
        units = [value * weight for value, weight, count in groups for _ in range(count)]
        method, test = family_words(len(units)), f"sign flip over {len(units)} families"
    p_value, _ = sign_flip(units)
    low, high = _joined(groups, (-width, width), mean(apart), p_value, TAIL)
    lowest, highest = _joined(groups, (-width, width), mean(apart), p_value, 2 * TAIL)
    return Paired(
        difference=mean(apart),
        interval=(low, high),
        interval_method=method,
        p_value=p_value,
        test=test,
        pass_fail=pass_fail,
        apart=apart,
        lowest=lowest,
        highest=highest,
        families=None if families is None else len(units),
    )


def _joined(groups: Groups, scale: Interval, seen: float, p_value: float, tail: float) -> Interval:
    """Return both limits, each of which is on the side of 0 that the test says.

    Where the test excludes 0 and the limit, which allows for tasks of a kind not seen, does not, the limit is
    the test's: as far from what was seen as 0 is, times the ratio of the two normal points.
    """
    mid = tail == TAIL
    low, high = lower_limit(groups, scale, tail, mid=mid), upper_limit(groups, scale, tail, mid=mid)
    if p_value / 2 >= tail or not seen:
        return min(low, 0.0), max(high, 0.0)
    reach = Z_95 if tail == TAIL else Z_90
    nearest = seen * max(1e-9, 1 - reach / -normal_distribution().inv_cdf(max(p_value, 1e-300) / 2))
    return (max(low, nearest), high) if seen > 0 else (low, min(high, nearest))


def _tidy(value: float) -> float:
    """Without the noise of binary fractions, so that equal differences are equal."""
    return round(value, 12) + 0.0


def mcnemar(won: int, lost: int) -> float:
    """Return the two-sided mid-p value of McNemar's test: a fair coin for each task only one of them passed.

    What is as likely as what was seen counts half: the exact test rejects far less often than it may.
    """
    total, fewer = won + lost, min(won, lost)
    if won == lost:
        return 1.0
    term, tail = 1, 0
    for number in range(fewer):
        tail += term
        term = term * (total - number) // (number + 1)
    return min(1.0, (2 * tail + term) / (1 << total))


def sign_flip(apart: Sequence[float]) -> tuple[float, str]:
    """Return the two-sided mid-p value of the paired permutation test, and how it was found.

    If the agents were alike, each difference could as well have had the other sign: p is the share of sign
    patterns whose sum is further from 0 than the one seen, and half of those that are as far; the pattern
    seen counts whole. So p is exact where no two patterns have the same sum, and McNemar's mid-p for passes
    and failures of many tasks.
    """
    sizes = [value for value in apart if value]
    if not sizes or abs(math.fsum(sizes)) < _NEAR:
        return 1.0, "exact"
    if len({abs(value) for value in sizes}) == 1:
        won = sum(value > 0 for value in sizes)
        p_value, how = mcnemar(won, len(sizes) - won), "exact"
    else:
        p_value, how = _patterns(sizes)
    return min(1.0, p_value + 0.5 ** len(apart)), how


def _patterns(apart: Sequence[float]) -> tuple[float, str]:
    steps = _whole_steps(apart)
    if steps is not None and len(steps) ** 2 * sum(map(abs, steps)) <= _MOST_BITS:
        return _counted(steps), "exact"
    steps = _rounded(apart)
    if steps is not None:
        return _counted(steps), "rounded"
    root = math.sqrt(math.fsum(value * value for value in apart))
    return 2 * normal_tail(abs(math.fsum(apart)) / root), "normal"


def _whole_steps(apart: Sequence[float]) -> list[int] | None:
    """Return the differences as multiples of one step, where there is one that is not too fine."""
    fractions = {value: Fraction(value).limit_denominator(_FINEST) for value in set(apart)}
    if any(abs(float(found) - value) > _NEAR for value, found in fractions.items()):
        return None
    step = math.lcm(*(found.denominator for found in fractions.values()))
    steps = [int(fractions[value] * step) for value in apart]
    shared = math.gcd(*steps)
    return [number // shared for number in steps]


def _rounded(apart: Sequence[float]) -> list[int] | None:
    """Return the differences in steps as fine as can be counted; None where those would be too coarse."""
    most = max(map(abs, apart))
    steps = _MOST_BITS / (len(apart) ** 2 * math.fsum(abs(value) for value in apart) / most)
    if steps < _COARSEST:
        return None
    return [round(value / most * min(steps, 1e6)) for value in apart]


def _counted(steps: Sequence[int]) -> float:
    """Count the share of all sign patterns that reach further than the one seen, and half of those as far.

    A pattern's sum is twice its positive steps minus all steps. One big number has a field for each sum of
    positive steps, in which the patterns are counted: a shift and an addition take one more task in. The
    digits of a number, in a base larger than their sum, add up to its rest modulo that base minus one.
    """
    sizes = [abs(step) for step in steps if step]
    width, ways = len(sizes) + 1, 1
    for size in sizes:
        ways += ways << (size * width)
    fields = (sum(sizes) - abs(sum(steps))) // 2
    further, as_far = (
        (ways & ((1 << (count * width)) - 1)) % ((1 << width) - 1) for count in (fields, fields + 1)
    )
    return min(1.0, (further + as_far) / (1 << len(sizes)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction: the p-values of several comparisons made together, in their order."""
    order = sorted(range(len(p_values)), key=lambda number: p_values[number])
    found, least = [0.0] * len(p_values), 0.0
    for rank, number in enumerate(order):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[number]))
        found[number] = least
    return found
