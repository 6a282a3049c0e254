"""Scores that a fresh sandbox confirmed: counted, checked, written at the end, and never invented."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.stored_runs import add_run, assert_counters_true, ended, run_values, tick
from valkyrie.domain import Category, Outcome, TrialState
from valkyrie.store import Store, ingested_runs, journal, runs, trials
from valkyrie.store.counters import RunScores, add_grade, run_scores
from valkyrie.store.journal import Finish
from valkyrie.store.leases import Leased
from valkyrie.store.notifications import snapshot
from valkyrie.store.upkeep import wrong_counters

SHARED = {"mode": "shared", "open_to_tampering": True}
CONFIRMED = {"score": 1.0, "passed": True, "confirmed": True, "score_confirmed": 1.0}
UNCONFIRMED = {"score": 1.0, "passed": True, "confirmed": False, "score_confirmed": 0.25, "evidence": SHARED}
FAILED = {"score": 0.0, "passed": False, "confirmed": True, "score_confirmed": 0.0}


def graded(store: Store, *grades: dict[str, Any], tasks: int | None = None, **more: Any) -> str:
    run_id = add_run(store, tasks=tasks or len(grades), concurrency=max(1, len(grades)), **more)
    leased = tick(store, run_id).leased
    with store.writing() as connection:
        journal.record(connection, [ended(one, **grade) for one, grade in zip(leased, grades, strict=True)])
    return run_id


def scores(store: Store, run_id: str) -> RunScores:
    with store.reading() as connection:
        assert list(wrong_counters(connection)) == []
        return run_scores(runs.get(connection, run_id))


def failed(leased: Leased, category: Category) -> Finish:
    return Finish(
        leased,
        TrialState.BUILDING,
        TrialState.ERROR,
        Outcome.FAILED,
        time.time(),
        category=category,
        cause=category.value,
        message="x",
    )


def test_a_run_counts_what_fresh_sandboxes_saw(store: Store) -> None:
    found = scores(store, graded(store, CONFIRMED, UNCONFIRMED, FAILED, tasks=4))
    assert (found.confirmed, found.unconfirmed, found.open_to_tampering) == (1, 1, 1)
    assert found.score_graded == pytest.approx(2 / 3)
    assert found.score_confirmed == pytest.approx(1.25 / 3)
    assert (found.graded, found.ungraded) == (3, 1)
    assert (found.score_low, found.score_high) == (pytest.approx(2 / 4), pytest.approx(3 / 4))


@pytest.mark.parametrize(
    ("grade", "unconfirmed", "score"),
    [({"score": 1.0, "passed": True}, None, None), ({"score": 0.0, "passed": False}, 0, 0.5)],
)
def test_what_nobody_looked_at_is_not_known_but_a_zero_needs_no_look(
    store: Store, grade: dict[str, Any], unconfirmed: int | None, score: float | None
) -> None:
    found = scores(store, graded(store, CONFIRMED, grade))
    assert (found.unconfirmed, found.score_confirmed) == (unconfirmed, score)


def test_what_ended_by_the_agents_doing_counts_as_zero(store: Store) -> None:
    run_id = add_run(store, tasks=4, concurrency=4)
    one, two, three, _ = tick(store, run_id).leased
    with store.writing() as connection:
        journal.record(
            connection,
            [ended(one, **CONFIRMED), failed(two, Category.AGENT), failed(three, Category.BENCHMARK)],
        )
        assert trials.scores(connection, run_id) == {"t0": [1.0], "t1": [0.0], "t2": [None], "t3": [None]}
    found = scores(store, run_id)
    assert (found.graded, found.zeroed, found.ungraded, found.coverage) == (1, 1, 2, 0.5)
    assert (found.score_graded, found.score_confirmed) == (0.5, 0.5)
    assert (found.score_low, found.score_high) == (0.25, 0.75)


def test_the_end_of_a_run_writes_it_and_others_are_told(store: Store) -> None:
    run_id = graded(store, CONFIRMED, UNCONFIRMED)
    final = {"final_score": 1.0, "properties": {}, "score_low": 0.9, "score_high": 1.0}
    with store.writing() as connection:
        runs.conclude(connection, run_id, 5.0, final=final, graded=1.0, error=None, confirmed=0.625)
    with store.reading() as connection:
        row = runs.get(connection, run_id)
        assert row.score_confirmed == 0.625
        told = snapshot(row, 6.0)["score"]
    assert (told["score_confirmed"], told["confirmed"], told["unconfirmed"]) == (0.625, 1, 1)
    assert (told["ungraded"], told["open_to_tampering"]) == (0, 1)
    # Nothing is ungraded, so that there is no range but the score itself.
    assert (told["score_low"], told["score_high"]) == (1.0, 1.0)


def test_the_range_an_ended_run_has_is_its_benchmarks(store: Store) -> None:
    run_id = add_run(store, tasks=2, concurrency=2)
    one, two = tick(store, run_id).leased
    final = {"final_score": 0.4, "properties": {}, "score_low": 0.4, "score_high": 0.6}
    with store.writing() as connection:
        journal.record(connection, [ended(one, **CONFIRMED), failed(two, Category.INFRASTRUCTURE)])
        runs.conclude(connection, run_id, 5.0, final=final, graded=1.0, error=None)
    found = scores(store, run_id)
    assert (found.score_low, found.score_high, found.score_graded) == (0.4, 0.6, 1.0)


def test_a_scale_of_its_own_has_no_range(store: Store) -> None:
    found = scores(store, graded(store, {"score": 17.0}, tasks=2, fraction=False))
    assert (found.score_low, found.score_high, found.score_confirmed) == (None, None, None)


def test_a_grade_taken_out_leaves_no_trace(store: Store) -> None:
    run_id = graded(store, CONFIRMED, UNCONFIRMED)
    counters = dict.fromkeys(
        ("n_passed", "n_partial", "score_sum", "n_confirmed", "confirmed_sum", "n_verified", "n_open"), 0.0
    )
    with store.reading() as connection:
        for row in trials.each_result(connection, run_id):
            add_grade(counters, row, -1)
        kept = runs.get(connection, run_id)
    assert counters == {name: -getattr(kept, name) for name in counters}
    assert counters["n_open"] == -1 and counters["confirmed_sum"] == -1.25


def test_a_retry_lets_go_of_the_evidence_of_the_failure(store: Store) -> None:
    run_id = add_run(store, tasks=1)
    (leased,) = tick(store, run_id).leased
    with store.writing() as connection:
        ending = failed(leased, Category.BENCHMARK)
        journal.record(connection, [ending])
        runs.conclude(connection, run_id, 5.0, final=None, graded=None, error=None)
        runs.reopen(connection, run_id, errors_too=True)
        assert trials.one_trial(connection, run_id, "t0", 0).evidence is None
    assert_counters_true(store)


def test_the_audit_finds_wrong_counters(store: Store) -> None:
    run_id = graded(store, CONFIRMED, UNCONFIRMED)
    with store.writing() as connection:
        runs.set_values(connection, run_id, n_confirmed=2, confirmed_sum=2.0, n_verified=1, n_open=0)
        said = "\n".join(wrong_counters(connection))
    for name in ("n_confirmed", "confirmed_sum", "n_verified", "n_open"):
        assert f"{name} is" in said


def test_an_ingested_run_says_what_its_source_says(store: Store) -> None:
    silent = run_values()
    loud = run_values()
    ended = [
        ingested_runs.EndedTrial("a", 0, "d", 1.0, 2.0, score=1.0, passed=True),
        ingested_runs.EndedTrial("b", 0, "d", 1.0, 2.0, score=0.0, passed=False),
    ]
    with store.writing() as connection:
        ingested_runs.store_ended(connection, {**silent, "org_id": "default", "label": None}, ended)
        sure = [ingested_runs.EndedTrial("a", 0, "d", 1.0, 2.0, **UNCONFIRMED)]
        ingested_runs.store_ended(connection, {**loud, "org_id": "default", "label": None}, sure)
    assert scores(store, silent["id"]).unconfirmed is None
    found = scores(store, loud["id"])
    assert (found.confirmed, found.unconfirmed, found.open_to_tampering) == (0, 1, 1)
    with store.reading() as connection:
        row = trials.one_trial(connection, loud["id"], "a", 0)
        assert (row.confirmed, row.score_confirmed, row.evidence) == (False, 0.25, SHARED)
        kept = trials.attempts(connection, row.id)[0]
        assert (kept.passed, kept.confirmed, kept.evidence) == (True, False, SHARED)


def test_zeros_of_the_agents_doing_are_listed_with_their_cause(store: Store) -> None:
    zero = {"score": 0.0, "passed": False, "category": Category.AGENT, "message": "m"}
    run_id = graded(
        store,
        {**zero, "cause": "sandbox_killed_by_agent"},
        {**zero, "cause": "agent_gave_up"},
    )
    with store.reading() as connection:
        assert [row.cause for row in trials.errors(connection, run_id)] == ["sandbox_killed_by_agent"]
