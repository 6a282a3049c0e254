"""Which of the trials that could begin do: by priority, fairly among runs, as far as the host has room."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from valkyrie.nouns import Json


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
    ready: dict[int, dict[str, list[Any]]], tick: Tick, pools: Mapping[str, Pool], active: Mapping[str, int]
) -> list[Leased]:
    """By priority; round-robin over runs of the same one, each in its own order, until the host is full.

    Of a job's runs only those with the fewest trials in hand have their turn: they share their pool evenly.
    """
    room, held = _Left(tick.room), dict(active)
    chosen: list[Leased] = []
    for level in sorted(ready):
        queues = {run_id: iter(rows) for run_id, rows in ready[level].items()}
        while queues:
            for run_id in _whose_turn(queues, pools, held):
                row = next(queues[run_id], None) if pools[run_id].left > 0 else None
                if row is None or not room.take(row):
                    del queues[run_id]
                    continue
                pools[run_id].left -= 1
                held[run_id] += 1
                chosen.append(_leased(run_id, row, tick))
    return chosen


class _Left:
    """What the host has left, and less with every trial that is let in."""

    def __init__(self, room: Room) -> None:
        self._cpus, self._memory, self._idle = room.cpus, room.memory_mb, room.idle

    def take(self, row: Any) -> bool:
        """Whether the trial fits; if so, its share is gone."""
        cpus, memory = row.cpus or 0.0, row.memory_mb or 0
        if not self._idle and (cpus > self._cpus or memory > self._memory):
            return False
        self._idle = False
        self._cpus -= cpus
        self._memory -= memory
        return True


def _whose_turn(run_ids: Collection[str], pools: Mapping[str, Pool], held: Mapping[str, int]) -> list[str]:
    fewest: dict[int, int] = {}
    for run_id in run_ids:
        pool = id(pools[run_id])
        fewest[pool] = min(fewest.get(pool, held[run_id]), held[run_id])
    return [run_id for run_id in run_ids if held[run_id] == fewest[id(pools[run_id])]]


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
