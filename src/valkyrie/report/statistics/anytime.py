"""Evidence that holds whenever one looks: e-values, confidence sequences, deciding leads."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from statistics import NormalDist

from valkyrie.report.statistics.intervals import Interval, mean, variance

_NORMAL = NormalDist()
_KNEE = 0.6
_SHARES = ((0.95, _KNEE), (0.65, 1.0))
"""The shares of the error that O'Brien and Fleming's boundaries have, and up to which share of the plan."""
_EVEN = 0.5
_EVEN_ELSE = 0.03
"""The share of the error that is spent evenly: where agents agree on most tasks, and where they do not."""
_LAST = 0.98
"""From this share of the plan on all of the error may be spent."""
_NEGLIGIBLE = 1e-15
"""Leads to the other side of a smaller chance are dropped: none of them comes back."""


class LeadBoundary:
    """Follows the lead of one side; `error` is the chance that it ever decides if neither is better."""

    def __init__(self, planned: int, error: float) -> None:
        self.lead = 0
        self.chance = 1.0
        """Of deciding by now, or of at least this lead now, if neither side is better."""
        self.allowed = 0.0
        """The error that could be spent up to now."""
        self._planned = planned
        self._error = error
        self._late = [(-_NORMAL.inv_cdf(share * error / 2), end) for share, end in _SHARES]
        self._looks = 0
        self._differ = 0
        self._spent = 0.0
        self._open = [1.0]
        """The chances of the leads that are not decided: the lowest, and then every second one."""
        self._lowest = 0

    @property
    def needed(self) -> int:
        """The lead from which on it is decided; one that cannot be reached while nothing decides."""
        return self._lowest + 2 * len(self._open)

    def look(self, value: int, *, whole: bool = False) -> bool:
        """Take in one more task, 1 won, -1 lost, 0 neither; return whether the lead decides.

        `whole`: it is the plan's last one.
        """
        self._looks += 1
        if value:
            self._step(value)
        self.allowed = self._error if whole else max(self.allowed, self._spendable())
        first = max(0, (self.lead - self._lowest + 1) // 2)
        self.chance = min(1.0, self._spent + math.fsum(self._open[first:]))
        while self._open and self._spent + self._open[-1] <= self.allowed:
            self._spent += self._open.pop()
        return self.lead >= self.needed

    def _spendable(self) -> float:
        share = self._looks / self._planned
        if share >= _LAST:
            return self._error
        agree = self._differ + 5 <= 0.4 * self._looks
        even = self._error * share * (_EVEN if agree else _EVEN_ELSE)
        return max(even, *(2 * _NORMAL.cdf(-at / math.sqrt(min(share, end))) for at, end in self._late))

    def _step(self, value: int) -> None:
        self.lead += value
        self._differ += 1
        halves = [chance / 2 for chance in self._open]
        self._open = [low + high for low, high in zip([*halves, 0.0], [0.0, *halves], strict=True)]
        self._lowest -= 1
        dropped = 0
        while dropped < len(self._open) and self._open[dropped] < _NEGLIGIBLE:
            dropped += 1
        if dropped:
            del self._open[:dropped]
            self._lowest += 2 * dropped


# Evidence that holds whenever one looks: e-values and confidence sequences by betting.
#
# The tasks are units in an order that was fixed before the run. Someone who believes that A is not ahead
# sells a bet on each unit's difference at a fair price; the capital of whoever buys it grows above 20 with a
# chance of at most 1 in 20, over all looks together (Ville's inequality). The stake of each bet is mixed
# over all that cannot ruin the buyer, which for wins and losses is 2^m·B(w+1, l+1) (Waudby-Smith and Ramdas,
# 2024).
#
# A plan whose last task is known needs no bets while tasks are won, lost or neither: the lead that decides
# is counted (`lead_boundary`).

DECIDED = 20.0
"""A two-sided e-value of this size is reached with a chance of at most 5 % if there is no difference."""
ERROR_RATE = 0.05
SHARE_OF_LOOKS = 0.8
"""Of the error of bets, where the last task is known before: the rest is kept for one look at all of them."""
_FIRST_SHARE = 1 / 3
"""Of a plan's units: from partial credit among them on there are bets; later it is rounded down."""
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
    lead: int | None = None
    """Tasks won less tasks lost, of whoever is ahead, where that is what decides."""
    needed: int | None = None
    """The lead from which on it is decided at this look."""
    p_value: float | None = None
    """Of that lead: the chance of deciding by now, or of so large a lead now, if there is no difference."""

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
    planned: int | None = None,
    whole: bool = False,
) -> AnytimeStanding | None:
    """Return what the first units decide that decide anything; None while nothing is decided.

    A unit is what A minus B was at least and at most, from -1 to 1: both are the same unless a trial is
    lacking. A is ahead, B is ahead or, with a margin, they are no further apart than that. A false statement
    is made with a chance of at most `error`, over all looks and, with `comparisons` made together, over all
    of them: each of the two directions, and each end of the margin, has half the error. `scale` is what a
    unit is of a task's difference, where units are families. `planned` is the number of units of a plan that
    was known before, None where nobody knows when it ends; `whole` says that no more will come. Plans of wins
    and losses are decided by the lead; of others a fifth of the error is kept for one look at all units,
    which decides what bets on the way were too careful for.
    """
    return _decide(units, _Rule(error / comparisons, margin, scale, planned, whole))


