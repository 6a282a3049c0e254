"""Gradings of a run: history kept, one in use, counters and final score always of that one."""

from __future__ import annotations

import time
from typing import Any

import pytest
from sqlalchemy import select

from tests.stored_runs import add_executor, add_run, assert_counters_true, ended, tick
from valkyrie.domain import Category, Outcome, RunState, TrialState
from valkyrie.errors import UnknownError, UserError
from valkyrie.store import Store, executors, journal, regrades, runs, trials
from valkyrie.store.journal import Finish
from valkyrie.store.leases import Leased
from valkyrie.store.regrades import Regraded
from valkyrie.store.schema import attempt, trial
from valkyrie.store.upkeep import LOOKS

PASSED = {"score": 1.0, "passed": True, "confirmed": True, "score_confirmed": 1.0, "result": {"reward": 1}}
FAILED = {"score": 0.0, "passed": False, "confirmed": True, "score_confirmed": 0.0, "result": {"reward": 0}}


def graded_run(store: Store, *grades: dict[str, Any] | None, **more: Any) -> str:
    """A run whose trials were graded so, in ERROR where nothing is given; concluded."""
    run_id = add_run(store, tasks=len(grades), concurrency=len(grades), **more)
    found = tick(store, run_id).leased
    with store.writing() as connection:
        for one, grade in zip(found, grades, strict=True):
            journal.record(connection, [broken(one) if grade is None else ended(one, **grade)])
    conclude(store, run_id)
    return run_id


def broken(leased: Leased, category: Category = Category.BENCHMARK) -> Finish:
    return Finish(
        leased,
        TrialState.BUILDING,
        TrialState.ERROR,
        Outcome.FAILED,
        time.time(),
        category=category,
        cause="grader_no_verdict",
        message="no reward",
    )


def conclude(store: Store, run_id: str) -> None:
    """As an executor does: settle, score, write."""
    with store.writing() as connection:
        regrades.settle(connection, run_id)
    with store.writing() as connection:
        row = runs.get(connection, run_id)
        score = row.score_sum / sum(1 for _ in trials.each_grade(connection, run_id))
        final = {"final_score": score, "properties": {}}
        assert runs.conclude(connection, run_id, time.time(), final=final, graded=score, error=None)
        regrades.finish(connection, run_id, time.time())


def begin(store: Store, run_id: str, *tasks: str, number: int = 1, **arguments: Any) -> None:
    with store.writing() as connection:
        chosen = [
            Regraded(one.id, {"attempt": one.number, "work": True, "regrade": number})
            for one in regrades.decided(connection, run_id)
            if not tasks or one.task_id in tasks
        ]
        told = {"trials": len(chosen), **arguments}
        regrades.begin(connection, run_id, number, chosen, arguments=told, started_by="me", now=time.time())


def grade(store: Store, run_id: str, **grades: dict[str, Any] | None) -> None:
    """Lease what is pending, and end it so by task."""
    found = tick(store, run_id).leased
    assert {one.task_id for one in found} == set(grades)
    with store.writing() as connection:
        for one in found:
            wanted = grades[one.task_id]
            end = broken(one, Category.INFRASTRUCTURE) if wanted is None else ended(one, **wanted)
            journal.record(connection, [end])


def state(store: Store, run_id: str) -> tuple[str, int, float | None, dict[str, Any]]:
    """The run's state, the grading in use, its final score, and each trial's state and score."""
    assert_counters_true(store, run_id)
    with store.reading() as connection:
        assert [text for look in LOOKS for text in look(connection)] == []
        row = runs.get(connection, run_id)
        trials = connection.execute(select(trial).where(trial.c.run_id == run_id)).all()
    return row.state, row.grading, row.final_score, {one.task_id: (one.state, one.score) for one in trials}


def use(store: Store, run_id: str, number: int) -> None:
    with store.writing() as connection:
        regrades.use(connection, run_id, number, time.time())


