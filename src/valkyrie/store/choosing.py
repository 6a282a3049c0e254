"""Which of the trials that could begin do: by priority, fairly among runs, as far as the host has room."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from typing import Any

from valkyrie.nouns import Json

Person = tuple[str, str | None]
"""An organisation and the name of one of its people."""


@dataclass(frozen=True, slots=True)
class Leased:
    """One attempt of one trial, ours until its epoch is overtaken."""

    trial_id: int
    run_id: str
    task_id: str
    k: int
    digest: str
    number: int
    """Which attempt of the trial this is, from 1."""
    failures: int
    """Earlier attempts that failed and count against the retry limit."""
    epoch: int
    cpus: float
    memory_mb: int
    saved: Json | None = None
    """From what grading goes on, when an earlier attempt got that far."""
    started_at: float = 0.0

    @property
    def grading(self) -> int:
        """The regrade this attempt belongs to; 0 is the run's own grading."""
        return int((self.saved or {}).get("regrade", 0))


@dataclass(frozen=True, slots=True)
class Room:
    """What the host has left for trials."""

    cpus: float
    memory_mb: float
    idle: bool
    """Nothing is running: one trial is let in whatever it asks for."""
    trials: int = sys.maxsize
    """How many more may begin at all."""


@dataclass(frozen=True, slots=True)
class Tick:
    """A look for work."""

    executor_id: str
    now: float
    room: Room
    active: Mapping[str, int]
    """Attempts in hand, by run (sandboxes still being removed included)."""
    ready: Collection[str]
    """Runs whose world is open; of others nothing is leased."""
    bound: str | None = None
    """Only runs bound to this word are looked at; None: those that are bound to none."""


@dataclass(frozen=True, slots=True)
class TickResult:
    """What a look for work found."""

    leased: Sequence[Leased]
    ended: Sequence[str]
    """Open runs with nothing left to do: their score is due."""
    open_runs: Sequence[str]
    wake_at: float | None
    """When the next trial's back-off is over."""
    ruled: Sequence[str] = ()
    """Jobs with an open run that stop when they are decided."""


@dataclass(slots=True)
class Pool:
    """What runs of one job share: how many more of their trials may begin."""

    left: int


def pools_of(rows: Sequence[Any], tick: Tick) -> dict[str, Pool]:
    """Each run's pool: its job's, or one of its own without end."""
    of_job: dict[str, Pool] = {}
    found: dict[str, Pool] = {}
    for row in rows:
        pool = of_job.setdefault(row.job_id, Pool(row.pool)) if row.pool is not None else Pool(sys.maxsize)
        pool.left -= in_hand(row, tick)
        found[row.id] = pool
    return found


def in_hand(row: Any, tick: Tick) -> int:
    """Its trials under way, sandboxes still being removed here included."""
    return max(int(row.active), tick.active.get(row.id, 0))


def choose(
    ready: dict[int, dict[str, list[Any]]], tick: Tick, pools: Mapping[str, Pool], load: Load
) -> list[Leased]:
    """By priority; among equals whoever has the fewest trials in hand is next, until the host is full.

    First among people, so that ten runs of one person count as one; then among that person's runs, each in
    its own order.
    """
    room = _Left(tick.room)
    chosen: list[Leased] = []
    for level in sorted(ready):
        turns = _Turns(ready[level], load)
        while (run_id := turns.next()) is not None:
            row = turns.trial(run_id) if pools[run_id].left > 0 else None
            if row is None or not room.take(row):
                turns.leave()
                continue
            pools[run_id].left -= 1
            turns.took()
            chosen.append(_leased(run_id, row, tick))
    return chosen


@dataclass(slots=True)
class Load:
    """Trials in hand, by run and by person."""

    of_run: dict[str, int]
    of_person: Counter[Person]
    person: dict[str, Person]
    """Whose run it is."""


def load_of(rows: Iterable[Any], tick: Tick) -> Load:
    """Count what open runs and the people who started them have in hand."""
    load = Load({}, Counter(), {})
    for row in rows:
        person = row.org_id, row.started_by
        load.of_run[row.id] = in_hand(row, tick)
        load.of_person[person] += load.of_run[row.id]
        load.person[row.id] = person
    return load


class _Turns:
    """Whose turn it is among runs of one priority: a heap of people, each with a heap of runs."""

    def __init__(self, queues: Mapping[str, Iterable[Any]], load: Load) -> None:
        self._load = load
        self._trials = {run_id: iter(rows) for run_id, rows in queues.items()}
        runs: dict[Person, list[tuple[int, int, str]]] = {}
        for place, run_id in enumerate(queues):
            runs.setdefault(load.person[run_id], []).append((load.of_run[run_id], place, run_id))
        for heap in runs.values():
            heapify(heap)
        self._runs = list(runs.values())
        self._people = [(load.of_person[person], place, person) for place, person in enumerate(runs)]
        heapify(self._people)

    def next(self) -> str | None:
        """Return the run whose turn it is; None when all have left."""
        return self._runs[self._people[0][1]][0][2] if self._people else None

    def trial(self, run_id: str) -> Any:
        """Return that run's next trial, if there is one."""
        return next(self._trials[run_id], None)

    def took(self) -> None:
        """Count a trial for the run whose turn it was, and for its person."""
        count, place, person = self._people[0]
        own, order, run_id = self._runs[place][0]
        heapreplace(self._runs[place], (own + 1, order, run_id))
        heapreplace(self._people, (count + 1, place, person))
        self._load.of_run[run_id] += 1
        self._load.of_person[person] += 1

    def leave(self) -> None:
        """Take the run whose turn it was out of the turns."""
        place = self._people[0][1]
        heappop(self._runs[place])
        if not self._runs[place]:
            heappop(self._people)


class _Left:
    """What the host has left, and less with every trial that is let in."""

    def __init__(self, room: Room) -> None:
        self._cpus, self._memory, self._idle = room.cpus, room.memory_mb, room.idle
        self._trials = room.trials

    def take(self, row: Any) -> bool:
        """Whether the trial fits; if so, its share is gone."""
        cpus, memory = row.cpus or 0.0, row.memory_mb or 0
        full = cpus > self._cpus or memory > self._memory or self._trials < 1
        if full and not self._idle:
            return False
        self._idle = False
        self._trials -= 1
        self._cpus -= cpus
        self._memory -= memory
        return True


def _leased(run_id: str, row: Any, tick: Tick) -> Leased:
    return Leased(
        row.id,
        run_id,
        row.task_id,
        row.k,
        row.digest,
        row.attempts + 1,
        row.failures,
        row.epoch + 1,
        row.cpus or 0.0,
        row.memory_mb or 0,
        row.saved,
        tick.now,
    )