def look(
    units: Sequence[Interval],
    *,
    error: float = ERROR_RATE,
    margin: float | None = None,
    comparisons: int = 1,
    scale: float = 1.0,
    planned: int | None = None,
    whole: bool = False,
) -> AnytimeStanding:
    """Return what the units say so far, decided or not."""
    rule = _Rule(error / comparisons, margin, scale, planned, whole)
    return _decide(units, rule) or _undecided(units, rule)


@dataclass(frozen=True, slots=True)
class _Rule:
    """What is decided by: `error` is this comparison's own."""

    error: float
    margin: float | None
    scale: float
    planned: int | None
    whole: bool


class _Course:
    """What became of units one after another: by leads as long as they are wins and losses, then by bets."""

    def __init__(self, units: Sequence[Interval], rule: _Rule) -> None:
        self.units = units
        self.rule = rule
        self.bets_from = _bets_from(units, rule.planned)
        """After how many units bets begin; None: they do not."""
        self.sides = tuple(LeadBoundary(rule.planned or 1, rule.error / 2) for _ in range(2))
        self.decided_by_lead = self._follow_leads() if self.bets_from != 0 else None

    def _follow_leads(self) -> tuple[int, DecidedOutcome] | None:
        ended = self.rule.whole and self.bets_from is None
        for count, (low, high) in enumerate(self.units[: self.bets_from], 1):
            last = ended and count == len(self.units)
            # Partial credit is rounded against whom it would help.
            values = math.floor(low), math.floor(-high)
            found = [side.look(value, whole=last) for side, value in zip(self.sides, values, strict=True)]
            if any(found):
                return count, DecidedOutcome.A_AHEAD if found[0] else DecidedOutcome.B_AHEAD
        return None

    @property
    def error_of_bets(self) -> float:
        """The error bets may make: what leads before them could not spend, less what the last look keeps."""
        if self.rule.planned is None:
            return self.rule.error
        return (self.rule.error - sum(side.allowed for side in self.sides)) * SHARE_OF_LOOKS


def _bets_from(units: Sequence[Interval], planned: int | None) -> int | None:
    """Return after how many units bets begin; None while wins and losses are all there is to a plan.

    Only sizes count here, never signs: so leads before have spent no more error than they were allowed.
    """
    if planned is None:
        return 0
    first = math.ceil(planned * _FIRST_SHARE)
    return next((n for n, unit in enumerate(units[:first]) if not _is_win_or_loss(unit)), None)


def _is_win_or_loss(unit: Interval) -> bool:
    return all(value in (-1.0, 0.0, 1.0) for value in unit)


def _decide(units: Sequence[Interval], rule: _Rule) -> AnytimeStanding | None:
    course = _Course(units, rule)
    found: AnytimeStanding | None = None
    if course.decided_by_lead is not None:
        count, outcome = course.decided_by_lead
        found = _lead_standing(units[:count], outcome, course)
    elif course.bets_from is not None:
        found = _first_bet(course, course.bets_from)
    alike = _first_alike(units if found is None else units[: found.units - 1], rule)
    return alike or found or (_last_look(course) if rule.planned is not None and rule.whole else None)


def _first_bet(course: _Course, start: int) -> AnytimeStanding | None:
    """Return what bets on the units after the first ones decide."""
    units, planned, error = course.units, course.rule.planned is not None, course.error_of_bets
    sides = _Capital(0.0, planned), _Capital(0.0, planned)
    for count, (low, high) in enumerate(units[start:], start + 1):
        won = [side.bet(value) >= 2 / error for side, value in zip(sides, (low, -high), strict=True)]
        if any(won):
            outcome = DecidedOutcome.A_AHEAD if won[0] else DecidedOutcome.B_AHEAD
            return _bet_standing(units[:count], outcome, error, course.rule, start)
    return None