def test_a_regrade_becomes_the_runs_own_and_can_be_switched_back(store: Store) -> None:
    run_id = graded_run(store, PASSED, PASSED, FAILED)
    before = state(store, run_id)
    begin(store, run_id, tests="new")
    assert state(store, run_id)[0] == "IN_PROGRESS"
    grade(store, run_id, t0=PASSED, t1=FAILED, t2={**PASSED, "score": 0.5, "passed": False})
    conclude(store, run_id)
    after = state(store, run_id)
    assert after[:3] == ("FINISHED", 1, 0.5)
    use(store, run_id, 0)
    assert state(store, run_id) == before == ("FINISHED", 0, pytest.approx(2 / 3), before[3])
    use(store, run_id, 1)
    assert state(store, run_id) == after
    with store.reading() as connection:
        rows = connection.execute(select(attempt.c.grading, attempt.c.outcome)).all()
        first, second = regrades.gradings(connection, run_id)
    assert sorted(row.grading for row in rows) == [0, 0, 0, 1, 1, 1]
    assert (first.number, first.final_score, second.number, second.final_score) == (
        0,
        pytest.approx(2 / 3),
        1,
        0.5,
    )
    assert second.arguments == {"tests": "new", "trials": 3, "base": 0}


def test_what_cannot_be_graded_again_keeps_its_verdict(store: Store) -> None:
    run_id = graded_run(store, PASSED, FAILED, None)
    begin(store, run_id)
    grade(store, run_id, t0=None, t1=PASSED, t2=None)
    conclude(store, run_id)
    found = state(store, run_id)
    assert found[1:3] == (1, pytest.approx(2 / 3))
    assert found[3] == {"t0": ("FINISHED", 1.0), "t1": ("FINISHED", 1.0), "t2": ("ERROR", None)}
    with store.reading() as connection:
        row = connection.execute(select(trial).where(trial.c.task_id == "t2")).one()
        kept = {one.task_id: one.attempt for one in regrades.verdicts(connection, run_id, 1)}
    assert (row.category, row.cause) == ("benchmark", "grader_no_verdict")
    assert kept == {"t0": 1, "t1": 2, "t2": 1}


def test_a_regrade_of_some_tasks_stands_on_the_one_before(store: Store) -> None:
    run_id = graded_run(store, FAILED, FAILED, FAILED)
    begin(store, run_id, "t0")
    grade(store, run_id, t0=PASSED)
    conclude(store, run_id)
    begin(store, run_id, "t1", number=2)
    grade(store, run_id, t1=PASSED)
    conclude(store, run_id)
    assert state(store, run_id)[:3] == ("FINISHED", 2, pytest.approx(2 / 3))
    use(store, run_id, 0)
    begin(store, run_id, "t2", number=3)
    grade(store, run_id, t2=PASSED)
    conclude(store, run_id)
    assert state(store, run_id)[3] == {
        "t0": ("FINISHED", 0.0),
        "t1": ("FINISHED", 0.0),
        "t2": ("FINISHED", 1.0),
    }
    use(store, run_id, 2)
    assert state(store, run_id)[1:3] == (2, pytest.approx(2 / 3))


def test_an_executor_that_dies_leaves_the_regrade_to_the_next(store: Store) -> None:
    run_id = graded_run(store, PASSED, FAILED)
    begin(store, run_id)
    add_executor(store, "dead", home="this home")
    assert len(tick(store, run_id, executor="dead").leased) == 2
    with store.writing() as connection:
        assert executors.recover(connection, "me", home="this home") == 2
        assert runs.reopen(connection, run_id, errors_too=True) == 0  # as `resume` and `retry` do
    found = tick(store, run_id).leased
    assert [(one.number, one.grading) for one in found] == [(3, 1), (3, 1)]
    with store.writing() as connection:
        journal.record(connection, [ended(one, **PASSED) for one in found])
    conclude(store, run_id)
    assert state(store, run_id)[:3] == ("FINISHED", 1, 1.0)


