"""Who works on which trial: leases taken, given back, and recovered from the dead."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, bindparam, exists, func, or_, select, update

from valkyrie.nouns import Json, Outcome, RunState, TrialState
from valkyrie.store.clock import CLOCK, skew
from valkyrie.store.counters import count
from valkyrie.store.returning import abandon as abandon
from valkyrie.store.returning import give_back as give_back
from valkyrie.store.returning import give_back_unknown as give_back_unknown
from valkyrie.store.returning import recover as recover
from valkyrie.store.returning import require_all
from valkyrie.store.returning import still_ours as still_ours
from valkyrie.store.rows import ForEach
from valkyrie.store.schema import attempt, executor, run, trial

OPEN_RUNS = [RunState.IN_PROGRESS.value, RunState.STOPPING.value]


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


@dataclass(frozen=True, slots=True)
class TickResult:
    """What a look for work found."""

    leased: Sequence[Leased]
    ended: Sequence[str]
    """Open runs with nothing left to do: their score is due."""
    open_runs: Sequence[str]
    wake_at: float | None
    """When the next trial's back-off is over."""


_OPEN = select(
    run.c.id,
    run.c.state,
    run.c.concurrency,
    run.c.n_pending,
    run.c.priority,
    run.c.created_at,
    run.c.passes,
    run.c.max_cost,
    run.c.cost_sum,
    (run.c.n_building + run.c.n_in_progress + run.c.n_evaluating).label("active"),
).where(run.c.state.in_(OPEN_RUNS))


_LOCKED = (
    _OPEN.where(
        run.c.id.in_(bindparam("runs", expanding=True)),
        ~exists().where(executor.c.id == bindparam("executor"), executor.c.expires_at <= CLOCK),
    )
    .order_by(run.c.id)
    .with_for_update(key_share=True)
)
"""Of several executors one at a time counts what a run has in hand; none whose own lease has run out."""


_READY = (
    select(
        trial.c.id,
        trial.c.task_id,
        trial.c.k,
        trial.c.digest,
        trial.c.attempts,
        trial.c.failures,
        trial.c.epoch,
        trial.c.cpus,
        trial.c.memory_mb,
        trial.c.saved,
    )
    .where(
        trial.c.run_id == bindparam("run"),
        trial.c.state == TrialState.PENDING.value,
        or_(trial.c.not_before.is_(None), trial.c.not_before <= bindparam("now")),
    )
    .order_by(trial.c.position)
    .limit(bindparam("most"))
)


_NEXT_RETRY = select(func.min(trial.c.not_before)).where(
    trial.c.run_id == bindparam("run"),
    trial.c.state == TrialState.PENDING.value,
    trial.c.not_before > bindparam("now"),  # one that is due already waits for room, not for a time
)


_TAKE = ForEach(
    {
        "b_id": trial.c.id.type,
        "b_executor": trial.c.executor_id.type,
        "b_epoch": trial.c.epoch.type,
        "b_number": trial.c.attempts.type,
        "b_now": trial.c.started_at.type,
        "b_version": trial.c.version.type,
    },
    lambda given: (
        update(trial)
        .where(trial.c.id == given["b_id"], trial.c.state == TrialState.PENDING.value)
        .values(
            state=TrialState.BUILDING.value,
            executor_id=given["b_executor"],
            epoch=given["b_epoch"],
            attempts=given["b_number"],
            not_before=None,
            started_at=given["b_now"],
            finished_at=None,
            version=given["b_version"],
        )
    ),
)
_BEGIN = ForEach.insert(
    attempt,
    attempt.c.trial_id,
    attempt.c.number,
    attempt.c.executor_id,
    attempt.c.epoch,
    attempt.c.phase,
    attempt.c.started_at,
    attempt.c.passage,
)


def lease(connection: Connection, tick: Tick) -> TickResult:
    """Take as many pending trials as runs' concurrency and the host's room allow, fairly among runs."""
    ready: dict[int, dict[str, list[Any]]] = {}
    retries: list[str] = []
    skewed = skew(connection)
    due = tick.now + skewed
    runs = connection.execute(_OPEN).all()
    stopped: set[str] = set()
    wanted = _locked(connection, [row for row in runs if _is_over(row) or _slots(row, tick)], tick)
    for row in sorted(wanted, key=serving_order):
        if _is_over(row):
            _stop_pending(connection, row.id, tick.now)
            stopped.add(row.id)
        elif (slots := _slots(row, tick)) > 0:
            found = connection.execute(_READY, {"run": row.id, "now": due, "most": slots}).all()
            if found:
                ready.setdefault(row.priority, {})[row.id] = list(found)
            if len(found) < min(slots, row.n_pending):
                retries.append(row.id)
    leased = _choose(ready, tick)
    if leased:
        _take(connection, leased, tick, {row.id: row.passes for row in wanted})
    waits = [connection.execute(_NEXT_RETRY, {"run": run_id, "now": due}).scalar() for run_id in retries]
    wake_at = min((at - skewed for at in waits if at is not None), default=None)
    ended = [row.id for row in runs if _is_done(row, tick, stopped)]
    return TickResult(leased, ended, [row.id for row in sorted(runs, key=serving_order)], wake_at)


