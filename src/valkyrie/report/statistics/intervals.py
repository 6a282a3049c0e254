"""95 % limits of a mean over tasks, or over families of tasks."""

from __future__ import annotations

import cmath
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from statistics import NormalDist

Interval = tuple[float, float]
Groups = Sequence[tuple[float, float, int]]
"""(value, weight, how often) of tasks or families."""

Z_95 = 1.959963984540054
Z_90 = 1.6448536269514722
TAIL = 0.025
"""What a 95 % interval leaves out at each end."""
FEW_FAMILIES = 5
METHOD = "Gaffke over tasks"
_T_95 = (12.706204736432095, 4.302652729911275, 3.182446305284263, 2.7764451051977987)
"""Student's 97.5 % points for 1 to 4 degrees of freedom, where the series is not yet good."""
_MANY_VALUES = 40
"""More different values than this are summed by the saddlepoint formula, which is then good to 1 in 1,000."""
_NEAR = 1e-10


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
    means = {task: mean(scores) for task, scores in by_task.items() if scores}
    if not means:
        return None, "nothing was graded"
    if not families:
        return means_interval(list(means.values()), scale)
    groups = family_groups(list(means.values()), [families.get(task, task) for task in means])
    return _interval(groups, scale), family_words(sum(count for _, _, count in groups))


def means_interval(
    means: Sequence[float], scale: Interval = (0.0, 1.0), tail: float = TAIL
) -> tuple[Interval | None, str]:
    """Do the same for one number per task; without ends of the scale by Student's t."""
    if math.isinf(scale[0]) or math.isinf(scale[1]):
        return (student(means), "Student's t over tasks") if len(means) > 1 else (None, "one task")
    groups = [(value, 1.0, count) for value, count in Counter(means).items()]
    if len(groups) == 1 and not scale[0] <= groups[0][0] <= scale[1]:
        return None, "all tasks alike, on a scale whose ends are not known"
    return _interval(groups, scale, tail), METHOD


def counted_interval(passed: int, total: int) -> tuple[Interval | None, str]:
    """Do the same where `passed` of `total` tasks passed and the others failed."""
    if total <= 0:
        return None, "nothing was graded"
    return _interval([(1.0, 1.0, passed), (0.0, 1.0, total - passed)], (0.0, 1.0)), METHOD


def family_groups(values: Sequence[float], families: Sequence[str]) -> Groups:
    """Return the mean of each family, which weighs as much as it has tasks."""
    members: dict[str, list[float]] = {}
    for value, family in zip(values, families, strict=True):
        members.setdefault(family, []).append(value)
    kinds = Counter((mean(sorted(own)), float(len(own))) for own in members.values())
    return [(value, weight, count) for (value, weight), count in sorted(kinds.items())]


def family_words(count: int) -> str:
    """Name the method, and say so where there are too few families for it to say much."""
    few = f"; fewer than {FEW_FAMILIES} families say little about others" if count < FEW_FAMILIES else ""
    return f"Gaffke over {count} {'family' if count == 1 else 'families'}{few}"


def unseen_share(tasks: int) -> float:
    """Return the largest share of tasks of some kind that may well (2.5 %) not be among `tasks` tasks."""
    return 1 - math.exp(math.log(TAIL) / tasks)


def _interval(groups: Groups, scale: Interval, tail: float = TAIL) -> Interval:
    return lower_limit(groups, scale, tail), upper_limit(groups, scale, tail)


def upper_limit(groups: Groups, scale: Interval, tail: float = TAIL, *, mid: bool = False) -> float:
    """Return the largest mean that data like these leave possible, but for a chance of `tail`."""
    turned = [(-value, weight, count) for value, weight, count in groups]
    return -lower_limit(turned, (-scale[1], -scale[0]), tail, mid=mid)


def lower_limit(groups: Groups, scale: Interval, tail: float = TAIL, *, mid: bool = False) -> float:
    """Return the smallest mean that data like these leave possible, but for a chance of `tail`.

    One task that scores the least possible is added, all are given random weights (spacings of uniform
    numbers), and the limit is the `tail` quantile of the weighted mean (Gaffke 2005). For tasks that pass or
    fail this is Clopper and Pearson's limit. No better score of any task can give a lower limit: for any
    weights, the mean rises with every score. With `mid` the added task scores the most possible half of the
    time: that is the limit that belongs to a mid-p test.
    """
    values = [value for value, _, count in groups if count]
    least, width = min([scale[0], *values]), max([scale[1], *values]) - min([scale[0], *values])
    known = [(round((value - least) / width, 12), weight, count) for value, weight, count in groups if count]
    most = max(value for value, _, _ in known)
    if most <= 0:
        return least
    if len(known) == 1 and not mid:
        return least + width * most * math.exp(math.log(tail) / known[0][2])
    mixed = [_with(known, 0.0), _with(known, 1.0)] if mid else [_with(known, 0.0)]
    return least + width * _quantile(mixed, 0.0, most, tail)


def _with(groups: Groups, value: float) -> Groups:
    """Add one task, or a family of the usual size."""
    usual = math.fsum(weight * count for _, weight, count in groups) / sum(count for _, _, count in groups)
    kinds: Counter[tuple[float, float]] = Counter({(value, usual): 1})
    for own, weight, count in groups:
        kinds[own, weight] += count
    return [(own, weight, count) for (own, weight), count in sorted(kinds.items())]


