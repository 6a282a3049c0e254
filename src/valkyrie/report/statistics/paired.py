"""Two agents on the same tasks: how far apart, and whether that could be chance."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from valkyrie.report.statistics.intervals import (
    MANY_TASKS,
    Z_90,
    Z_95,
    Interval,
    ends_added,
    mean,
    means_interval,
    normal_tail,
)

FLIPS = 19_999
"""Random sign flips where there are too many to go through; the observed one is counted too."""
_MOST_BITS = 4_000_000_000
"""Bits the exact count may add up; about a tenth of a second."""
_FINEST = 10_000
"""Differences that are no multiples of 1/10,000 are not counted exactly."""
_NEAR = 1e-9


@dataclass(frozen=True, slots=True)
class Paired:
    """A minus B, per task."""

    difference: float
    interval: Interval | None
    interval_method: str
    p_value: float
    test: str
    pass_fail: bool
    """Every task simply passed or failed on both sides."""
    apart: Sequence[float]
    """Each task's difference."""
    lowest: float = -1.0
    """One-sided 95 % limit of A minus B; it holds alone, not together with `highest`."""
    highest: float = 1.0
    families: int | None = None
    """How many families the tasks are of; None where no families were given."""


class NoWorse(StrEnum):
    """What the data say about a limit to how much worse A may be than B."""

    NO_WORSE = "no worse"
    WORSE = "worse"
    CANT_TELL = "can't tell"


def no_worse_than(found: Paired, margin: float) -> NoWorse:
    """Tell whether A is no worse than B by more than `margin`, each way with 95 % confidence."""
    if found.lowest >= -margin:
        return NoWorse.NO_WORSE
    return NoWorse.WORSE if found.highest < -margin else NoWorse.CANT_TELL


def paired(
    a: Sequence[float],
    b: Sequence[float],
    *,
    families: Sequence[str] | None = None,
    scale: Interval = (0.0, 1.0),
) -> Paired:
    """Compare one number per task and side, the same task at the same place; at least one.

    `families` names each task's family; `scale` is the range of possible scores.
    """
    found = _paired(a, b)
    width = scale[1] - scale[0]
    low, high = ends_added(found.apart, (-width, width), Z_90)
    return replace(
        found, lowest=low, highest=high, families=len(set(families)) if families is not None else None
    )


def _paired(a: Sequence[float], b: Sequence[float]) -> Paired:
    apart = [_tidy(left - right) for left, right in zip(a, b, strict=True)]
    if all(value in (0.0, 1.0) for value in (*a, *b)):
        won, lost = apart.count(1.0), apart.count(-1.0)
        interval = tango(won, lost, len(a))
        p_value = mcnemar(won, lost)
        return Paired(mean(apart), interval, "Tango's score", p_value, "exact McNemar", True, apart)
    p_value, how = sign_flip(apart)
    return Paired(mean(apart), *_interval(apart), p_value, f"sign flip, {how}", False, apart)


def _interval(apart: Sequence[float]) -> tuple[Interval | None, str]:
    """The same, with the other sign, whichever of the two comes first."""
    turned = [-value for value in apart]
    if sorted(apart) >= sorted(turned):
        return means_interval(apart, (-1.0, 1.0))
    found, method = means_interval(turned, (-1.0, 1.0))
    return found and (-found[1], -found[0]), method


def _tidy(value: float) -> float:
    """Without the noise of binary fractions, so that equal differences are equal."""
    return round(value, 12) + 0.0


def mcnemar(won: int, lost: int) -> float:
    """Exact two-sided p-value of McNemar's test: a fair coin for each task only one of them passed."""
    total, fewer = won + lost, min(won, lost)
    if won == lost:
        return 1.0
    term, tail = 1, 1
    for number in range(fewer):
        term = term * (total - number) // (number + 1)
        tail += term
    return min(1.0, 2 * tail / (1 << total))


def tango(won: int, lost: int, total: int) -> Interval:
    """95 % interval of a difference of pass rates on the same tasks (Tango's score interval, 1998)."""
    seen = (won - lost) / total
    return _edge(won, lost, total, seen, -1.0), _edge(won, lost, total, seen, 1.0)


