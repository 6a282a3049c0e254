"""Executors as rows, and the leases that they give back or lose."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from sqlalchemy import ColumnElement, Connection, and_, func, insert, or_, select, text, update

from valkyrie.domain import Json, Outcome, RunState, TrialState
from valkyrie.store import schema
from valkyrie.store.counters import count, lock_runs, spending
from valkyrie.store.database import LONGEST_OUTAGE_S
from valkyrie.store.schema import STATE_COUNTERS, attempt, executor, run, trial

if TYPE_CHECKING:
    from valkyrie.store.rows import ExecutorRow

_TIMES = ("started_at", "heartbeat_at", "expires_at")


def register_executor(connection: Connection, values: Json) -> None:
    """An executor begins; `values` have its own host's times. Once: a repeated call changes nothing."""
    if connection.execute(select(executor.c.id).where(executor.c.id == values["id"])).scalar():
        return
    ahead = schema.skew(connection)
    times = {name: values[name] + ahead for name in _TIMES}
    connection.execute(insert(executor).values(**{**values, **times}))


def heartbeat(connection: Connection, executor_id: str, lease_s: float) -> None:
    now = schema.now(connection)
    connection.execute(
        update(executor)
        .where(executor.c.id == executor_id)
        .values(heartbeat_at=now, expires_at=now + lease_s)
    )


def end_executor(connection: Connection, executor_id: str) -> None:
    now = schema.now(connection)
    connection.execute(
        update(executor).where(executor.c.id == executor_id).values(ended_at=now, expires_at=now)
    )


def living(connection: Connection) -> Sequence[ExecutorRow]:
    """Executors that live, oldest first; `active` is how many trials each holds."""
    held = (
        select(func.count())
        .select_from(trial)
        .where(trial.c.executor_id == executor.c.id)
        .scalar_subquery()
        .label("active")
    )
    rows = connection.execute(
        select(executor, held)
        .where(executor.c.ended_at.is_(None), executor.c.expires_at > schema.now(connection))
        .order_by(executor.c.started_at, executor.c.id)
    )
    return cast("Sequence[ExecutorRow]", rows.all())


def lives_at(connection: Connection, home: str) -> bool:
    at_home = select(executor.c.id).where(
        executor.c.home == home, executor.c.ended_at.is_(None), executor.c.expires_at > schema.now(connection)
    )
    return connection.execute(at_home.limit(1)).scalar() is not None


def bound_runs(connection: Connection) -> dict[str, bool]:
    """Runs that one executor keeps to itself, and whether that one lives; ended runs too, which it may open
    again at any moment."""
    found = connection.execute(select(run.c.id, run.c.bound).where(run.c.bound.is_not(None))).all()
    lives = {home: lives_at(connection, home) for home in {row.bound for row in found}}
    return {row.id: lives[row.bound] for row in found}


# Leases given back: by their holder, or because it is dead, was stopped, or does not know of them.

OPEN_RUNS = [RunState.IN_PROGRESS.value, RunState.STOPPING.value]
ACTIVE_STATES = [state.value for state in TrialState if state.active]
AT_ONCE = 500


class StaleLeaseError(Exception):
    """At least one write of the group was refused because another lease is in force."""


def require_all(changed: int, wanted: int) -> None:
    """Refuse the group when some of it found another lease in force."""
    if changed != wanted:
        raise StaleLeaseError


def still_ours(connection: Connection, executor_id: str) -> set[int]:
    """Trials this executor still holds; anything else it works on was taken from it."""
    rows = connection.execute(
        select(trial.c.id).where(trial.c.executor_id == executor_id, trial.c.state.in_(ACTIVE_STATES))
    )
    return set(rows.scalars())


def abandon(connection: Connection, executor_id: str, now: float) -> None:
    """Give back everything an executor holds, at its own request."""
    held = _held(connection, trial.c.executor_id == executor_id)
    give_back(connection, held, now, Outcome.LOST, TrialState.PENDING)


def give_back_unknown(
    connection: Connection, executor_id: str, known: Collection[int], now: float
) -> Sequence[int]:
    """Give back what an executor holds without knowing: the answer to its lease was lost on the way."""
    if not still_ours(connection, executor_id) - set(known):
        return []
    held = [row for row in _held(connection, trial.c.executor_id == executor_id) if row.id not in known]
    give_back(connection, held, now, Outcome.LOST, TrialState.PENDING)
    return [row.id for row in held]


def recover(connection: Connection, executor_id: str, *, home: str) -> int:
    """Give back what dead executors held: their attempts become lost, their trials pending again.

    Dead is whose lease ran out by the store's clock, and at once whoever worked on `home`: its lock is ours.
    """
    now = schema.now(connection)
    living = select(executor.c.id).where(
        executor.c.ended_at.is_(None), executor.c.home != home, _alive(connection, now)
    )
    others = trial.c.executor_id.is_not(None) & (trial.c.executor_id != executor_id)
    held = _held(connection, others & trial.c.executor_id.not_in(living))
    give_back(connection, held, now, Outcome.LOST, TrialState.PENDING)
    return len(held)


