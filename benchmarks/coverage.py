"""How often what is said about scores is true: `python -m benchmarks.coverage`, one JSON object per line.

    python -m benchmarks.coverage                    simulate every cell, and name those that miss a bar
    python -m benchmarks.coverage --write            also keep the numbers in benchmarks/coverage.json
    python -m benchmarks.coverage --repetitions 50   fewer samples of each cell
    python -m benchmarks.coverage --only pair        these cells: score, repeats, pair, failing, families
    python -m benchmarks.coverage --only pair/floor/100/10 --repetitions 6000    more samples of one cell

Samples are drawn with fixed seeds and go through the product's own functions. Exit code 1: a bar is missed by
more than the simulation's own noise.
"""

from __future__ import annotations

import json
import math
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator

from valkyrie.report.statistics.intervals import mean_interval, means_interval
from valkyrie.report.statistics.paired import (
    NoWorse,
    Paired,
    differences,
    no_worse_than,
    sign_flip,
    surely_alike,
)
from valkyrie.report.statistics.power import pass_all_interval, pass_at_interval

Row = dict[str, Any]
KEPT = Path(__file__).with_suffix(".json")
TASKS = (5, 12, 30, 100, 500)
TRIALS = (1, 3, 10)
RARE = 1 / 33
"""The share of tasks on which an agent wholly fails, where it otherwise does not."""
MARGIN = 0.02
LOWEST, HIGHEST, FALSE = 0.93, 0.995, 0.05
Z_95 = 1.959963984540054


@dataclass(frozen=True, slots=True)
class Mix:
    """How hard tasks are: the chance to pass each is beta(a, b)."""

    a: float
    b: float

    @property
    def mean(self) -> float:
        return self.a / (self.a + self.b)

    def power(self, k: int) -> float:
        """Return the mean of the chance to pass k times."""
        return math.prod((self.a + n) / (self.a + self.b + n) for n in range(k))

    def draw(self, rng: Generator, tasks: int) -> np.ndarray:
        return rng.beta(self.a, self.b, tasks)


MIXES = {
    "middle": Mix(5, 5),
    "floor": Mix(0.5, 9.5),
    "ceiling": Mix(9.5, 0.5),
    "beta(½, ½)": Mix(0.5, 0.5),
}
NEAR_ENDS = Mix(3, 1)
PARTIAL = "near full or zero"


@dataclass(frozen=True, slots=True)
class Cell:
    """One setting that is simulated."""

    what: str
    setting: str
    tasks: int
    trials: int
    run: Callable[[Cell, Generator, int], Row]

    @property
    def name(self) -> str:
        """What `--only` calls the cell."""
        return f"{self.what}/{self.setting}/{self.tasks}/{self.trials}"

    def simulate(self, repetitions: int) -> Row:
        """Return the numbers of the cell; the seed is made from its name."""
        rng = np.random.default_rng(zlib.crc32(self.name.encode()))
        found = self.run(self, rng, repetitions)
        rounded = {key: round(value, 4) for key, value in found.items()}
        head = {"what": self.what, "setting": self.setting, "tasks": self.tasks, "trials": self.trials}
        return {**head, "repetitions": repetitions, **rounded}


@lru_cache(maxsize=200_000)
def _limits(values: tuple[tuple[float, int], ...]) -> tuple[float, float]:
    """Call the product once for samples that are the same but for their order."""
    found, _ = means_interval([value for value, count in values for _ in range(count)])
    assert found is not None
    return found


@lru_cache(maxsize=200_000)
def _p_value(values: tuple[tuple[float, int], ...]) -> float:
    return sign_flip([value for value, count in values for _ in range(count)])[0]


@lru_cache(maxsize=200_000)
def _differences(values: tuple[tuple[float, int], ...]) -> Paired:
    return differences([value for value, count in values for _ in range(count)])


def _key(values: np.ndarray) -> tuple[tuple[float, int], ...]:
    return tuple(sorted(Counter(np.round(values, 9).tolist()).items()))


def _near_ends(rng: Generator, chances: np.ndarray, trials: int) -> np.ndarray:
    """Draw scores of tasks whose trials score nearly 1 or nearly 0."""
    full = rng.random((len(chances), trials)) < chances[:, None]
    off = np.round(0.1 * rng.random(full.shape), 2)
    return np.where(full, 1 - off, off).mean(axis=1)