def _edge(won: int, lost: int, total: int, seen: float, end: float) -> float:
    """Where the score statistic reaches 1.96 between what was seen and an end of the scale."""
    inside, outside = seen, end
    for _ in range(60):
        middle = (inside + outside) / 2
        if abs(_score(won, lost, total, middle)) <= Z_95:
            inside = middle
        else:
            outside = middle
    return inside if abs(inside - end) > _NEAR else end


def _score(won: int, lost: int, total: int, supposed: float) -> float:
    """How far the counts are from a supposed difference, in standard errors under it."""
    b = (2 * total - won + lost) * supposed - won - lost
    c = -lost * supposed * (1 - supposed)
    root = math.sqrt(max(0.0, b * b - 8 * total * c))
    losing = (root - b) / (4 * total)
    spread = total * (2 * losing + supposed * (1 - supposed))
    off = won - lost - total * supposed
    if spread <= 0:
        return 0.0 if abs(off) < _NEAR else math.copysign(math.inf, off)
    return off / math.sqrt(spread)


def sign_flip(apart: Sequence[float], seed: int = 0) -> tuple[float, str]:
    """Two-sided p-value of the paired permutation test, and how it was found.

    If the agents were alike, each difference could as well have had the other sign: p is the share of
    sign patterns whose sum is at least as far from 0 as the one seen.
    """
    sizes = sorted(abs(value) for value in apart if value)
    seen = abs(math.fsum(apart))
    if not sizes or seen < _NEAR:
        return 1.0, "exact"
    steps = _whole_steps(sizes)
    if steps is not None and len(steps) ** 2 * sum(steps) <= _MOST_BITS:
        scale = sum(steps) / math.fsum(sizes)
        return _counted(steps, round(seen * scale)), "exact"
    if len(sizes) > MANY_TASKS:
        z = seen / math.sqrt(math.fsum(size * size for size in sizes))
        return 2 * normal_tail(z), "normal"
    return _sampled(sizes, seen, seed), f"{FLIPS + 1:,} patterns"


def _whole_steps(sizes: Sequence[float]) -> list[int] | None:
    """The sizes as multiples of one step, where there is one that is not too fine."""
    from fractions import Fraction  # only comparisons pay for it

    fractions = {size: Fraction(size).limit_denominator(_FINEST) for size in set(sizes)}
    if any(abs(float(found) - size) > _NEAR for size, found in fractions.items()):
        return None
    step = math.lcm(*(found.denominator for found in fractions.values()))
    steps = [int(fractions[size] * step) for size in sizes]
    shared = math.gcd(*steps)
    return [number // shared for number in steps]


def _counted(steps: Sequence[int], seen: int) -> float:
    """The share of all sign patterns that reach as far as `seen`, counted.

    A pattern's sum is twice its positive steps minus all steps. One big number has a field for each sum of
    positive steps, in which the patterns are counted: a shift and an addition take one more task in. The
    digits of a number, in a base larger than their sum, add up to its rest modulo that base minus one.
    """
    width, ways = len(steps) + 1, 1
    for step in steps:
        ways += ways << (step * width)
    fields = (sum(steps) - seen) // 2 + 1
    far = (ways & ((1 << (fields * width)) - 1)) % ((1 << width) - 1)
    return min(1.0, 2 * far / (1 << len(steps)))


def _sampled(sizes: Sequence[float], seen: float, seed: int) -> float:
    """The same from random patterns; eight tasks at a time, whose 256 sums are looked up."""
    rng = random.Random(seed)  # noqa: S311 - the same data must give the same p-value
    tables = [_sums(sizes[first : first + 8]) for first in range(0, len(sizes), 8)]
    enough = seen - _NEAR
    far = sum(
        abs(sum(map(list.__getitem__, tables, rng.randbytes(len(tables))))) >= enough for _ in range(FLIPS)
    )
    return (far + 1) / (FLIPS + 1)


def _sums(sizes: Sequence[float]) -> list[float]:
    sums = [0.0]
    for size in sizes:
        sums = [value + sign * size for value in sums for sign in (-1, 1)]
    return sums * (256 // len(sums))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction: the p-values of several comparisons made together, in their order."""
    order = sorted(range(len(p_values)), key=lambda number: p_values[number])
    found, least = [0.0] * len(p_values), 0.0
    for rank, number in enumerate(order):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[number]))
        found[number] = least
    return found
