"""Numbers people can bet on, with their uncertainty."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence

Z_95 = 1.959963984540054
RESAMPLES = 2000
MANY_TASKS = 400
"""From here on the resampled mean is normal to within its own noise, and the formula gives it at once."""


def wilson(passed: int, total: int) -> tuple[float, float] | None:
    """95 % interval of a pass rate (Wilson's score interval)."""
    if total <= 0:
        return None
    rate, z2 = passed / total, Z_95 * Z_95
    centre = (rate + z2 / (2 * total)) / (1 + z2 / total)
    half = Z_95 * math.sqrt(rate * (1 - rate) / total + z2 / (4 * total * total)) / (1 + z2 / total)
    return max(0.0, centre - half), min(1.0, centre + half)


def bootstrap(by_task: Mapping[str, Sequence[float]], seed: int = 0) -> tuple[float, float] | None:
    """95 % interval of the mean over tasks, by resampling tasks; repetitions of a task stay together."""
    means = [math.fsum(scores) / len(scores) for scores in by_task.values() if scores]
    if len(set(means)) < 2:
        return None  # resampling equal values says they are certain, which they are not
    count = len(means)
    if count > MANY_TASKS:
        mean = math.fsum(means) / count
        spread = math.sqrt(math.fsum((value - mean) ** 2 for value in means) / count)
        half = Z_95 * spread / math.sqrt(count)
        return mean - half, mean + half
    rng = random.Random(seed)  # noqa: S311 - the same data must give the same interval
    found = sorted(math.fsum(rng.choices(means, k=count)) / count for _ in range(RESAMPLES))
    low, high = int(0.025 * RESAMPLES), int(0.975 * RESAMPLES) - 1
    return found[low], found[high]