def _alive(connection: Connection, now: float) -> ColumnElement[bool]:
    """Its lease is in force. Just after the database came up it need not be: nobody could renew one before,
    so whoever had one then, and may still be waiting, has its time anew."""
    in_force = executor.c.expires_at > now
    if connection.dialect.name != "postgresql":
        return in_force
    up_for = float(connection.execute(_UP_FOR).scalar_one())
    excused = and_(
        executor.c.expires_at - executor.c.heartbeat_at > up_for,
        executor.c.expires_at > now - up_for - LONGEST_OUTAGE_S,
    )
    return or_(in_force, excused)


_UP_FOR = text("SELECT extract(epoch FROM clock_timestamp() - pg_postmaster_start_time())::float8")


def _held(connection: Connection, condition: ColumnElement[bool]) -> Sequence[Any]:
    """Active trials that meet a condition, and do until this transaction ends."""
    active = condition & trial.c.state.in_(ACTIVE_STATES)
    run_ids = connection.execute(select(trial.c.run_id).where(active).distinct()).scalars().all()
    if not run_ids:
        return []
    lock_runs(connection, run_ids)
    # Of these runs only: others that meet the condition by now are not locked.
    return connection.execute(
        select(trial.c.id, trial.c.run_id, trial.c.state).where(active, trial.c.run_id.in_(run_ids))
    ).all()


def _spent(connection: Connection, ids: Sequence[int]) -> dict[int, tuple[str, Json]]:
    """Of trials whose agent was done: their runs, and what their attempts under way saved of its use."""
    found: dict[int, tuple[str, Json]] = {}
    for start in range(0, len(ids), AT_ONCE):
        rows = connection.execute(
            select(trial.c.id, trial.c.run_id, trial.c.saved, attempt.c.number)
            .join(attempt, and_(attempt.c.trial_id == trial.c.id, attempt.c.outcome.is_(None)))
            .where(trial.c.id.in_(ids[start : start + AT_ONCE]), trial.c.saved.is_not(None))
        )
        # One that went on grading ran no agent; what an earlier one saved was counted when that one ended.
        found |= {
            row.id: (row.run_id, row.saved)
            for row in rows
            if row.saved.get("attempt") == row.number
            and (row.saved.get("usage") or row.saved.get("cost") is not None)
        }
    return found


def _keep_spent(connection: Connection, spent: Mapping[int, tuple[str, Json]]) -> None:
    for trial_id, (_, saved) in spent.items():
        cost, usage = saved["cost"], saved["usage"]
        so_far = trial.c.cost if cost is None else func.coalesce(trial.c.cost, 0.0) + cost
        connection.execute(update(trial).where(trial.c.id == trial_id).values(cost=so_far, usage=usage))
        ours = and_(attempt.c.trial_id == trial_id, attempt.c.outcome.is_(None))
        connection.execute(update(attempt).where(ours).values(cost=cost, usage=usage))


def give_back(
    connection: Connection, held: Sequence[Any], now: float, outcome: Outcome, after: TrialState
) -> None:
    """End attempts from outside; raising the epoch makes every later write of their executor stale.

    `held` are rows (id, run_id, state) of trials whose runs are locked.
    """
    if not held:
        return
    deltas: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    alike: dict[tuple[str, str], list[int]] = defaultdict(list)
    for row in held:
        deltas[row.run_id][STATE_COUNTERS[TrialState(row.state)]] -= 1
        deltas[row.run_id][STATE_COUNTERS[after]] += 1
        alike[row.run_id, row.state].append(row.id)
    spent = _spent(connection, [row.id for row in held])
    for run_id, saved in spent.values():
        for name, value in spending(saved["cost"], saved["usage"]).items():
            deltas[run_id][name] += value
    versions = count(connection, deltas)
    _keep_spent(connection, spent)
    for (run_id, before), ids in alike.items():
        for start in range(0, len(ids), AT_ONCE):
            some = ids[start : start + AT_ONCE]
            connection.execute(
                update(trial)
                .where(trial.c.id.in_(some))
                .values(
                    state=after.value,
                    executor_id=None,
                    epoch=trial.c.epoch + 1,
                    finished_at=now if after.terminal else None,
                    version=versions[run_id],
                )
            )
            if before in ACTIVE_STATES:
                connection.execute(
                    update(attempt)
                    .where(attempt.c.trial_id.in_(some), attempt.c.outcome.is_(None))
                    .values(outcome=outcome.value, phase=before, finished_at=now)
                )
