"""Trials that a decision skips, and runs that keep step for it, on both databases."""

from __future__ import annotations

import time
import uuid

from sqlalchemy import select

from tests.stored_runs import add_executor, add_run, assert_counters_true, ended, tick
from valkyrie.domain import Category, Outcome, TrialState
from valkyrie.store import Store, jobs, runs
from valkyrie.store.journal import Finish, record
from valkyrie.store.schema import attempt, trial

RULE = {"error": 0.05, "margin": None, "comparisons": 1}


def add_job(store: Store, *, rule: object = RULE, concurrency: int = 3) -> str:
    values = {
        "id": str(uuid.uuid4()),
        "name": "job",
        "created_at": time.time(),
        "concurrency": concurrency,
        "about": {},
        "arguments": {},
        "stop_rule": rule,
    }
    with store.writing() as connection:
        jobs.create(connection, values)
    return str(values["id"])


def test_skipped_trials_count_in_nothing(store: Store) -> None:
    add_executor(store, "me")
    job_id = add_job(store, concurrency=4)
    run_id = add_run(store, 8, job_id=job_id, job_position=0, concurrency=4)
    first, second, third, fourth = tick(store, run_id).leased
    with store.writing() as connection:
        record(
            connection,
            [
                ended(first, score=1.0, passed=True, cost=0.5),
                ended(second, score=0.5, passed=False),
                Finish(
                    third,
                    TrialState.BUILDING,
                    TrialState.ERROR,
                    Outcome.FAILED,
                    time.time(),
                    category=Category.AGENT,
                    cause="agent_failed",
                ),
            ],
        )
    with store.writing() as connection:
        jobs.locked(connection, job_id)
        spared = jobs.skip_decided(connection, run_id, 1, "decided", time.time())
        jobs.store_decision(connection, job_id, {"pairs": [], "skipped": {}})
    assert (spared.not_run, spared.set_aside) == (4, 3)
    assert_counters_true(store, run_id)
    with store.reading() as connection:
        row = runs.get(connection, run_id)
        assert (row.n_finished, row.n_error, row.n_skipped, row.score_sum) == (1, 0, 7, 1.0)
        assert row.cost_sum == 0.5
        kept = connection.execute(
            select(trial.c.score, trial.c.cause).where(trial.c.state == "SKIPPED")
        ).all()
        assert set(kept) == {(None, jobs.DECIDED)}
        outcomes = connection.execute(select(attempt.c.outcome).where(attempt.c.trial_id == fourth.trial_id))
        assert outcomes.scalars().all() == [Outcome.STOPPED.value]
        assert jobs.get(connection, job_id).decision == {"pairs": [], "skipped": {}}
    with store.writing() as connection:
        assert runs.reopen(connection, run_id, errors_too=True) == 0  # nothing to go on with
        assert runs.conclude(connection, run_id, time.time(), final=None, graded=None, error=None)
        assert runs.get(connection, run_id).state == "FINISHED"


def test_runs_of_a_job_that_stops_when_decided_keep_step(store: Store) -> None:
    add_executor(store, "me")
    job_id = add_job(store, concurrency=3)
    quick, slow = (add_run(store, 20, job_id=job_id, job_position=place, concurrency=3) for place in range(2))
    found = tick(store, quick)  # the other one is not ready yet
    assert [one.task_id for one in found.leased] == ["t0", "t1", "t2"]
    assert found.ruled == [job_id]
    with store.writing() as connection:
        record(connection, [ended(one, score=1.0) for one in found.leased])
    assert tick(store, quick).leased == []  # three ahead of the slow one, which has not begun
    (one, *_) = tick(store, slow).leased
    with store.writing() as connection:
        record(connection, [ended(one, score=1.0)])
    assert [leased.task_id for leased in tick(store, quick).leased] == ["t3"]


def test_other_jobs_do_not_keep_step(store: Store) -> None:
    add_executor(store, "me")
    job_id = add_job(store, rule=None, concurrency=3)
    quick, _ = (add_run(store, 20, job_id=job_id, job_position=place, concurrency=3) for place in range(2))
    found = tick(store, quick)
    with store.writing() as connection:
        record(connection, [ended(one, score=1.0) for one in found.leased])
    assert len(tick(store, quick).leased) == 3
    assert tick(store, quick).ruled == []


def test_a_run_that_has_ended_waits_for_the_decision(store: Store) -> None:
    add_executor(store, "me")
    job_id = add_job(store, concurrency=4)
    quick, slow = (add_run(store, 2, job_id=job_id, job_position=place, concurrency=4) for place in range(2))
    found = tick(store, quick, slow).leased
    with store.writing() as connection:
        record(connection, [ended(one, score=1.0) for one in found if one.run_id == quick])
    assert tick(store, quick, slow).ended == []
    with store.writing() as connection:
        record(connection, [ended(one, score=1.0) for one in found if one.run_id == slow])
    assert sorted(tick(store, quick, slow).ended) == sorted([quick, slow])
