"""How often trials failed alike, over passes: with attempts leased and ended as an executor does it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from valkyrie.domain import Category, Outcome, TrialState
from valkyrie.store import Store, journal, leases, runs, trials
from valkyrie.store.journal import Finish
from valkyrie.store.leases import Room, Tick


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path / "v.db")
    yield opened
    opened.close()


def add_run(store: Store, tasks: list[str]) -> str:
    run_id = str(uuid.uuid4())
    values = {
        "id": run_id, "agent": "a", "benchmark": "b", "dataset": "default", "provider": "null",
        "concurrency": 10, "fraction": True, "created_at": time.time(), "arguments": {}, "agent_frozen": {},
        "benchmark_source": {}, "enforcement": {},
    }  # fmt: skip
    with store.writing() as connection:
        runs.create(connection, values, [runs.NewTrial(task, 0, "d", None, None) for task in tasks])
    return run_id


def one_pass(store: Store, run_id: str, causes: dict[str, str | None]) -> None:
    """Every pending trial gets one attempt; those with a cause fail with it for good."""
    now = time.time()
    with store.writing() as connection:
        tick = Tick("me", now, Room(1e9, 1e9, idle=False), {}, {run_id})
        for leased in leases.lease(connection, tick).leased:
            cause = causes[leased.task_id]
            ending = (
                Finish(
                    leased, TrialState.BUILDING, TrialState.ERROR, Outcome.FAILED, now,
                    category=Category.INFRASTRUCTURE, cause=cause, message="no room",
                )
                if cause
                else Finish(leased, TrialState.BUILDING, TrialState.FINISHED, Outcome.GRADED, now, score=1.0)
            )  # fmt: skip
            journal.record(connection, [ending])


def retry(store: Store, run_id: str) -> None:
    with store.writing() as connection:
        runs.reopen(connection, run_id, errors_too=True)


def test_passes_are_counted_only_where_a_trial_fails_alike_now(store: Store) -> None:
    run_id = add_run(store, ["always", "other", "healed", "good"])
    other = add_run(store, ["always"])
    one_pass(store, other, {"always": "sandbox_failed"})
    for causes in (
        {"always": "sandbox_failed", "other": "sandbox_failed", "healed": "sandbox_failed", "good": None},
        {"always": "sandbox_failed", "other": "sandbox_timeout", "healed": None},
    ):
        one_pass(store, run_id, causes)
        retry(store, run_id)
    with store.reading() as connection:
        assert trials.passes_failed(connection, run_id) == {}, "all were reopened: none fails now"
    one_pass(store, run_id, {"always": "sandbox_failed", "other": "sandbox_timeout"})
    with store.reading() as connection:
        assert trials.passes_failed(connection, run_id) == {("always", 0): 3, ("other", 0): 2}
        assert trials.passes_failed(connection, other) == {("always", 0): 1}
