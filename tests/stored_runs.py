"""What tests of the store do again and again: make runs, lease, end attempts, and check the books."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from typing import Any

import pytest
from sqlalchemy import select

from valkyrie.domain import Category, Outcome, TrialState
from valkyrie.store import Store, executors, leases, runs
from valkyrie.store.journal import Finish
from valkyrie.store.leases import Leased, Room, Tick, TickResult
from valkyrie.store.schema import ERROR_COUNTERS, STATE_COUNTERS, attempt, run, trial

ROOM = Room(1e9, 1e9, idle=False)


def run_values(**more: Any) -> dict[str, Any]:
    return {
        "id": str(uuid.uuid4()),
        "agent": "a",
        "benchmark": "b",
        "dataset": "default",
        "provider": "null",
        "concurrency": 4,
        "fraction": True,
        "created_at": time.time(),
        "arguments": {},
        "agent_frozen": {},
        "benchmark_source": {},
        "enforcement": {},
        **more,
    }


def add_run(store: Store, tasks: int = 10, cpus: float | None = None, **more: Any) -> str:
    """A run of so many tasks; `more` are columns of its own."""
    values = run_values(**more)
    with store.writing() as connection:
        runs.create(connection, values, [runs.NewTrial(f"t{n}", 0, "d", cpus, None) for n in range(tasks)])
    return str(values["id"])


def add_executor(store: Store, name: str, *, expires_in: float = 30.0, home: str = "") -> str:
    now = time.time()
    values = {
        "id": name,
        "host": "h",
        "pid": 1,
        "version": "1",
        "started_at": now,
        "heartbeat_at": now,
        "expires_at": now + expires_in,
        "home": home or f"home of {name}",
    }
    with store.writing() as connection:
        executors.register_executor(connection, values)
    return name


def tick(
    store: Store, *ready: str, room: Room = ROOM, executor: str = "me", now: float | None = None
) -> TickResult:
    with store.writing() as connection:
        return leases.lease(connection, Tick(executor, now or time.time(), room, {}, set(ready)))


def ended(leased: Leased, after: TrialState = TrialState.FINISHED, **more: Any) -> Finish:
    """How an attempt ends that got no further than building."""
    return Finish(leased, TrialState.BUILDING, after, Outcome.GRADED, time.time(), **more)


def assert_counters_true(store: Store, *run_ids: str) -> None:
    """Each run's counters equal what is counted over its trials and attempts."""
    with store.reading() as connection:
        wanted = select(run).where(run.c.id.in_(run_ids)) if run_ids else select(run)
        for row in connection.execute(wanted).all():
            trials = connection.execute(select(trial).where(trial.c.run_id == row.id)).all()
            states = Counter(one.state for one in trials)
            assert {s.value: getattr(row, c) for s, c in STATE_COUNTERS.items()} == {
                s.value: states[s] for s in TrialState
            }
            errors = Counter(one.category for one in trials if one.state == TrialState.ERROR)
            assert {c.value: getattr(row, n) for c, n in ERROR_COUNTERS.items()} == {
                c.value: errors[c.value] for c in Category
            }
            graded = [one for one in trials if one.state == TrialState.FINISHED]
            assert row.n_passed == sum(bool(one.passed) for one in graded)
            assert row.n_confirmed == sum(bool(one.passed and one.confirmed) for one in graded)
            assert row.confirmed_sum == pytest.approx(sum(one.score_confirmed or 0 for one in graded))
            assert row.score_sum == pytest.approx(sum(one.score or 0 for one in graded))
            assert row.cost_sum == pytest.approx(sum(one.cost or 0 for one in trials))
            costed = (
                select(attempt.c.cost)
                .join(trial, trial.c.id == attempt.c.trial_id)
                .where(trial.c.run_id == row.id, attempt.c.cost.is_not(None))
            )
            assert row.n_costed == len(connection.execute(costed).all())
            assert all((one.executor_id is not None) == TrialState(one.state).active for one in trials)
            assert all(one.version <= row.version for one in trials)