def serving_order(row: Any) -> tuple[int, float, str]:
    """Runs are served by priority, and among equals the oldest first."""
    return row.priority, row.created_at, row.id


def _locked(connection: Connection, rows: Sequence[Any], tick: Tick) -> Sequence[Any]:
    """These runs as they are now, and stay until this transaction ends; on SQLite they do anyway."""
    if not rows or connection.dialect.name == "sqlite":
        return rows
    names = {"runs": [row.id for row in rows], "executor": tick.executor_id}
    return connection.execute(_LOCKED, names).all()


def _in_hand(row: Any, tick: Tick) -> int:
    return max(int(row.active), tick.active.get(row.id, 0))


def _is_over(row: Any) -> bool:
    """Nothing more of it may begin: it was stopped, or has cost what it may."""
    spent = row.max_cost is not None and row.cost_sum >= row.max_cost
    return bool(row.n_pending) and (row.state == RunState.STOPPING or spent)


def _slots(row: Any, tick: Tick) -> int:
    """How many more of its trials may begin here."""
    if row.state != RunState.IN_PROGRESS or not row.n_pending or row.id not in tick.ready:
        return 0
    return max(0, int(row.concurrency) - _in_hand(row, tick))


def _is_done(row: Any, tick: Tick, stopped: Collection[str]) -> bool:
    return (row.n_pending == 0 or row.id in stopped) and _in_hand(row, tick) == 0


def _stop_pending(connection: Connection, run_id: str, now: float) -> None:
    """What came back to the queue of a run after it was stopped: a retry, or the trial of a dead executor."""
    held = connection.execute(
        select(trial.c.id, trial.c.run_id, trial.c.state, trial.c.attempts).where(
            trial.c.run_id == run_id, trial.c.state == TrialState.PENDING.value
        )
    ).all()
    give_back(connection, held, now, Outcome.STOPPED, TrialState.STOPPED)


def _choose(ready: dict[int, dict[str, list[Any]]], tick: Tick) -> list[Leased]:
    """By priority; round-robin over runs of the same one, each in its own order, until the host is full."""
    cpus, memory, idle = tick.room.cpus, tick.room.memory_mb, tick.room.idle
    chosen: list[Leased] = []
    levels = [[(run_id, iter(rows)) for run_id, rows in ready[level].items()] for level in sorted(ready)]
    while levels:
        queues = levels[0]
        if not queues:
            levels.pop(0)
            continue
        still: list[tuple[str, Any]] = []
        for run_id, rows in queues:
            row = next(rows, None)
            if row is None:
                continue
            need_cpus, need_memory = row.cpus or 0.0, row.memory_mb or 0
            if not idle and (need_cpus > cpus or need_memory > memory):
                continue
            idle = False
            cpus -= need_cpus
            memory -= need_memory
            chosen.append(
                Leased(
                    row.id,
                    run_id,
                    row.task_id,
                    row.k,
                    row.digest,
                    row.attempts + 1,
                    row.failures,
                    row.epoch + 1,
                    need_cpus,
                    need_memory,
                    row.saved,
                    tick.now,
                )
            )
            still.append((run_id, rows))
        levels[0] = still
    return chosen


def _take(connection: Connection, leased: Sequence[Leased], tick: Tick, passes: Mapping[str, int]) -> None:
    per_run = Counter(one.run_id for one in leased)
    deltas = {run_id: {"n_pending": -n, "n_building": n} for run_id, n in per_run.items()}
    versions = count(connection, deltas)
    taken = _TAKE.execute(
        connection,
        [
            {
                "b_id": one.trial_id,
                "b_executor": tick.executor_id,
                "b_epoch": one.epoch,
                "b_number": one.number,
                "b_now": tick.now,
                "b_version": versions[one.run_id],
            }
            for one in leased
        ],
    )
    require_all(taken, len(leased))
    _BEGIN.execute(
        connection,
        [
            {
                "trial_id": one.trial_id,
                "number": one.number,
                "executor_id": tick.executor_id,
                "epoch": one.epoch,
                "phase": TrialState.BUILDING.value,
                "started_at": tick.now,
                "passage": passes[one.run_id],
            }
            for one in leased
        ],
    )
    connection.execute(
        update(run).where(run.c.id.in_(list(per_run)), run.c.started_at.is_(None)).values(started_at=tick.now)
    )


def data_version(connection: Connection) -> int:
    """A number that differs when another connection may have written in between.

    PostgreSQL has none: there it differs twice a second.
    """
    if connection.dialect.name != "sqlite":
        return int(time.monotonic() * 2)
    return int(connection.exec_driver_sql("PRAGMA data_version").scalar() or 0)


def state_of(connection: Connection, leased: Leased) -> TrialState | None:
    """The phase a leased trial is in; None when it is no longer ours."""
    found = connection.execute(
        select(trial.c.state).where(trial.c.id == leased.trial_id, trial.c.epoch == leased.epoch)
    ).scalar()
    return TrialState(found) if found else None
