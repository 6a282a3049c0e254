"""The outbox: what is to be told about runs, by whom, and how that went.

Writing a row down is the claim on it: (run, kind, trigger) is there once, so a threshold is told once ever,
however often its run is retried or resumed. Executors take rows and send them (hook_leases).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import Connection, insert, select, update

from valkyrie.nouns import Json, RunState
from valkyrie.store import clock, telling
from valkyrie.store.schema import hook, run
from valkyrie.views import HookView

RESULTS, LAMBDA, SLACK, WEBHOOK = "results", "lambda", "slack", "webhook"
MESSAGES = (SLACK, WEBHOOK)
PENDING, DONE, FAILED = "pending", "done", "failed"
PROGRESS, ENDED = "progress:", "ended:"


def plan_progress(connection: Connection, row: Any, now: float) -> None:
    """Write down the thresholds a run has passed; `row` is its row as it stands.

    At 100 % there is none: the run's ending is told instead. Neither while it is being stopped.
    """
    wishes: Json = row.notify or {}
    done, total = telling.progress(row)
    if not wishes or row.state != RunState.IN_PROGRESS or done >= total:
        return
    passed = [
        (kind, f"{PROGRESS}{percent}")
        for kind in MESSAGES
        for percent in (wishes.get(kind) or {}).get("intervals", ())
        if done * 100 >= percent * total
    ]
    _write_down(connection, row, passed, now)


def plan_progress_of(connection: Connection, run_ids: Collection[str], now: float) -> None:
    """`plan_progress` for each of these runs that wishes to tell anyone."""
    wishing = select(run).where(run.c.id.in_(list(run_ids)), run.c.notify.is_not(None))
    for row in connection.execute(wishing).all():
        plan_progress(connection, row, now)


def plan_ending(connection: Connection, row: Any, now: float) -> None:
    """Write down what an ending sets off; `row` is the run's row with its last state and `endings` counted.

    In the transaction that ends the run, so that no crash can come between.
    """
    wishes: Json = row.notify or {}
    kinds = [RESULTS] if (row.place or {}).get("artifacts") else []
    kinds += [kind for kind in (LAMBDA, *MESSAGES) if wishes.get(kind)]
    _write_down(connection, row, [(kind, f"{ENDED}{row.endings}") for kind in kinds], now)


def _write_down(connection: Connection, row: Any, wanted: Sequence[tuple[str, str]], now: float) -> None:
    if not wanted:
        return
    there = connection.execute(select(hook.c.kind, hook.c.trigger).where(hook.c.run_id == row.id)).all()
    known = {(one.kind, one.trigger) for one in there}
    new = [one for one in wanted if one not in known]
    if new:
        detail = telling.packed(telling.snapshot(row, now), None)
        created_at = clock.now(connection)
        rows = [
            {
                "run_id": row.id,
                "kind": kind,
                "trigger": trigger,
                "state": PENDING,
                "detail": detail,
                "created_at": created_at,
            }
            for kind, trigger in new
        ]
        # One statement: between several, a suspended executor would hold the run's lock.
        connection.execute(_insert_once(connection).values(rows))


def _insert_once(connection: Connection) -> Any:
    """An insert that leaves a row which someone else wrote at the same moment."""
    if connection.dialect.name == "postgresql":
        from sqlalchemy.dialects import postgresql

        return postgresql.insert(hook).on_conflict_do_nothing()
    if connection.dialect.name == "sqlite":
        from sqlalchemy.dialects import sqlite

        return sqlite.insert(hook).on_conflict_do_nothing()
    return insert(hook)


def supplied(connection: Connection, run_id: str) -> None:
    """What a run's messages need is there now: those that waited are due."""
    connection.execute(
        update(hook)
        .where(hook.c.run_id == run_id, hook.c.state == PENDING, hook.c.executor_id.is_(None))
        .values(not_before=None)
    )


def unfinished(connection: Connection, run_id: str) -> bool:
    """Whether something is still to be told of a run: what it was handed is needed until then."""
    found = select(hook.c.id).where(hook.c.run_id == run_id, hook.c.state == PENDING).limit(1)
    return connection.execute(found).scalar() is not None


def settled(connection: Connection, run_id: str) -> bool:
    """Whether a run has ended and nothing is left to tell of it."""
    state = connection.execute(select(run.c.state).where(run.c.id == run_id)).scalar()
    return state is not None and RunState(state).terminal and not unfinished(connection, run_id)


def of_run(connection: Connection, run_id: str) -> list[HookView]:
    """Everything told about a run, oldest first."""
    rows = connection.execute(select(hook).where(hook.c.run_id == run_id).order_by(hook.c.id)).all()
    return [
        HookView(
            kind=row.kind,
            trigger=row.trigger,
            state=row.state,
            detail=telling.unpacked(row.detail)[1] if row.state == PENDING else row.detail,
            attempts=row.attempts,
            created_at=row.created_at,
            finished_at=row.finished_at,
        )
        for row in rows
    ]