def score_means(cell: Cell, rng: Generator) -> tuple[np.ndarray, float]:
    """Draw the mean of each task's trials; return them with the true score."""
    tasks, trials = cell.tasks, cell.trials
    if cell.setting == PARTIAL:
        return _near_ends(rng, NEAR_ENDS.draw(rng, tasks), trials), 0.05 + 0.9 * NEAR_ENDS.mean
    if cell.setting == "rare total failures":
        return (rng.random(tasks) >= RARE).astype(float), 1 - RARE
    if cell.setting == "missing trials":
        mix = MIXES["beta(½, ½)"]
        kept = rng.binomial(trials, 0.8, tasks)
        passed = rng.binomial(kept, mix.draw(rng, tasks))
        return (passed[kept > 0] / kept[kept > 0]), mix.mean
    mix = MIXES[cell.setting]
    return rng.binomial(trials, mix.draw(rng, tasks)) / trials, mix.mean


def score_cell(cell: Cell, rng: Generator, repetitions: int) -> Row:
    held, width, made = 0, 0.0, 0
    for _ in range(repetitions):
        means, truth = score_means(cell, rng)
        if not len(means):
            continue
        low, high = _limits(_key(means))
        made += 1
        held += low - 1e-9 <= truth <= high + 1e-9
        width += high - low
    return {"coverage": held / made, "width": width / made}


def repeats_cell(cell: Cell, rng: Generator, repetitions: int) -> Row:
    """pass@3 and pass^3, of tasks with beta(½, ½) chances."""
    mix, k = MIXES["beta(½, ½)"], 3
    at, every = 1 - Mix(mix.b, mix.a).power(k), mix.power(k)
    held_at = held_all = 0
    for _ in range(repetitions):
        passed = rng.binomial(cell.trials, mix.draw(rng, cell.tasks)).tolist()
        tallies = sorted((count, cell.trials) for count in passed)
        low, high = pass_at_interval(tallies, k) or (1.0, 0.0)
        held_at += low <= at <= high
        low, high = pass_all_interval(tallies, k) or (1.0, 0.0)
        held_all += low <= every <= high
    return {"pass@3 coverage": held_at / repetitions, "pass^3 coverage": held_all / repetitions}


def paired_scores(cell: Cell, rng: Generator, gap: float) -> tuple[np.ndarray, np.ndarray, float]:
    """Draw both agents' means; B's chance is `gap` smaller, and on 7 in 10 tasks otherwise that of A."""
    tasks, trials = cell.tasks, cell.trials
    mix = NEAR_ENDS if cell.setting == PARTIAL else MIXES[cell.setting]
    hard = mix.draw(rng, tasks)
    other = np.where(rng.random(tasks) < 0.7, hard, mix.draw(rng, tasks)) * (1 - gap)
    if cell.setting == PARTIAL:
        a, b = _near_ends(rng, hard, trials), _near_ends(rng, other, trials)
        return a, b, 0.9 * mix.mean * gap
    return rng.binomial(trials, hard) / trials, rng.binomial(trials, other) / trials, mix.mean * gap


def _is_plain(trials: int, setting: str) -> bool:
    """Tell whether each task simply passes or fails."""
    return trials == 1 and setting != PARTIAL


def _more_alike(trials: int, setting: str) -> int:
    """Return how many times more samples there are of agents that are alike, where only the test is asked."""
    return 2 if trials == 1 else 10 if setting == PARTIAL else 4


