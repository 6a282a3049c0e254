"""What is redone when a run goes on, and what must not be mixed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ConfigDict

from benchmark_runner import EvalResult, GenerationResult, Task
from benchmark_runner.checkpoint import (
    RunConfig,
    TaskSource,
    differences,
    digests,
    needs_evaluation,
    needs_generation,
)


def config(**fields: Any) -> RunConfig:
    base: dict[str, Any] = {
        "run_id": "r1",
        "model": "m1",
        "tasks": ["a"],
        "task_source": "file",
        "dataset_name": None,
        "generation_version": "1",
        "settings": {"temperature": 0.5, "timeout": 10.0},
        "tasks_digest": "d1",
        "fields_digest": "f1",
    }
    return RunConfig.model_validate(base | fields)


@pytest.mark.parametrize(
    ("status", "needed"),
    [(None, True), ("error", True), ("success", False), ("max_time", False), ("max_turns", False)],
)
def test_generation_is_redone_after_an_error_only(status: Any, needed: bool) -> None:
    result = GenerationResult(task_id="a", status=status) if status else None
    assert needs_generation(result) is needed


@pytest.mark.parametrize(
    ("status", "needed"),
    [
        (None, True),
        ("error", True),
        ("generation_error", True),
        ("evaluated", False),
        ("did_not_complete", False),
    ],
)
def test_evaluation_is_redone_after_an_error_only(status: Any, needed: bool) -> None:
    result = EvalResult(task_id="a", status=status) if status else None
    assert needs_evaluation(result) is needed


def test_the_same_may_go_on() -> None:
    assert (
        differences(config(), config(started_at="later", service_url="http://other", tasks=["a", "b"])) == []
    )


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"model": "m2"}, "model: m1, now m2"),
        ({"task_source": "service"}, "task source: file, now service"),
        ({"dataset_name": "hard"}, "dataset name: not set, now hard"),
        ({"generation_version": "2"}, "generation version: 1, now 2"),
        ({"payload_schema": None}, None),
        ({"settings": {"temperature": 0, "timeout": 10.0}}, "temperature: 0.5, now 0"),
        ({"settings": {"timeout": 10.0}}, "temperature: 0.5, now not set"),
        ({"settings": {"temperature": 0.5, "timeout": 10.0, "top_k": 3}}, "top k: not set, now 3"),
        ({"tasks_digest": "d2"}, "the dataset: its tasks ask something else than when the run began"),
        (
            {"fields_digest": "f2"},
            "the dataset: its tasks hold other fields or values than when the run began",
        ),
        ({"fields_digest": None}, None),
    ],
)
def test_what_would_be_mixed_is_named(changed: dict[str, Any], said: str | None) -> None:
    assert differences(config(), config(**changed)) == ([said] if said else [])


def test_what_an_older_runner_did_not_write_is_not_compared() -> None:
    older = RunConfig.model_validate({"run_id": "r1", "model": "m1", "tasks": ["a"]})
    assert older.task_source is TaskSource.FILE
    assert differences(older, config(task_source="service", generation_version="9")) == []
    assert differences(older, config(model="m2")) == ["model: m1, now m2"]


def test_a_digest_tells_what_is_asked_and_not_in_which_order() -> None:
    def asked(*tasks: Task) -> str:
        return digests(tasks)["tasks_digest"]

    one, two = Task(id="a", question="x"), Task(id="b", question="y")
    assert asked(one, two) == asked(two, one)
    assert asked(one) != asked(one, two)
    assert asked(one) != asked(Task(id="a", question="z"))
    assert asked(Task(id="ab", question="c")) != asked(Task(id="a", question="bc"))


class OwnTask(Task):
    """With what an author may think of."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    cwd: Path = Path("/")
    tags: frozenset[str] = frozenset()
    inner: Task | None = None
    check: Any = None


def test_an_authors_own_fields_are_told_apart() -> None:
    def held(**fields: Any) -> str:
        return digests([OwnTask(id="a", question="x", **fields)])["fields_digest"]

    nested = Task(id="b", question="y", depth={"deep": {"s"}})
    kinds: list[dict[str, Any]] = [
        {},
        {"timeout": 5},
        {"cwd": Path("/app")},
        {"tags": {"easy", "new"}},
        {"inner": nested},
        {"extra": [1]},
        {"check": print},
    ]
    assert len({held(**fields) for fields in kinds}) == len(kinds)


def test_what_is_no_json_counts_by_its_kind() -> None:
    around: list[Any] = []
    around.append(around)
    for made in (lambda: around, lambda: object(), lambda: held_by_itself()):
        one, other = (OwnTask(id="a", question="x", check=made()) for _ in range(2))
        assert digests([one]) == digests([other])


def held_by_itself() -> Task:
    task = OwnTask(id="b", question="y")
    task.check = task
    return task


def test_keys_we_do_not_know_stay() -> None:
    assert config(note="by hand").model_dump()["note"] == "by hand"
