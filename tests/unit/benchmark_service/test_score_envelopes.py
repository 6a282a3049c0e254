"""Envelopes are opened, everything else is left alone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmark_service.responses import ServiceFault
from benchmark_service.routes import checked_score, unwrap, unwrap_results
from benchmark_service.schemas import FinalScoreResult


def envelope(status: str, result: Any = None, error: Any = None) -> dict[str, Any]:
    return {"task_id": "t", "status": status, "result": result, "error": error}


@pytest.mark.parametrize(
    ("given", "raw"),
    [
        (envelope("evaluated", {"resolved": True}), {"resolved": True}),
        (envelope("evaluated", 0.5), 0.5),
        (envelope("error", {"resolved": True}, "boom"), None),
        (envelope("did_not_complete"), None),
        (envelope("generation_error"), None),
        ({"task_id": "t", "status": "evaluated", "result": 1}, 1),
        (None, None),
    ],
)
def test_envelopes(given: Any, raw: Any) -> None:
    assert unwrap(given) == raw


@pytest.mark.parametrize(
    "result",
    [
        {"status": "evaluated", "resolved": True},
        {"status": "error"},
        {"task_id": "t", "status": "evaluated"},
        {**envelope("passed", 1)},
        {**envelope("evaluated", 1), "resolved": True},
        {"task_id": "t", "result": 1, "error": None},
        {"task_id": "t", "status": ["evaluated"], "result": 1},
        ["task_id", "status", "result"],
        True,
    ],
)
def test_a_result_that_only_looks_like_one_is_kept(result: Any) -> None:
    assert unwrap(result) is result


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.text(max_size=5), json_values, max_size=5))
def test_wrapping_what_was_evaluated_changes_nothing(results: dict[str, Any]) -> None:
    wrapped = {
        key: {"task_id": key, "status": "evaluated", "result": value, "error": None}
        for key, value in results.items()
    }
    assert unwrap_results(wrapped) == results


def test_scores_are_checked() -> None:
    result = FinalScoreResult(score=1.5)
    assert checked_score(result) is result
    assert checked_score({"score": 3, "metadata": {"n": 1}}).metadata == {"n": 1}
    for bad in (float("nan"), float("inf")):
        with pytest.raises(ServiceFault, match="not a number"):
            checked_score(FinalScoreResult(score=bad))
    with pytest.raises(ServiceFault, match="must return a FinalScoreResult, not float"):
        checked_score(0.5)
