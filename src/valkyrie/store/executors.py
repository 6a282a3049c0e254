"""Executors as rows: begun, alive, ended. Their times are the store's, whatever their hosts' clocks say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, func, insert, select, update

from valkyrie.nouns import Json
from valkyrie.store import clock
from valkyrie.store.schema import executor, run, trial

_TIMES = ("started_at", "heartbeat_at", "expires_at")


def register_executor(connection: Connection, values: Json) -> None:
    """An executor begins; `values` have its own host's times. Once: a repeated call changes nothing."""
    if connection.execute(select(executor.c.id).where(executor.c.id == values["id"])).scalar():
        return
    ahead = clock.skew(connection)
    times = {name: values[name] + ahead for name in _TIMES}
    connection.execute(insert(executor).values(**{**values, **times}))


def heartbeat(connection: Connection, executor_id: str, lease_s: float) -> None:
    """An executor lives."""
    now = clock.now(connection)
    connection.execute(
        update(executor)
        .where(executor.c.id == executor_id)
        .values(heartbeat_at=now, expires_at=now + lease_s)
    )


def end_executor(connection: Connection, executor_id: str) -> None:
    """An executor ends in order."""
    now = clock.now(connection)
    connection.execute(
        update(executor).where(executor.c.id == executor_id).values(ended_at=now, expires_at=now)
    )


def living(connection: Connection) -> Sequence[Row[Any]]:
    """Executors that live, oldest first; `active` is how many trials each holds."""
    held = (
        select(func.count())
        .select_from(trial)
        .where(trial.c.executor_id == executor.c.id)
        .scalar_subquery()
        .label("active")
    )
    return connection.execute(
        select(executor, held)
        .where(executor.c.ended_at.is_(None), executor.c.expires_at > clock.now(connection))
        .order_by(executor.c.started_at, executor.c.id)
    ).all()


def lives_at(connection: Connection, home: str) -> bool:
    """Whether an executor of this home lives."""
    at_home = select(executor.c.id).where(
        executor.c.home == home, executor.c.ended_at.is_(None), executor.c.expires_at > clock.now(connection)
    )
    return connection.execute(at_home.limit(1)).scalar() is not None


def bound_runs(connection: Connection) -> dict[str, bool]:
    """Runs that one executor keeps to itself, and whether that one lives; ended runs too, which it may open
    again at any moment."""
    found = connection.execute(select(run.c.id, run.c.bound).where(run.c.bound.is_not(None))).all()
    lives = {home: lives_at(connection, home) for home in {row.bound for row in found}}
    return {row.id: lives[row.bound] for row in found}
