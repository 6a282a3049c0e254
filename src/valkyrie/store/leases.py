"""Who works on which trial: leases taken, given back, and recovered from the dead."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, and_, bindparam, func, insert, or_, select, update

from valkyrie.nouns import Json, Outcome, RunState, TrialState
from valkyrie.store.counters import count
from valkyrie.store.schema import STATE_COUNTERS, attempt, executor, run, trial


class StaleLeaseError(Exception):
    """At least one write of the group was refused because another lease is in force."""


def require_all(changed: int, wanted: int) -> None:
    if changed != wanted:
        raise StaleLeaseError


ACTIVE_STATES = [state.value for state in TrialState if state.active]


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


_RUNS = (
    select(
        run.c.id,
        run.c.state,
        run.c.concurrency,
        run.c.n_pending,
        (run.c.n_building + run.c.n_in_progress + run.c.n_evaluating).label("active"),
    )
    .where(run.c.state.in_(OPEN_RUNS))
    .order_by(run.c.created_at)
)


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


_TAKE = (
    update(trial)
    .where(trial.c.id == bindparam("b_id"), trial.c.state == TrialState.PENDING.value)
    .values(
        state=TrialState.BUILDING.value,
        executor_id=bindparam("b_executor"),
        epoch=bindparam("b_epoch"),
        attempts=bindparam("b_number"),
        not_before=None,
        started_at=bindparam("b_now"),
        finished_at=None,
    )
)


def lease(connection: Connection, tick: Tick) -> TickResult:
    """Take as many pending trials as runs' concurrency and the host's room allow, fairly among runs."""
    ready: dict[str, list[Any]] = {}
    ended: list[str] = []
    retries: list[str] = []
    runs = connection.execute(_RUNS).all()
    for row in runs:
        in_hand = max(row.active, tick.active.get(row.id, 0))
        pending = row.n_pending
        if pending and row.state == RunState.STOPPING:
            _stop_pending(connection, row.id, tick.now)
            pending = 0
        if pending == 0:
            if in_hand == 0:
                ended.append(row.id)
            continue
        slots = row.concurrency - in_hand
        if row.state != RunState.IN_PROGRESS or slots <= 0 or row.id not in tick.ready:
            continue
        found = connection.execute(_READY, {"run": row.id, "now": tick.now, "most": slots}).all()
        if found:
            ready[row.id] = list(found)
        if len(found) < min(slots, pending):
            retries.append(row.id)
    leased = _choose(ready, tick)
    if leased:
        _take(connection, leased, tick)
    waits = [connection.execute(_NEXT_RETRY, {"run": run_id, "now": tick.now}).scalar() for run_id in retries]
    wake_at = min((at for at in waits if at is not None), default=None)
    return TickResult(leased, ended, [row.id for row in runs], wake_at)


def _stop_pending(connection: Connection, run_id: str, now: float) -> None:
    """What came back to the queue of a run after it was stopped: a retry, or the trial of a dead executor."""
    held = connection.execute(
        select(trial.c.id, trial.c.run_id, trial.c.state, trial.c.attempts).where(
            trial.c.run_id == run_id, trial.c.state == TrialState.PENDING.value
        )
    ).all()
    give_back(connection, held, now, Outcome.STOPPED, TrialState.STOPPED)


def _choose(ready: dict[str, list[Any]], tick: Tick) -> list[Leased]:
    """Round-robin over runs, each in its own order, until the host is full."""
    cpus, memory, idle = tick.room.cpus, tick.room.memory_mb, tick.room.idle
    chosen: list[Leased] = []
    queues = [(run_id, iter(rows)) for run_id, rows in ready.items()]
    while queues:
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
                )
            )
            still.append((run_id, rows))
        queues = still
    return chosen


def _take(connection: Connection, leased: Sequence[Leased], tick: Tick) -> None:
    taken = connection.execute(
        _TAKE,
        [
            {
                "b_id": one.trial_id,
                "b_executor": tick.executor_id,
                "b_epoch": one.epoch,
                "b_number": one.number,
                "b_now": tick.now,
            }
            for one in leased
        ],
    )
    require_all(taken.rowcount, len(leased))
    connection.execute(
        insert(attempt),
        [
            {
                "trial_id": one.trial_id,
                "number": one.number,
                "executor_id": tick.executor_id,
                "epoch": one.epoch,
                "phase": TrialState.BUILDING.value,
                "started_at": tick.now,
            }
            for one in leased
        ],
    )
    per_run = Counter(one.run_id for one in leased)
    count(connection, {run_id: {"n_pending": -n, "n_building": n} for run_id, n in per_run.items()})
    connection.execute(
        update(run).where(run.c.id.in_(list(per_run)), run.c.started_at.is_(None)).values(started_at=tick.now)
    )


def data_version(connection: Connection) -> int:
    """A number that differs when another connection has written in between."""
    return int(connection.exec_driver_sql("PRAGMA data_version").scalar() or 0)


def still_ours(connection: Connection, executor_id: str) -> set[int]:
    """Trials this executor still holds; anything else it works on was taken from it."""
    rows = connection.execute(
        select(trial.c.id).where(trial.c.executor_id == executor_id, trial.c.state.in_(ACTIVE_STATES))
    )
    return set(rows.scalars())


def state_of(connection: Connection, leased: Leased) -> TrialState | None:
    """The phase a leased trial is in; None when it is no longer ours."""
    found = connection.execute(
        select(trial.c.state).where(trial.c.id == leased.trial_id, trial.c.epoch == leased.epoch)
    ).scalar()
    return TrialState(found) if found else None


def abandon(connection: Connection, executor_id: str, now: float) -> None:
    """Give back everything an executor holds, at its own request."""
    held = connection.execute(
        select(trial.c.id, trial.c.run_id, trial.c.state, trial.c.attempts).where(
            trial.c.executor_id == executor_id, trial.c.state.in_(ACTIVE_STATES)
        )
    ).all()
    if held:
        give_back(connection, held, now, Outcome.LOST, TrialState.PENDING)


def recover(connection: Connection, executor_id: str, now: float, *, alone: bool) -> int:
    """Give back what dead executors held: their attempts become lost, their trials pending again.

    `alone`: a lock proves that no other executor lives, so nobody's lease has to run out first.
    """
    dead = trial.c.executor_id.is_not(None) & (trial.c.executor_id != executor_id)
    if not alone:
        living = select(executor.c.id).where(executor.c.expires_at > now, executor.c.ended_at.is_(None))
        dead = dead & trial.c.executor_id.not_in(living)
    held = connection.execute(
        select(trial.c.id, trial.c.run_id, trial.c.state, trial.c.attempts).where(
            dead, trial.c.state.in_(ACTIVE_STATES)
        )
    ).all()
    if not held:
        return 0
    give_back(connection, held, now, Outcome.LOST, TrialState.PENDING)
    return len(held)


_GIVE_BACK = (
    update(trial)
    .where(trial.c.id == bindparam("b_id"))
    .values(
        state=bindparam("b_state"), executor_id=None, epoch=trial.c.epoch + 1, finished_at=bindparam("b_at")
    )
)


_CLOSE_ATTEMPT = (
    update(attempt)
    .where(
        and_(
            attempt.c.trial_id == bindparam("b_id"),
            attempt.c.number == bindparam("b_number"),
            attempt.c.outcome.is_(None),
        )
    )
    .values(outcome=bindparam("b_outcome"), phase=bindparam("b_phase"), finished_at=bindparam("b_now"))
)


def give_back(
    connection: Connection, held: Sequence[Any], now: float, outcome: Outcome, after: TrialState
) -> None:
    """End attempts from outside; raising the epoch makes every later write of their executor stale."""
    connection.execute(
        _GIVE_BACK,
        [{"b_id": row.id, "b_state": after.value, "b_at": now if after.terminal else None} for row in held],
    )
    connection.execute(
        _CLOSE_ATTEMPT,
        [
            {
                "b_id": row.id,
                "b_number": row.attempts,
                "b_outcome": outcome.value,
                "b_phase": row.state,
                "b_now": now,
            }
            for row in held
        ],
    )
    deltas: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for row in held:
        deltas[row.run_id][STATE_COUNTERS[TrialState(row.state)]] -= 1
        deltas[row.run_id][STATE_COUNTERS[after]] += 1
    count(connection, deltas)
