"""What people and programs write comes back, and does so alike on both databases."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.stored_runs import add_run, ended, tick
from valkyrie.domain import Category, TrialState
from valkyrie.errors import UsageError
from valkyrie.store import Store, journal, runs, trials

ODD = "ä 漢字 🦊 \u202e ' \" \\ % _ \x07"


DOCUMENTS: list[dict[str, Any]] = [
    {"nul": "a\0b", "key\0": 1},
    {"half": "\ud83e", "whole": "🦊", "text": ODD},
    {"big": 2**70, "small": -(2**63) - 1, "exact": 0.1, "tiny": 5e-324, "huge": 1.7976931348623157e308},
    {"deep": [[[[{"x": [None, True, False, {}]}]]]]},
    {},
]


def test_a_result_is_kept_whole(store: Store) -> None:
    run_id = add_run(store, tasks=len(DOCUMENTS), concurrency=len(DOCUMENTS))
    leased = tick(store, run_id).leased
    with store.writing() as connection:
        changes = [ended(one, score=0.1, result=kept) for one, kept in zip(leased, DOCUMENTS, strict=True)]
        journal.record(connection, changes)
    with store.reading() as connection:
        assert [one.result for one in trials.each_result(connection, run_id)] == DOCUMENTS
        for number, document in enumerate(DOCUMENTS):
            row = trials.one_trial(connection, run_id, f"t{number}", 0)
            assert (row.result, row.score) == (document, 0.1)
            assert trials.attempts(connection, row.id)[0].result == document


def test_what_is_no_number_becomes_none_in_a_result(store: Store) -> None:
    run_id = add_run(store, tasks=1)
    (leased,) = tick(store, run_id).leased
    odd = {"a": math.nan, "b": [math.inf, (-math.inf, 1.0)], "c": {"d": math.nan}}
    with store.writing() as connection:
        journal.record(connection, [ended(leased, score=1.0, result=odd)])
    with store.reading() as connection:
        kept = trials.one_trial(connection, run_id, "t0", 0).result
    assert kept == {"a": None, "b": [None, [None, 1.0]], "c": {"d": None}}


def test_text_is_kept_as_far_as_it_is_text(store: Store) -> None:
    run_id = add_run(store, tasks=1, label=ODD, started_by="a\0b", agent="half \ud83e")
    (leased,) = tick(store, run_id).leased
    ending = ended(leased, TrialState.ERROR, category=Category.AGENT, cause="c\0", message="x\0y\ud800z")
    with store.writing() as connection:
        journal.record(connection, [ending])
        runs.set_values(connection, run_id, note="n\0", error=ODD)
    with store.reading() as connection:
        row = runs.get(connection, run_id)
        trial = trials.one_trial(connection, run_id, "t0", 0)
    assert (row.label, row.started_by, row.agent) == (ODD, "a\ufffdb", "half ?")
    assert (row.note, row.error) == ("n\ufffd", ODD)
    assert (trial.message, trial.cause) == ("x\ufffdy?z", "c\ufffd")


def test_text_that_cannot_be_there_is_looked_for_in_vain(store: Store) -> None:
    run_id = add_run(store, tasks=1, started_by="a\0b")
    with store.reading() as connection:
        for odd in ("\0", "\ud800", ODD):
            query = runs.RunQuery({"org_id": "default", "label": odd}, started_by=[odd, "x"])
            assert runs.page(connection, query) == ([], 0, None)
            assert trials.trials(connection, run_id, trials.TrialQuery(search=odd)) == ([], 0)
            with pytest.raises(UsageError):
                trials.one_trial(connection, run_id, odd, 10**15)
        found, total, _ = runs.page(connection, runs.RunQuery({}, started_by=["a\0b"]))
        assert (found[0].id, total) == (run_id, 1)
        assert trials.trials(connection, run_id, trials.TrialQuery(offset=10**20, limit=10**20)) == ([], 1)


def test_a_number_too_large_is_the_callers_mistake(store: Store) -> None:
    with pytest.raises(UsageError, match="more than the store can keep"):
        add_run(store, concurrency=2**70)


def test_a_wrong_search_finds_only_what_it_says(store: Store) -> None:
    run_id = add_run(store, tasks=3)
    with store.reading() as connection:
        assert trials.trials(connection, run_id, trials.TrialQuery(search="%"))[1] == 0
        assert trials.trials(connection, run_id, trials.TrialQuery(search="t_"))[1] == 0
        assert trials.trials(connection, run_id, trials.TrialQuery(search="t1"))[1] == 1


def test_scores_that_are_no_numbers_are_none(store: Store) -> None:
    run_id = add_run(store, tasks=1)
    (leased,) = tick(store, run_id).leased
    with store.writing() as connection:
        journal.record(connection, [ended(leased, score=1.0)])
        final = {"final_score": math.nan, "properties": {"x": math.inf}}
        runs.conclude(connection, run_id, 1.0, final=final, graded=math.inf, error=None)
    with store.reading() as connection:
        row = runs.get(connection, run_id)
    assert (row.final_score, row.score_graded) == (None, None)
    assert row.final_evaluation == {"final_score": None, "properties": {"x": None}}
