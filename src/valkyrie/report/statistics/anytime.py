"""Evidence that holds whenever one looks: e-values and confidence sequences by betting.

The tasks are units in an order that was fixed before the run. Someone who believes that A is not ahead sells
a bet on each unit's difference at a fair price; the capital of whoever buys it grows above 20 with a chance
of at most 1 in 20, over all looks together (Ville's inequality). The stake of each bet is mixed over all that
cannot ruin the buyer, which for wins and losses is 2^m·B(w+1, l+1) (Waudby-Smith and Ramdas, 2024).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from statistics import NormalDist

from valkyrie.report.statistics.intervals import Interval, mean, variance

DECIDED = 20.0
"""A two-sided e-value of this size is reached with a chance of at most 5 % if there is no difference."""
ERROR_RATE = 0.05
SHARE_OF_LOOKS = 0.8
"""Of the error, where the last task is known before: the rest is kept for one look at all of them."""
_FEWEST = 10
"""Below this many units the last look says nothing."""
_STAKES = 32
"""Stakes the mixture is made of; any number gives a valid bet, few give a slower one."""
_STEPS = 30
_MOST = 700.0
"""Logarithms above this are no floating-point numbers any more."""


def e_value(won: int, lost: int) -> float:
    """Return the evidence against a fair coin: 2^m·B(won+1, lost+1)/B(1, 1), two-sided, at any look."""
    if won < 0 or lost < 0:
        raise ValueError(f"{won} wins and {lost} losses: neither can be below 0")
    total = won + lost
    size = total * math.log(2) + math.lgamma(won + 1) + math.lgamma(lost + 1) - math.lgamma(total + 2)
    return math.exp(size) if size < _MOST else math.inf


class DecidedOutcome(StrEnum):
    """What was decided of A and B."""

    A_AHEAD = "a ahead"
    B_AHEAD = "b ahead"
    ALIKE = "no further apart"
    """Than the margin."""


@dataclass(frozen=True, slots=True)
class AnytimeStanding:
    """What some units say, whenever one looks."""

    units: int
    outcome: DecidedOutcome | None
    """None: not decided."""
    difference: float | None
    """Mean of A minus B over the units; None where there are none."""
    interval: Interval | None
    """Of the difference; holds at every look together with all other looks."""
    e_value: float
    """Evidence that the one who is ahead is: half its capital, for two were bet on."""
    error: float = ERROR_RATE
    """How often the interval misses, over all looks."""
    families: int | None = None
    """How many families there are, where they are the units."""
    last: bool = False
    """Decided at the last look, by Student's t over all units."""

    @property
    def bar(self) -> float:
        """The e-value from which on it is decided."""
        return 1 / self.error


def decide(
    units: Sequence[Interval],
    *,
    error: float = ERROR_RATE,
    margin: float | None = None,
    comparisons: int = 1,
    scale: float = 1.0,
    whole: bool | None = None,
) -> AnytimeStanding | None:
    """Return what the first units decide that decide anything; None while nothing is decided.

    A unit is what A minus B was at least and at most, from -1 to 1: both are the same unless a trial is
    lacking. A is ahead, B is ahead or, with a margin, they are no further apart than that. A false statement
    is made with a chance of at most `error`, over all looks and, with `comparisons` made together, over all
    of them: each of the two directions, and each end of the margin, has half the error. `scale` is what a
    unit is of a task's difference, where units are families. `whole` says of a plan that was known before
    whether all its units are in: a fifth of the error is kept for that look, which decides what looks on the
    way were too careful for. None: nobody knows when it ends.
    """
    shared = error / comparisons
    on_the_way = shared if whole is None else shared * SHARE_OF_LOOKS
    edge = None if margin is None else margin * scale
    found = first_decision(units, error=on_the_way, margin=edge, planned=whole is not None)
    if found is not None:
        return _standing(units[: found[0]], found[1], on_the_way, scale, planned=whole is not None)
    return _last_look(units, margin, shared - on_the_way, scale) if whole else None


def first_decision(
    units: Sequence[Interval], *, error: float, margin: float | None = None, planned: bool = False
) -> tuple[int, DecidedOutcome] | None:
    """Return how many of the first units decide something, and what; None while nothing is decided.

    `planned`: the bets are those for a plan whose end is known.
    """
    bar = 2 / error
    bets = [_Capital(0.0, planned), _Capital(0.0, planned)]
    ends = [] if margin is None else [_Capital(-margin, planned), _Capital(-margin, planned)]
    held = [False] * len(ends)
    for count, (low, high) in enumerate(units, 1):
        found: DecidedOutcome | None = None
        sides = (low, -high)
        if bets[0].bet(sides[0]) >= bar:
            found = DecidedOutcome.A_AHEAD
        elif bets[1].bet(sides[1]) >= bar:
            found = DecidedOutcome.B_AHEAD
        for number, end in enumerate(ends):
            held[number] |= end.bet(sides[number]) >= bar
        if found is None and held and all(held):
            found = DecidedOutcome.ALIKE
        if found is not None:
            return count, found
    return None


def look(
    units: Sequence[Interval],
    *,
    error: float = ERROR_RATE,
    margin: float | None = None,
    comparisons: int = 1,
    scale: float = 1.0,
    whole: bool | None = None,
) -> AnytimeStanding:
    """Return what the units say so far, decided or not."""
    found = decide(units, error=error, margin=margin, comparisons=comparisons, scale=scale, whole=whole)
    share = 1.0 if whole is None else SHARE_OF_LOOKS
    planned = whole is not None
    return found or _standing(units, None, error * share / comparisons, scale, planned=planned)


