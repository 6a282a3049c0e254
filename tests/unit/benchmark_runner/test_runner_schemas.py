"""What a runner works on, and that a service's JSON comes through unchanged."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from benchmark_runner import (
    EvalResult,
    EvalResultData,
    EvalStatus,
    GenerationResult,
    GenerationStatus,
    ScoreResult,
    Task,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
KNOWN = st.sampled_from(
    ["pass_percentage", "weighted_pass_percentage", "pass_percentage_with_weight", "eval_version"]
)
RESULTS = JSON | st.dictionaries(KNOWN | TEXT, SCALARS, max_size=6)


def canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


@given(RESULTS)
@example({"weighted_pass_percentage": None, "pass_percentage_with_weight": 0})
@example({"pass_percentage": 2**60 + 1})
def test_a_services_result_is_kept_and_sent_on_as_it_came(result: Any) -> None:
    made = EvalResult(task_id="t", status=EvalStatus.EVALUATED, result=result)
    text = made.model_dump_json(indent=2)
    assert canonical(json.loads(text)["result"]) == canonical(result)
    again = EvalResult.model_validate_json(text)
    assert again.model_dump(mode="json") == made.model_dump(mode="json")
    assert canonical(again.model_dump(mode="json")["result"]) == canonical(result)


@given(JSON)
def test_an_answer_is_kept_under_both_names_and_read_under_either(data: Any) -> None:
    made = GenerationResult(task_id="t", status=GenerationStatus.SUCCESS, data=data)
    kept = json.loads(made.model_dump_json())
    assert canonical(kept["data"]) == canonical(kept["answer"]) == canonical(data)
    for gone in ("data", "answer"):
        less = {name: value for name, value in kept.items() if name != gone}
        assert GenerationResult.model_validate_json(json.dumps(less)) == made


def test_the_answer_has_two_names() -> None:
    made = GenerationResult(task_id="t", status=GenerationStatus.SUCCESS, answer="42")
    assert (made.data, made.answer) == ("42", "42")
    both = GenerationResult.model_validate({"task_id": "t", "status": "success", "data": "a", "answer": "b"})
    assert both.answer == "a"
    assert GenerationResult(task_id="t", status=GenerationStatus.ERROR).data == ""


@pytest.mark.parametrize("model", [GenerationResult, EvalResult])
def test_statuses_are_a_closed_set(model: type[Any]) -> None:
    with pytest.raises(ValidationError):
        model(task_id="t", status="done")
    assert set(GenerationStatus) == {"success", "max_time", "max_turns", "error"}
    assert set(EvalStatus) == {"evaluated", "did_not_complete", "generation_error", "error"}


def test_tasks_carry_fields_of_their_own() -> None:
    class Repair(Task):
        repo: str

    task = Repair.model_validate({"id": "t", "question": "?", "repo": "r", "hint": [1]})
    assert (task.repo, task.timeout, task.model_extra) == ("r", None, {"hint": [1]})
    with pytest.raises(ValidationError):
        Task.model_validate({"id": "t"})


def test_a_known_result_has_attributes() -> None:
    result = EvalResult.model_validate(
        {"task_id": "t", "status": "evaluated", "result": {"pass_percentage": 50, "x": [1]}}
    ).result
    assert isinstance(result, EvalResultData)
    assert (result.pass_percentage, result.eval_version, result.model_extra) == (50, None, {"x": [1]})


def test_the_older_name_of_the_weighted_percentage() -> None:
    result = EvalResultData.model_validate({"pass_percentage_with_weight": 12.5})
    assert result.weighted_pass_percentage == 12.5
    assert result.model_dump() == {"pass_percentage_with_weight": 12.5}
    both = EvalResultData.model_validate({"pass_percentage_with_weight": 1, "weighted_pass_percentage": 2})
    assert both.weighted_pass_percentage == 2


@pytest.mark.parametrize("result", ["fine", 3, [1, 2], None, {"pass_percentage": "all"}, {"eval_version": 2}])
def test_results_of_any_other_shape_are_taken(result: Any) -> None:
    assert EvalResult(task_id="t", status=EvalStatus.EVALUATED, result=result).result == result


@pytest.mark.parametrize(
    ("metadata", "kept"), [({"a": 1}, {"a": 1}), (None, {}), ([1], {"value": [1]}), ("x", {"value": "x"})]
)
def test_a_scores_metadata_is_an_object(metadata: Any, kept: dict[str, Any]) -> None:
    score = ScoreResult(tasks_evaluated=["t"], final_score=50, metadata=metadata)
    assert (score.metadata, score.complete) == (kept, False)