def test_a_regrade_that_is_stopped_keeps_what_it_has(store: Store) -> None:
    run_id = graded_run(store, PASSED, PASSED)
    begin(store, run_id)
    with store.writing() as connection:
        runs.set_values(connection, run_id, concurrency=1)
    grade(store, run_id, t0=FAILED)
    with store.writing() as connection:
        runs.stop(connection, run_id, time.time(), force=False, task_ids=None)
    conclude(store, run_id)
    found = state(store, run_id)
    assert found[:3] == ("FINISHED", 1, 0.5)
    assert found[3] == {"t0": ("FINISHED", 0.0), "t1": ("FINISHED", 1.0)}


def test_neither_cost_nor_a_jobs_time_end_it(store: Store) -> None:
    run_id = graded_run(store, {**PASSED, "cost": 3.0}, max_cost=1.0)
    begin(store, run_id)
    grade(store, run_id, t0=FAILED)
    conclude(store, run_id)
    assert state(store, run_id)[:3] == ("FINISHED", 1, 0.0)


def test_trials_that_were_stopped_before_are_not_run_by_a_resume(store: Store) -> None:
    run_id = add_run(store, tasks=2, concurrency=1)
    grade(store, run_id, t0=PASSED)
    with store.writing() as connection:
        runs.stop(connection, run_id, time.time(), force=False, task_ids=None)
    conclude(store, run_id)
    begin(store, run_id, "t0")
    with store.writing() as connection:
        assert runs.reopen(connection, run_id, errors_too=True) == 0
    grade(store, run_id, t0=FAILED)
    conclude(store, run_id)
    assert state(store, run_id)[0] == RunState.STOPPED
    with store.writing() as connection, pytest.raises(UserError, match="--use 0"):
        runs.reopen(connection, run_id, errors_too=False)


def test_agents_that_run_again_make_later_gradings_outdated(store: Store) -> None:
    run_id = graded_run(store, FAILED, None)
    begin(store, run_id, "t0")
    grade(store, run_id, t0=PASSED)
    conclude(store, run_id)
    use(store, run_id, 0)
    with store.writing() as connection:
        assert runs.reopen(connection, run_id, errors_too=True) == 1
    grade(store, run_id, t1=PASSED)
    conclude(store, run_id)
    assert state(store, run_id)[:3] == ("FINISHED", 0, 0.5)
    with store.writing() as connection, pytest.raises(UserError, match="Agents ran again"):
        regrades.use(connection, run_id, 1, time.time())


def test_one_that_cannot_go_on_is_dropped(store: Store) -> None:
    run_id = graded_run(store, PASSED)
    before = state(store, run_id)
    begin(store, run_id)
    with store.writing() as connection:
        runs.set_values(connection, run_id, state=RunState.ERROR.value, error="its tests are gone")
    with store.writing() as connection, pytest.raises(UserError, match="drops it"):
        regrades.begin(connection, run_id, 2, [], arguments={}, started_by=None, now=time.time())
    use(store, run_id, 0)
    assert state(store, run_id) == before
    with store.writing() as connection, pytest.raises(UserError, match="was dropped"):
        regrades.use(connection, run_id, 1, time.time())


def test_what_is_not_there_is_refused(store: Store) -> None:
    run_id = graded_run(store, PASSED)
    with store.writing() as connection, pytest.raises(UnknownError, match="no grading 7"):
        regrades.use(connection, run_id, 7, time.time())
    begin(store, run_id)
    with store.writing() as connection, pytest.raises(UserError, match="IN_PROGRESS"):
        regrades.use(connection, run_id, 0, time.time())
    with store.writing() as connection, pytest.raises(UserError, match="IN_PROGRESS"):
        regrades.begin(connection, run_id, 2, [], arguments={}, started_by=None, now=time.time())


def test_attempts_of_older_stores_say_whether_they_passed(store: Store) -> None:
    run_id = graded_run(store, PASSED)
    with store.writing() as connection:
        connection.execute(attempt.update().values(passed=None))
    begin(store, run_id)
    grade(store, run_id, t0=FAILED)
    conclude(store, run_id)
    use(store, run_id, 0)
    with store.reading() as connection:
        assert connection.execute(select(trial.c.passed)).scalar() is True