def _first_alike(units: Sequence[Interval], rule: _Rule) -> AnytimeStanding | None:
    """Return which of the first units decide that A and B are no further apart than the margin."""
    if rule.margin is None:
        return None
    planned = rule.planned is not None
    error = rule.error * (SHARE_OF_LOOKS if planned else 1.0)
    edge = rule.margin * rule.scale
    ends = _Capital(-edge, planned), _Capital(-edge, planned)
    held = [False, False]
    for count, (low, high) in enumerate(units, 1):
        for number, value in enumerate((low, -high)):
            held[number] |= ends[number].bet(value) >= 2 / error
        if all(held):
            return _bet_standing(units[:count], DecidedOutcome.ALIKE, error, rule, 0)
    return None


def _undecided(units: Sequence[Interval], rule: _Rule) -> AnytimeStanding:
    course = _Course(units, rule)
    if course.bets_from is None:
        return _lead_standing(units, None, course)
    return _bet_standing(units, None, course.error_of_bets, rule, course.bets_from)


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


def _bet_standing(
    units: Sequence[Interval], outcome: DecidedOutcome | None, error: float, rule: _Rule, start: int
) -> AnytimeStanding:
    """Return what bets on the units after the first `start` say; the difference is that of all."""
    if not units:
        return AnytimeStanding(0, outcome, None, None, 1.0, error)
    planned = rule.planned is not None
    low, high = confidence_sequence(units[start:], error, planned=planned)
    interval = max(-1.0, low / rule.scale), min(1.0, high / rule.scale)
    evidence = _evidence(units[start:], planned=planned)
    return AnytimeStanding(len(units), outcome, _difference(units, rule), interval, evidence, error)


def _lead_standing(
    units: Sequence[Interval], outcome: DecidedOutcome | None, course: _Course
) -> AnytimeStanding:
    """Return what a lead in wins over losses says.

    Where it decides, the end of the interval next to 0 is the gap that the lead would just not show. Any
    other end is the further of what boundary and bets give: few losses seen say little of how many there are.
    """
    if not units:
        return AnytimeStanding(0, outcome, None, None, 1.0, course.rule.error)
    rule, sides = course.rule, course.sides
    difference = _difference(units, rule)
    ends = [(side.lead - side.needed + 1) / len(units) for side in sides]
    sequence = confidence_sequence(units, rule.error, planned=True)
    low = ends[0] if outcome is DecidedOutcome.A_AHEAD else min(ends[0], sequence[0])
    high = -ends[1] if outcome is DecidedOutcome.B_AHEAD else max(-ends[1], sequence[1])
    ahead = sides[1] if difference < 0 else sides[0]
    return AnytimeStanding(
        len(units),
        outcome,
        difference,
        (max(-1.0, low / rule.scale), min(1.0, high / rule.scale)),
        _evidence(units, planned=True),
        rule.error,
        lead=ahead.lead,
        needed=ahead.needed,
        p_value=min(1.0, 2 * ahead.chance),
    )


def _difference(units: Sequence[Interval], rule: _Rule) -> float:
    return mean([(low + high) / 2 for low, high in units]) / rule.scale


def _evidence(units: Sequence[Interval], *, planned: bool) -> float:
    """Return half of what the better of two bets made."""
    ups = _capital(Counter(low for low, _ in units), 0.0, planned)
    downs = _capital(Counter(-high for _, high in units), 0.0, planned)
    return max(ups, downs) / 2


def _last_look(course: _Course) -> AnytimeStanding | None:
    """Return what all units decide by Student's t, with one more at each end of the scale; or None.

    Who is ahead it decides only where bets were made; a lead had its last look.
    """
    units, rule, start = course.units, course.rule, course.bets_from
    if len(units) < _FEWEST:
        return None
    error = (rule.error if start is None else course.error_of_bets / SHARE_OF_LOOKS) * (1 - SHARE_OF_LOOKS)
    low = _student([low for low, _ in units], -1.0, error) / rule.scale
    high = _student([high for _, high in units], 1.0, error) / rule.scale
    found: DecidedOutcome | None = None
    if start is not None and low > 0:
        found = DecidedOutcome.A_AHEAD
    elif start is not None and high < 0:
        found = DecidedOutcome.B_AHEAD
    elif rule.margin is not None and low > -rule.margin and high < rule.margin:
        found = DecidedOutcome.ALIKE
    if found is None:
        return None
    interval = max(-1.0, low), min(1.0, high)
    return replace(_bet_standing(units, found, error, rule, start or 0), interval=interval, last=True)


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