def normal_distribution() -> NormalDist:
    """Return the standard normal distribution; only what asks for a quantile pays for its module."""
    from statistics import NormalDist

    return NormalDist()


def _quantile(mixed: Sequence[Groups], low: float, high: float, tail: float) -> float:
    """Solve for a chance of `tail`, by false position on the scale of a normal number: it is near linear."""
    normal = normal_distribution()
    wanted = normal.inv_cdf(tail)
    total = math.fsum(weight * count for _, weight, count in mixed[0])
    centre = math.fsum(value * weight * count for value, weight, count in mixed[0]) / total
    squares = math.fsum(count * (weight * (value - centre)) ** 2 for value, weight, count in mixed[0])
    size = math.sqrt(squares) / total
    below, above = low, high
    left, right = -math.inf, math.inf
    place = centre + wanted * size if low < centre + wanted * size < high else (low + centre) / 2
    for _ in range(100):
        chance = mean([chance_below(groups, place) for groups in mixed])
        found = normal.inv_cdf(chance) if 0.0 < chance < 1.0 else math.copysign(40.0, chance - 0.5)
        off = found - wanted
        if off < 0:
            below, left = place, off
        else:
            above, right = place, off
        if abs(off) < _NEAR or above - below < _NEAR * (high - low):
            break
        if math.isinf(left) or math.isinf(right):
            step = place - off * size
            place = step if below < step < above else (below + above) / 2
            continue
        place = below - left * (above - below) / (right - left)
        edge = 1e-3 * (above - below)
        place = min(max(place, below + edge), above - edge)
    return place


def chance_below(groups: Groups, place: float) -> float:
    """Return how often the mean is below `place` when all weights are random.

    That is how often Σ weight · (value - place) · E is below 0, each E being a standard exponential number.
    The moment generating function of that sum is integrated along the line through its saddlepoint.
    """
    terms = [(weight * (value - place), count) for value, weight, count in groups if value != place]
    least, most = (min(terms)[0], max(terms)[0]) if terms else (0.0, 0.0)
    if least >= 0 or most <= 0:
        return 0.0 if least >= 0 else 1.0
    saddle = _saddlepoint(terms, 1 / least, 1 / most)
    curve = math.sqrt(math.fsum(count * (size / (1 - size * saddle)) ** 2 for size, count in terms))
    if len(terms) > _MANY_VALUES:
        return _approximate(saddle, curve, _log_moment(terms, saddle))
    line = saddle if abs(saddle) * curve > 0.5 else max(-0.5 / curve, 0.5 / least)
    return _integrated(terms, line, curve)


def _saddlepoint(terms: Sequence[tuple[float, int]], left: float, right: float) -> float:
    """Find where the logarithm of the moment generating function is least, by Newton's method with a net."""
    place, size = 0.0, min(-left, right)
    for _ in range(200):
        slope = bend = 0.0
        for value, count in terms:
            ratio = value / (1 - value * place)
            slope += count * ratio
            bend += count * ratio * ratio
        left, right = (left, place) if slope > 0 else (place, right)
        following = place - slope / bend
        if not left < following < right:
            following = (left + right) / 2
        if abs(following - place) <= 1e-13 * max(abs(following), size):
            return following
        place = following
    return place


def _log_moment(terms: Sequence[tuple[float, int]], place: float) -> float:
    return -math.fsum(count * math.log1p(-size * place) for size, count in terms)


def _approximate(saddle: float, curve: float, log_moment: float) -> float:
    """Barndorff-Nielsen's formula."""
    root = math.copysign(math.sqrt(max(0.0, -2 * log_moment)), saddle)
    if abs(root) < 1e-4:
        return 0.5
    return normal_tail(-root - math.log(saddle * curve / root) / root)


def _integrated(terms: Sequence[tuple[float, int]], line: float, curve: float) -> float:
    """Sum with equal steps of x, where the imaginary part is sinh x: such a sum converges at once."""
    step = 0.15
    total = math.exp(_log_moment(terms, line)) / line / 2
    for number in range(1, 400):
        point = complex(line, math.sinh(number * step) / curve)
        moment = cmath.exp(-sum(count * cmath.log(1 - size * point) for size, count in terms))
        value = moment / point * math.cosh(number * step)
        total += value.real
        if abs(value) < 1e-10 * abs(total):
            break
    part = total * step / curve / math.pi
    return min(1.0, max(0.0, -part if line < 0 else 1 - part))


def student(values: Sequence[float]) -> Interval:
    """Return Student's t interval of a mean; at least two values."""
    half = t_95(len(values) - 1) * math.sqrt(variance(values) / len(values))
    centre = mean(values)
    return centre - half, centre + half


def mean(values: Sequence[float]) -> float:
    """Of at least one value; their order does not matter."""
    return math.fsum(values) / len(values)


def variance(values: Sequence[float]) -> float:
    """Of the population the values are a sample of; at least two."""
    centre = mean(values)
    return math.fsum((value - centre) ** 2 for value in values) / (len(values) - 1)


def normal_tail(z: float) -> float:
    """Return how often a standard normal number is above `z`."""
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
