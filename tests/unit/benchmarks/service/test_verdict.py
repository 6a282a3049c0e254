"""A service's result as a grade, and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from valkyrie.benchmarks.service.results import RESULT_LIMIT, grade_of, result_of
from valkyrie.errors import GraderError

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(json_values)
def test_the_service_gets_back_what_it_gave(result: object) -> None:
    assert result_of(grade_of(result)) == result


@given(json_values)
def test_a_look_alike_of_our_box_also_comes_back(inner: object) -> None:
    assert result_of(grade_of({"result": inner})) == {"result": inner}


@pytest.mark.parametrize(
    ("result", "passed", "score"),
    [
        ({"resolved": True}, True, 1.0),
        ({"resolved": False, "score": 0.4}, False, 0.4),
        ({"score": 0.4}, False, 0.4),
        ({"score": 1}, True, 1.0),
        ({"score": 73.5}, None, 73.5),
        ({"resolved": "yes"}, None, None),
        (True, True, 1.0),
        (0.25, False, 0.25),
        ("good", None, None),
        ({"criteria": [1, 2]}, None, None),
    ],
)
def test_what_a_result_says_plainly(result: object, passed: bool | None, score: float | None) -> None:
    grade = grade_of(result)
    assert (grade.passed, grade.score) == (passed, score)


@pytest.mark.parametrize("result", [{"x": float("nan")}, {"x": float("inf")}, {"x": {1, 2}}])
def test_what_is_not_json_is_no_verdict(result: object) -> None:
    with pytest.raises(GraderError, match="not JSON") as caught:
        grade_of(result)
    assert caught.value.cause == "service_protocol"


def test_a_huge_result_is_refused() -> None:
    with pytest.raises(GraderError, match="at most 16"):
        grade_of({"log": "x" * (RESULT_LIMIT + 1)})