def paired_cell(cell: Cell, rng: Generator, repetitions: int) -> Row:
    """Two agents that are alike, and two of which one is better by a quarter of its score.

    Of those that are alike the test alone is asked, in more samples: an interval excludes 0, and a one-sided
    limit is below it, exactly when the test says so.
    """
    found: Counter[str] = Counter()
    alike = repetitions * _more_alike(cell.trials, cell.setting)
    for _ in range(alike):
        a, b, _ = paired_scores(cell, rng, 0.0)
        p_value = _p_value(_key(a - b))
        found["beats"] += p_value < 0.05
        found["worse"] += p_value / 2 < 0.05 and a.sum() < b.sum()
    for _ in range(repetitions):
        a, b, truth = paired_scores(cell, rng, 0.25)
        one = _differences(_key(a - b))
        found["coverage"] += one.interval[0] - 1e-9 <= truth <= one.interval[1] + 1e-9
        found["power"] += one.p_value < 0.05 and one.difference > 0
        found["no worse"] += no_worse_than(_turned(one), truth - 1e-6) is NoWorse.NO_WORSE
        found["before"] += _is_plain(cell.trials, cell.setting) and old_verdict(a, b)
    before = {"power before": found["before"] / repetitions}
    return {
        "coverage": found["coverage"] / repetitions,
        "power": found["power"] / repetitions,
        **(before if _is_plain(cell.trials, cell.setting) else {}),
        'false "no worse"': found["no worse"] / repetitions,
        'false "beats"': found["beats"] / alike,
        'false "worse"': found["worse"] / alike,
    }


def _turned(one: Paired) -> Paired:
    from dataclasses import replace

    return replace(one, lowest=-one.highest, highest=-one.lowest)


def old_verdict(a: np.ndarray, b: np.ndarray) -> bool:
    """Tell whether the exact McNemar test and Tango's score interval both would say so."""
    won, lost = int((a > b).sum()), int((a < b).sum())
    total = won + lost
    if won <= lost:
        return False
    exact = sum(math.comb(total, n) for n in range(lost + 1)) * 2 / 2**total
    return exact < 0.05 and (won - lost) / math.sqrt(total) > Z_95


def failing_cell(cell: Cell, rng: Generator, repetitions: int) -> Row:
    """A is like B, but wholly fails a share of tasks: how often is it called alike, or no worse?"""
    found: Counter[str] = Counter()
    shares = (RARE, 0.06, 0.1, 0.2)
    for share in shares:
        for _ in range(repetitions):
            hard = np.ones(cell.tasks) if cell.trials == 1 else MIXES["ceiling"].draw(rng, cell.tasks)
            b = rng.binomial(cell.trials, hard) / cell.trials
            fails = rng.random(cell.tasks) < share
            a = np.where(fails, 0.0, rng.binomial(cell.trials, hard) / cell.trials)
            truth = share * (1.0 if cell.trials == 1 else MIXES["ceiling"].mean)
            one = _differences(_key(a - b))
            found[f"no worse {share}"] += no_worse_than(one, truth - 1e-6) is NoWorse.NO_WORSE
            found[f"covered {share}"] += one.interval[0] <= -truth <= one.interval[1]
            if share == RARE:
                found["alike"] += surely_alike(one.interval, cell.tasks, MARGIN)
    worst = max(found[f"no worse {share}"] for share in shares)
    least = min(found[f"covered {share}"] for share in shares)
    return {
        "least coverage": least / repetitions,
        'false "no worse"': worst / repetitions,
        'false "alike"': found["alike"] / repetitions,
    }


FAMILIES = {
    "10 families": (10,) * 10,
    "30 families": (3,) * 30,
    "12 families of 1 to 23": tuple(range(1, 24, 2)),
}
"""The sizes of families."""


def family_cell(cell: Cell, rng: Generator, repetitions: int) -> Row:
    """Tasks of families, with an intra-class correlation of 0.3: with and without knowing the families."""
    sizes = FAMILIES[cell.setting]
    names = [str(n) for n, size in enumerate(sizes) for _ in range(size)]
    index = np.repeat(np.arange(len(sizes)), sizes)
    mix = Mix(0.6 * (1 / 0.3 - 1), 0.4 * (1 / 0.3 - 1))
    known = {str(n): name for n, name in enumerate(names)}
    found: Counter[str] = Counter()
    for _ in range(repetitions):
        mine = mix.draw(rng, len(sizes))
        theirs = np.where(rng.random(len(sizes)) < 0.5, mine, mix.draw(rng, len(sizes)))
        a = (rng.random(len(index)) < mine[index]).astype(float)
        b = (rng.random(len(index)) < theirs[index]).astype(float)
        by_task = {str(n): [value] for n, value in enumerate(a.tolist())}
        for when, families in (("", known), (" without families", None)):
            low, high = mean_interval(by_task, families=families)[0] or (1.0, 0.0)
            found[f"coverage{when}"] += low <= mix.mean <= high
            one = differences((a - b).tolist(), families=names if families else None)
            found[f'false "beats"{when}'] += one.p_value < 0.05
            found[f"difference coverage{when}"] += one.interval[0] <= 0 <= one.interval[1]
    return {key: count / repetitions for key, count in found.items()}


