from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from valkyrie.benchmarks.task_dir.execution import parse_reward_json, parse_reward_txt, score_of
from valkyrie.errors import GraderError

numbers = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**6), 10**6)


@given(st.dictionaries(st.text(), numbers, min_size=1))
def test_flat_maps_of_numbers_are_taken_as_they_are(rewards: dict[str, float]) -> None:
    assert parse_reward_json(json.dumps(rewards).encode(), "r") == rewards


@given(numbers)
def test_one_number(number: float) -> None:
    assert parse_reward_txt(f" {number}\n".encode(), "r") == {"reward": float(number)}


@given(st.binary(max_size=30))
def test_anything_else_is_a_grader_error(content: bytes) -> None:
    for parse in (parse_reward_json, parse_reward_txt):
        try:
            assert all(isinstance(value, float) for value in parse(content, "r").values())
        except GraderError as error:
            assert error.cause == "grader_no_verdict"


@pytest.mark.parametrize(
    "text",
    [
        *("", "{}", "[]", "1", "null", "{", '{"a": true}', '{"a": null}', '{"a": "1"}', '{"a": {"b": 1}}'),
        *('{"a": [1]}', '{"a": NaN}', '{"a": Infinity}', '{"a": 1, "b": "x"}', '{"a": 1e999}', "[" * 100_000),
        '{"a": 1' + "0" * 400 + "}",
    ],
)
def test_bad_json(text: str) -> None:
    with pytest.raises(GraderError, match=r"/logs/verifier/reward\.json"):
        parse_reward_json(text.encode(), "/logs/verifier/reward.json")


@pytest.mark.parametrize(
    "text", ["", " \n", "nan", "inf", "-Infinity", "pass", "1 2", "1,0", "1_0", "0x1", "true", "１", "1e999"]
)
def test_bad_text(text: str) -> None:
    with pytest.raises(GraderError, match=r"/logs/verifier/reward\.txt"):
        parse_reward_txt(text.encode(), "/logs/verifier/reward.txt")


def test_scores() -> None:
    assert score_of({"reward": 0.25, "speed": 9.0}) == 0.25
    assert score_of({"correct": 1.0, "clean": 0.5}) == 0.75
