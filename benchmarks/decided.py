"""`python -m benchmarks.decided`: how often "decided" is false, how early it comes and how often it is right.

Simulated jobs are looked at after every task, in an order fixed before the run, as the scheduler does. One
JSON object per line; the seed is fixed.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from valkyrie.report.statistics.anytime import DecidedOutcome, decide

SEED = 20260115
Draw = Callable[[random.Random], float]
"""One task's difference, A minus B."""


@dataclass(frozen=True, slots=True)
class Decided:
    """What became of simulated jobs of one kind."""

    stopped: float
    """The share that was decided."""
    right: float
    wrong: float
    trials: float
    """The median share of the trials that were run; 1 where nothing was decided."""


def flips(a: float, b: float) -> Draw:
    """Return agents that pass every task with the same chance, independent of each other."""
    return lambda rng: float(rng.random() < a) - float(rng.random() < b)


def shared(gap: float, spread: float = 1.0, trials: int = 1) -> Draw:
    """Return agents for which the same tasks are hard: A is better by so much on tasks that leave room.

    `spread` is the sum of the two parameters of the beta distribution that difficulties come from.
    """

    def draw(rng: random.Random) -> float:
        middle = rng.betavariate(spread / 2, spread / 2)
        chances = [min(1.0, max(0.0, middle + side * gap / 2)) for side in (1, -1)]
        mine, theirs = ([rng.random() < chance for _ in range(trials)] for chance in chances)
        return (sum(mine) - sum(theirs)) / trials

    return draw


def partial(gap: float) -> Draw:
    """Return agents with partial credit, near all or nothing, whose results on a task resemble each other."""

    def draw(rng: random.Random) -> float:
        common = rng.random()
        chances = (0.5 + gap / 2, 0.5 - gap / 2)
        scores = [
            (0.8 if (common if rng.random() < 0.5 else rng.random()) < chance else 0.0) + 0.2 * rng.random()
            for chance in chances
        ]
        return scores[0] - scores[1]

    return draw


def opposed(rng: random.Random) -> float:
    """Return a task of which each agent masters one kind: level on average, never on a task."""
    return 1.0 if rng.random() < 0.5 else -1.0


def lopsided(rng: random.Random) -> float:
    """Return a task that A rarely passes alone, and on which B is more often a little better: level."""
    place = rng.random()
    return 1.0 if place < 0.02 else -0.5 if place < 0.06 else 0.0


def rare(rng: random.Random) -> float:
    """Return a task on which agents mostly agree, and are level where they do not."""
    return rng.choice((-1.0, 1.0)) if rng.random() < 0.05 else 0.0


def true_gap(draw: Draw, rng: random.Random, tasks: int = 40_000) -> float:
    """Return the mean difference of a kind of task."""
    return statistics.fmean(draw(rng) for _ in range(tasks))


def simulate(
    draw: Draw,
    right: Sequence[DecidedOutcome],
    rng: random.Random,
    *,
    tasks: int,
    jobs: int,
    margin: float | None = None,
    error: float = 0.05,
) -> Decided:
    """Return how jobs of so many tasks end that stop when they are decided."""
    ends: list[float] = []
    good = bad = 0
    for _ in range(jobs):
        units = [(value, value) for value in (draw(rng) for _ in range(tasks))]
        found = decide(units, margin=margin, error=error, planned=tasks, whole=True)
        ends.append(1.0 if found is None else found.units / tasks)
        if found is not None:
            good += found.outcome in right
            bad += found.outcome not in right
    return Decided((good + bad) / jobs, good / jobs, bad / jobs, statistics.median(ends))


A_AHEAD, ALIKE = DecidedOutcome.A_AHEAD, DecidedOutcome.ALIKE
EQUAL: dict[str, Draw] = {
    "both pass half": flips(0.5, 0.5),
    "both pass 95 %": flips(0.95, 0.95),
    "tasks hard for both": shared(0.0),
    "tasks hard for both, 3 trials": shared(0.0, trials=3),
    "partial credit": partial(0.0),
    "each masters half of the tasks": opposed,
    "differ on 5 % of the tasks": rare,
    "rarely far, more often a little": lopsided,
}
FEW = (5, 12, 30)
APART: dict[str, tuple[Draw, float]] = {
    "independent, 60 and 45 %": (flips(0.6, 0.45), 0.15),
    "independent, 90 and 75 %": (flips(0.9, 0.75), 0.15),
    "tasks hard for both": (shared(0.16, 2.0), 0.15),
    "most tasks hard or easy for both": (shared(0.1725, 1.0), 0.15),
    "partial credit": (partial(0.1875), 0.15),
    "tasks hard for both, 3 trials": (shared(0.16, 2.0, 3), 0.15),
}


def rows(jobs: int = 1000, tasks: int = 300, gap_jobs: int = 2000) -> Iterator[dict[str, Any]]:
    """Yield a row for each kind of job; each has a seed of its own."""
    for name, draw in EQUAL.items():
        found = simulate(draw, (), _seeded(name), tasks=tasks, jobs=jobs)
        yield _row("ever_false_decided", name, found, "bar: 0.05", value=found.wrong)
        found = simulate(draw, (ALIKE,), _seeded(f"{name}, margin"), tasks=tasks, jobs=jobs, margin=0.15)
        yield _row("ever_false_decided", f"{name}, margin 15", found, "bar: 0.05", value=found.wrong)
        for few in FEW:
            kind = f"{name}, {few} tasks"
            found = simulate(draw, (), _seeded(kind), tasks=few, jobs=jobs)
            yield _row("ever_false_decided", kind, found, "bar: 0.05", value=found.wrong)
    for name, (draw, gap) in APART.items():
        kind = f"{name}, gap {100 * gap:.0f}"
        found = simulate(draw, (A_AHEAD,), _seeded(kind), tasks=tasks, jobs=gap_jobs)
        yield _row("stop_when_decided", kind, found, "bar: 0.6", value=found.trials)
        kind = f"{name}, gap and margin {100 * gap:.0f}"
        found = simulate(draw, (A_AHEAD,), _seeded(kind), tasks=tasks, jobs=jobs, margin=gap)
        yield _row("ever_false_decided", kind, found, "bar: 0.05", value=found.wrong)


def _seeded(kind: str) -> random.Random:
    return random.Random(f"{SEED} {kind}")


def _row(name: str, kind: str, found: Decided, note: str, *, value: float) -> dict[str, Any]:
    return {
        "name": name,
        "value": round(value, 4),
        "kind": kind,
        "decided": round(found.stopped, 4),
        "right": round(found.right, 4),
        "wrong": round(found.wrong, 4),
        "median_trials": round(found.trials, 4),
        "note": note,
    }


def main() -> None:
    """Print all rows."""
    for row in rows():
        sys.stdout.write(json.dumps(row) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