def cells() -> Iterator[Cell]:
    """Every cell there is."""
    for tasks in TASKS:
        for trials in TRIALS:
            for setting in (*MIXES, PARTIAL, "missing trials"):
                yield Cell("score", setting, tasks, trials, score_cell)
        yield Cell("score", "rare total failures", tasks, 1, score_cell)
    for tasks in TASKS:
        for trials in TRIALS[1:]:
            yield Cell("repeats", "beta(½, ½)", tasks, trials, repeats_cell)
    for tasks in TASKS:
        for trials in TRIALS:
            for setting in (*MIXES, PARTIAL):
                yield Cell("pair", setting, tasks, trials, paired_cell)
    for tasks in TASKS:
        for trials in (1, 3):
            yield Cell("failing", "rare total failures", tasks, trials, failing_cell)
    for setting, sizes in FAMILIES.items():
        yield Cell("families", setting, sum(sizes), 1, family_cell)


def repetitions_of(cell: Cell, most: int) -> int:
    """Take fewer samples where each takes long, and more where most are the same."""
    if cell.what == "failing" and cell.trials == 1:
        return 4 * most
    if cell.what in ("pair", "failing"):
        if cell.setting == PARTIAL:
            return max(10, most if cell.trials == 1 else most // 5)
        return 2 * most if cell.trials == 1 else max(10, most // 3)
    return 2 * most if cell.what == "families" else most


def problems(rows: Iterable[Mapping[str, Any]], *, noise: float = 3.0) -> list[str]:
    """Name what misses a bar by more than `noise` standard errors of the simulation."""
    found = []
    for row in rows:
        place = f"{row['what']}, {row['setting']}, {row['tasks']} tasks × {row['trials']}"
        for key, value in row.items():
            bar = FALSE if key.startswith("false") else LOWEST if "coverage" in key else None
            if bar is None or "without" in key:
                continue
            error = noise * math.sqrt(bar * (1 - bar) / _samples(row, key))
            if (value > bar + error) if bar == FALSE else (value < bar - error):
                found.append(f"{place}: {key} is {value:.3f}, the bar {bar}")
        if "power before" in row and row["power"] < row["power before"] - 1e-9:
            found.append(f"{place}: power is {row['power']:.3f}, was {row['power before']:.3f}")
    return found


def _samples(row: Mapping[str, Any], key: str) -> int:
    more = 1
    if row["what"] == "pair" and key in ('false "beats"', 'false "worse"'):
        more = _more_alike(row["trials"], row["setting"])
    return int(row["repetitions"]) * more


def _simulate(asked: tuple[Cell, int]) -> Row:
    cell, repetitions = asked
    return cell.simulate(repetitions)


def measure(most: int = 1000, only: str | None = None) -> Iterator[Row]:
    """Simulate every cell, or every one of a kind, on all cores."""
    from concurrent.futures import ProcessPoolExecutor

    asked = [(cell, repetitions_of(cell, most)) for cell in cells() if only in (None, cell.what, cell.name)]
    with ProcessPoolExecutor() as pool:
        yield from pool.map(_simulate, asked)


def keep(rows: Sequence[Row]) -> None:
    """Write the numbers beside this file; those of other cells stay."""
    order = [cell.name for cell in cells()]
    kept = {_name(row): row for row in [*json.loads(KEPT.read_text()), *rows]}
    sort = [kept[name] for name in order if name in kept]
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in sort)
    KEPT.write_text(f"[\n{lines}\n]\n")


def _name(row: Mapping[str, Any]) -> str:
    return f"{row['what']}/{row['setting']}/{row['tasks']}/{row['trials']}"


def main(words: Sequence[str]) -> int:
    """Simulate, print, and keep the numbers if asked to."""
    given = dict(pairwise(words))
    only = given.get("--only")
    rows = []
    for row in measure(int(given.get("--repetitions", 1000)), only):
        print(json.dumps(row, ensure_ascii=False), flush=True)
        rows.append(row)
    if "--write" in words:
        keep(rows)
    missed = problems(rows)
    for problem in missed:
        print(problem, file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
