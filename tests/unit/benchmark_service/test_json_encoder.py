"""What services return, as strict JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from pathlib import PurePosixPath
from typing import Any

import pytest
from pydantic import BaseModel

from benchmark_service.responses import NotJson, ServiceFault, chunk_frame, to_json
from benchmark_service.schemas import (
    StreamErrorChunk,
    StreamEvalResumeStateChunk,
    StreamMessageChunk,
    StreamResultChunk,
)


class Colour(Enum):
    RED = "red"


@dataclass
class Point:
    x: int
    when: datetime


class Model(BaseModel):
    tags: set[str] = {"a"}
    at: PurePosixPath = PurePosixPath("/p")


def test_what_services_are_used_to_returning() -> None:
    value = {
        "model": Model(),
        "point": Point(1, datetime(2026, 1, 2, tzinfo=UTC)),
        "colour": Colour.RED,
        "pair": (1, 2.5),
        3: None,
    }
    assert json.loads(to_json(value)) == {
        "model": {"tags": ["a"], "at": "/p"},
        "point": {"x": 1, "when": "2026-01-02T00:00:00Z"},
        "colour": "red",
        "pair": [1, 2.5],
        "3": None,
    }


def cyclic() -> list[Any]:
    inner: list[Any] = []
    inner.append(inner)
    return inner


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"a": [1, {2}]}, "answer.a[1] is a set"),
        ({"a": {"b": float("inf")}}, "answer.a.b is inf"),
        (object(), "answer is a object"),
        ([lambda: 1], "answer[0] is a function"),
        (cyclic(), "nested deeper than 200 levels, or contains itself"),
    ],
)
def test_what_json_cannot_carry_is_named_with_its_place(value: Any, said: str) -> None:
    with pytest.raises(NotJson) as caught:
        to_json(value, "answer")
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("chunk", "frame"),
    [
        (StreamMessageChunk(type="message", data="hi"), {"type": "message", "data": "hi"}),
        (StreamErrorChunk(type="error", data="no"), {"type": "error", "data": "no"}),
        (
            StreamErrorChunk(type="error", data="later", error_code="resumable_evaluation_infrastructure"),
            {"type": "error", "data": "later", "error_code": "resumable_evaluation_infrastructure"},
        ),
        (StreamResultChunk(type="result", data=None), {"type": "result", "data": None}),
        (
            StreamResultChunk(type="result", data=Model()),
            {"type": "result", "data": {"tags": ["a"], "at": "/p"}},
        ),
        (
            StreamEvalResumeStateChunk(type="eval_resume_state", data={"n": None}),
            {"type": "eval_resume_state", "data": {"n": None}},
        ),
        ({"type": "error", "data": "x", "error_code": None}, {"type": "error", "data": "x"}),
    ],
)
def test_frames_are_type_and_data(chunk: Any, frame: dict[str, Any]) -> None:
    assert json.loads(chunk_frame(chunk)) == frame


@pytest.mark.parametrize(
    "chunk", [None, 5, "text", {"type": "result"}, {"type": "message", "data": 5}, Model()]
)
def test_what_is_no_chunk(chunk: Any) -> None:
    with pytest.raises(ServiceFault, match="not a stream chunk"):
        chunk_frame(chunk)
