"""Which of the trials that could begin do: in fair shares by priority, as far as the host has room."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush, heapreplace
from typing import Any, Generic, TypeVar

from valkyrie.domain import LAST_PRIORITY, Json

Member = TypeVar("Member")
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
    """What several runs share: how many more of their trials may begin."""

    left: int


Pools = Mapping[str, Sequence[Pool]]
"""By run: the pools its trials are taken from."""


def pools_of(rows: Sequence[Any], tick: Tick) -> Pools:
    """Return each run's pools: its job's, and that of the API key it was started with."""
    known: dict[tuple[str, str], Pool] = {}
    found: dict[str, list[Pool]] = {}
    for row in rows:
        job, key = ("job", row.job_id), ("key", row.key_id)
        limits = [(name, most) for name, most in ((job, row.pool), (key, row.key_limit)) if most is not None]
        found[row.id] = [known.setdefault(name, Pool(most)) for name, most in limits]
        for pool in found[row.id]:
            pool.left -= in_hand(row, tick)
    return found


def left_in(pools: Sequence[Pool]) -> int:
    """Return how many more trials may be taken from all of these pools; no pool is no limit."""
    return min((pool.left for pool in pools), default=sys.maxsize)


def in_hand(row: Any, tick: Tick) -> int:
    """Its trials under way, sandboxes still being removed here included."""
    return max(int(row.active), tick.active.get(row.id, 0))


def choose(ready: Mapping[str, Iterable[Any]], tick: Tick, pools: Pools, load: Load) -> list[Leased]:
    """Whoever is furthest below its share is next, until the host is full.

    First among people, so that ten runs of one person count as one; then among that person's runs, each in
    its own order. Shares are in proportion to weights (`weight_of`); of equals, whoever has the fewest
    trials in hand is next, and of those whoever was served longest ago.
    """
    room = _Left(tick.room)
    chosen: list[Leased] = []
    turns = _Turns(ready, load)
    while (run_id := turns.next()) is not None:
        row = turns.trial(run_id) if left_in(pools[run_id]) > 0 else None
        if row is None or not room.take(row):
            turns.leave()
            continue
        for pool in pools[run_id]:
            pool.left -= 1
        turns.took()
        chosen.append(_leased(run_id, row, tick))
    return chosen


def weight_of(priority: int) -> int:
    """Return what a run of this priority weighs when slots are shared: twice the next lower one's."""
    return 1 << max(0, LAST_PRIORITY - priority)


@dataclass(slots=True)
class Load:
    """Trials in hand, by run and by person, and what each run weighs."""

    of_run: dict[str, int]
    of_person: Counter[Person]
    person: dict[str, Person]
    """Whose run it is."""
    weight: dict[str, int]
    served_at: dict[str | Person, float]
    """When a run, or one of a person's, was last served."""


def load_of(rows: Iterable[Any], tick: Tick) -> Load:
    """Count what open runs and the people who started them have in hand."""
    load = Load({}, Counter(), {}, {}, {})
    for row in rows:
        person = row.org_id, row.started_by
        load.of_run[row.id] = in_hand(row, tick)
        load.of_person[person] += load.of_run[row.id]
        load.person[row.id] = person
        load.weight[row.id] = weight_of(row.priority)
        load.served_at[row.id] = row.leased_at or 0.0
        load.served_at[person] = max(load.served_at[row.id], load.served_at.get(person, 0.0))
    return load


class _Shares(Generic[Member]):
    """Members who share slots in proportion to their weights; `next` is furthest below its share.

    The share is of what all of them have in hand and the slot that is to be given: nobody gets more than one
    trial above it. Members of one weight are in a heap, for among them the fewest trials in hand decide.
    """

    def __init__(self) -> None:
        self._heaps: dict[int, list[tuple[int, float, int, Member]]] = {}
        self._weights = 0
        self._held = 0

    def join(self, member: Member, weight: int, held: int, served_at: float, place: int) -> None:
        """Add a member that has `held` trials in hand; `place` decides among equals."""
        heappush(self._heaps.setdefault(weight, []), (held, served_at, place, member))
        self._weights += weight
        self._held += held

    @property
    def heaviest(self) -> int:
        """The greatest weight of those who are left; 0 when nobody is."""
        return max(self._heaps, default=0)

    def next(self) -> Member | None:
        """Return the member whose turn it is; None when all have left."""
        return self._heaps[self._turn()][0][3] if self._heaps else None

    def took(self) -> None:
        """Count a trial for the member whose turn it is."""
        heap = self._heaps[self._turn()]
        held, served_at, place, member = heap[0]
        heapreplace(heap, (held + 1, served_at, place, member))
        self._held += 1

    def leave(self) -> int:
        """Take the member whose turn it is out of the turns; return its place."""
        weight = self._turn()
        held, _, place, _ = heappop(self._heaps[weight])
        self._weights -= weight
        self._held -= held
        if not self._heaps[weight]:
            del self._heaps[weight]
        return place

    def _turn(self) -> int:
        """Return the weight in whose heap the next member is; of equals the heaviest."""
        if len(self._heaps) == 1:
            return next(iter(self._heaps))
        slots = self._held + 1
        # The distance to its share, times all weights: whole numbers, so that equals are equal.
        return max(
            self._heaps,
            key=lambda weight: (weight * slots - self._heaps[weight][0][0] * self._weights, weight),
        )


class _Turns:
    """Whose turn it is: people share slots, and each person's runs share what that person gets."""

    def __init__(self, queues: Mapping[str, Iterable[Any]], load: Load) -> None:
        self._load = load
        self._trials = {run_id: iter(rows) for run_id, rows in queues.items()}
        self._runs: dict[Person, _Shares[str]] = {}
        self._people: _Shares[Person] = _Shares()
        for place, run_id in enumerate(queues):
            own = self._runs.setdefault(load.person[run_id], _Shares())
            own.join(run_id, load.weight[run_id], load.of_run[run_id], load.served_at[run_id], place)
        for place, person in enumerate(self._runs):
            self._join(person, place)

    def _join(self, person: Person, place: int) -> None:
        """Let a person share with the weight of the most urgent of the runs that are left."""
        if heaviest := self._runs[person].heaviest:
            served_at = self._load.served_at[person]
            self._people.join(person, heaviest, self._load.of_person[person], served_at, place)

    def next(self) -> str | None:
        """Return the run whose turn it is; None when all have left."""
        person = self._people.next()
        return None if person is None else self._runs[person].next()

    def trial(self, run_id: str) -> Any:
        """Return that run's next trial, if there is one."""
        return next(self._trials[run_id], None)

    def took(self) -> None:
        """Count a trial for the run whose turn it was, and for its person."""
        person = self._people.next()
        if person is not None:
            self._runs[person].took()
            self._people.took()
            self._load.of_person[person] += 1

    def leave(self) -> None:
        """Take the run whose turn it was out of the turns."""
        person = self._people.next()
        if person is not None:
            self._runs[person].leave()
            self._join(person, self._people.leave())


class _Left:
    """What the host has left, and less with every trial that is let in."""

    def __init__(self, room: Room) -> None:
        self._cpus, self._memory, self._idle = room.cpus, room.memory_mb, room.idle
        self._trials = room.trials

    def take(self, row: Any) -> bool:
        """Return whether the trial fits; if so, its share is gone."""
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