def confidence_sequence(
    units: Sequence[Interval], error: float = ERROR_RATE, *, planned: bool = False
) -> Interval:
    """Return the interval of the mean difference that covers it at every look with a chance of 1 - error."""
    lows = Counter(low for low, _ in units)
    highs = Counter(-high for _, high in units)
    return _lowest(lows, 2 / error, planned), -_lowest(highs, 2 / error, planned) + 0.0


def family_units(units: Sequence[Interval], families: Sequence[str], largest: int) -> list[Interval]:
    """Return one unit for each family, in the order they begin: its sum, over the largest family's size.

    Tasks of a family resemble each other; only families are independent of what came before.
    """
    sums: dict[str, tuple[float, float]] = {}
    for (low, high), family in zip(units, families, strict=True):
        before = sums.get(family, (0.0, 0.0))
        sums[family] = before[0] + low, before[1] + high
    return [(max(-1.0, low / largest), min(1.0, high / largest)) for low, high in sums.values()]


def _standing(
    units: Sequence[Interval], outcome: DecidedOutcome | None, error: float, scale: float, *, planned: bool
) -> AnytimeStanding:
    if not units:
        return AnytimeStanding(0, outcome, None, None, 1.0, error)
    difference = mean([(low + high) / 2 for low, high in units]) / scale
    ups = _capital(Counter(low for low, _ in units), 0.0, planned)
    downs = _capital(Counter(-high for _, high in units), 0.0, planned)
    evidence = max(ups, downs) / 2
    low, high = confidence_sequence(units, error, planned=planned)
    interval = max(-1.0, low / scale), min(1.0, high / scale)
    return AnytimeStanding(len(units), outcome, difference, interval, evidence, error)


def _last_look(
    units: Sequence[Interval], margin: float | None, error: float, scale: float
) -> AnytimeStanding | None:
    """Return what all units decide by Student's t, with one more at each end of the scale; or None."""
    if len(units) < _FEWEST:
        return None
    low = _student([low for low, _ in units], -1.0, error) / scale
    high = _student([high for _, high in units], 1.0, error) / scale
    found: DecidedOutcome | None = None
    if low > 0:
        found = DecidedOutcome.A_AHEAD
    elif high < 0:
        found = DecidedOutcome.B_AHEAD
    elif margin is not None and low > -margin and high < margin:
        found = DecidedOutcome.ALIKE
    if found is None:
        return None
    interval = max(-1.0, low), min(1.0, high)
    return replace(_standing(units, found, error, scale, planned=True), interval=interval, last=True)


def _student(values: Sequence[float], side: float, error: float) -> float:
    """Return one end of Student's interval, the other end as far away; its point by the usual series."""
    z, n = NormalDist().inv_cdf(1 - error / 2), len(values) + 1
    reach = (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * n**4)
    )
    added = [*values, -1.0, 1.0]
    return mean(added) + side * reach * math.sqrt(variance(added) / len(added))


class _Capital:
    """What bets on a mean above `at` have made of 1, stakes mixed; values are from -1 to 1."""

    def __init__(self, at: float, planned: bool) -> None:
        stakes, self._capital = _mixture(planned)
        self._at = at
        self._stakes = [stake / (1 + at) for stake in stakes]

    def bet(self, value: float) -> float:
        """Take one more value in; return the capital."""
        off = value - self._at
        self._capital = [
            capital * (1 + stake * off) for stake, capital in zip(self._stakes, self._capital, strict=True)
        ]
        return math.fsum(self._capital)


def _capital(values: Counter[float], at: float, planned: bool) -> float:
    """The same of all values at once."""
    stakes, weights = _mixture(planned)
    sizes = [
        math.log(weight)
        + math.fsum(count * math.log1p(stake * (value - at) / (1 + at)) for value, count in values.items())
        for stake, weight in zip(stakes, weights, strict=True)
    ]
    top = max(sizes)
    if top > _MOST:
        return math.inf
    return math.exp(top) * math.fsum(math.exp(size - top) for size in sizes)


def _lowest(values: Counter[float], bar: float, planned: bool) -> float:
    """Return the largest mean that bets on a larger one have refuted; -1 where none is."""
    low, high = -1.0, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if _capital(values, middle, planned) >= bar:
            low = middle
        else:
            high = middle
    return low


@lru_cache(maxsize=2)
def _mixture(planned: bool) -> tuple[list[float], list[float]]:
    """Return stakes between 0 and 1 and their weights, which sum to 1: Gauss and Legendre's.

    A mixture of bets is a bet, whatever its weights; these make it what the integral over all stakes is. For
    a plan whose end is known, stakes weigh as x(1 - x)²: they are the best ones for gaps that some hundred
    tasks can show, and none is wasted on smaller ones.
    """
    stakes, weights = [], []
    for number in range(_STAKES):
        place = math.cos(math.pi * (number + 0.75) / (_STAKES + 0.5))
        for _ in range(100):
            value, slope = _legendre(place)
            place -= value / slope
            if abs(value / slope) < 1e-15:
                break
        stakes.append((place + 1) / 2)
        weights.append(1 / ((1 - place * place) * _legendre(place)[1] ** 2))
    if planned:
        weights = [weight * stake * (1 - stake) ** 2 for stake, weight in zip(stakes, weights, strict=True)]
    total = math.fsum(weights)
    return stakes, [weight / total for weight in weights]


def _legendre(place: float) -> tuple[float, float]:
    """Return Legendre's polynomial and its slope."""
    before, value = 1.0, place
    for degree in range(2, _STAKES + 1):
        before, value = value, ((2 * degree - 1) * place * value - (degree - 1) * before) / degree
    return value, _STAKES * (place * value - before) / (place * place - 1)
