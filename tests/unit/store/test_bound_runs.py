"""Runs that one executor keeps to itself, and tasks whose trials follow one another."""

from __future__ import annotations

import time

import pytest

from tests.stored_runs import ROOM, add_executor, run_values
from valkyrie.domain import Outcome, RunState, TrialState
from valkyrie.store import Store, executors, journal, leases, runs
from valkyrie.store.journal import Finish
from valkyrie.store.leases import Leased, Tick, TickResult

WORD = "eval-1"


def add(store: Store, *, tasks: int = 2, trials: int = 1, **more: object) -> str:
    values = run_values(**more)
    planned = [runs.NewTrial(f"t{n}", k, "d", None, None) for k in range(trials) for n in range(tasks)]
    with store.writing() as connection:
        runs.create(connection, values, planned)
    return str(values["id"])


def look(store: Store, run_id: str, *, bound: str | None = None, executor: str = "me") -> TickResult:
    with store.writing() as connection:
        return leases.lease(connection, Tick(executor, time.time(), ROOM, {}, {run_id}, bound))


def end(store: Store, leased: Leased) -> None:
    finish = Finish(leased, TrialState.BUILDING, TrialState.FINISHED, Outcome.GRADED, time.time())
    with store.writing() as connection:
        journal.record(connection, [finish])


def taken(found: TickResult) -> list[tuple[str, int]]:
    return sorted((one.task_id, one.k) for one in found.leased)


def test_only_who_says_the_word_sees_a_bound_run(store: Store) -> None:
    add_executor(store, "me")
    mine, free = add(store, bound=WORD), add(store)
    assert look(store, mine).leased == [] and mine not in look(store, mine).open_runs
    assert look(store, free, bound=WORD).leased == []
    assert taken(look(store, mine, bound=WORD)) == [("t0", 0), ("t1", 0)]
    assert taken(look(store, free)) == [("t0", 0), ("t1", 0)]


def test_a_bound_run_keeps_no_other_executor_awake(store: Store) -> None:
    bound = add(store, bound=WORD)
    with store.writing() as connection:
        assert not runs.any_ready(connection) and executors.bound_runs(connection) == {bound: False}
        runs.set_values(connection, bound, state="FINISHED")
        assert bound in executors.bound_runs(connection), "it may be opened again at any moment"
        runs.set_values(connection, bound, state="IN_PROGRESS")
        runs.set_values(connection, bound, bound=None)
        assert runs.any_ready(connection) and executors.bound_runs(connection) == {}


def test_whether_the_executor_of_a_bound_run_lives(store: Store) -> None:
    add_executor(store, "beside", home=WORD)
    add_executor(store, "gone", home="eval-2", expires_in=-1.0)
    living, lost = add(store, bound=WORD), add(store, bound="eval-2")
    with store.reading() as connection:
        assert executors.bound_runs(connection) == {living: True, lost: False}


def test_going_on_otherwise_sets_it_free(store: Store) -> None:
    bound = add(store, bound=WORD)
    with store.writing() as connection:
        runs.reopen(connection, bound, errors_too=True)
        assert runs.get(connection, bound).bound is None
        runs.reopen(connection, bound, errors_too=True, bound=WORD)
        assert runs.get(connection, bound).bound == WORD


@pytest.mark.parametrize("alive", [True, False])
def test_a_stop_waits_for_its_executor_only_while_that_lives(store: Store, alive: bool) -> None:
    if alive:
        add_executor(store, "beside", home=WORD)
    bound = add(store, bound=WORD)
    with store.writing() as connection:
        runs.stop(connection, bound, time.time(), force=True, task_ids=None)
        row = runs.get(connection, bound)
    assert row.state == RunState.STOPPING and row.bound == (WORD if alive else None)


def test_trials_of_a_task_follow_one_another(store: Store) -> None:
    add_executor(store, "me")
    run_id = add(store, tasks=2, trials=3, in_turn=True, concurrency=9)
    first = look(store, run_id)
    assert taken(first) == [("t0", 0), ("t1", 0)]
    assert look(store, run_id).leased == []
    end(store, next(one for one in first.leased if one.task_id == "t1"))
    assert taken(look(store, run_id)) == [("t1", 1)]


def test_otherwise_they_share_the_room(store: Store) -> None:
    add_executor(store, "me")
    run_id = add(store, tasks=2, trials=3, concurrency=9)
    assert len(look(store, run_id).leased) == 6
