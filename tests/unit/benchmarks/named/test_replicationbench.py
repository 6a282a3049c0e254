"""ReplicationBench: papers and tasks, and the rule of tolerances. Records are written here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from valkyrie.benchmarks.named import replicationbench
from valkyrie.benchmarks.named.conversion import ConverterOptions, TaskDraft
from valkyrie.benchmarks.named.graders import numbers
from valkyrie.errors import UsageError


def task(**more: Any) -> dict[str, Any]:
    return {
        "task_id": "Mass",
        "paper_id": "stars",
        "kind": "numeric",
        "difficulty": 3,
        "description": "Weigh it.",
        "instructions": "Use {scales} and @ANSWER@.",
        "expected_output": 2.5,
        "tolerance": 0.1,
        "parents": [],
        **more,
    }


def clone(folder: Path, *tasks: dict[str, Any], **paper: Any) -> Path:
    data = folder / "src" / "dataset"
    (data / "papers").mkdir(parents=True)
    for paper_id in {one["paper_id"] for one in tasks}:
        about = {"title": "On stars", "abstract": "Few.", "source": "expert", "dataset": {"kind": "none"}}
        (data / "papers" / f"{paper_id}.json").write_text(json.dumps({**about, **paper}))
    for one in tasks:
        path = data / "tasks" / one["paper_id"] / f"{one['task_id']}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(one))
    return folder


def convert(source: Path) -> list[TaskDraft]:
    return list(replicationbench.convert(source, ConverterOptions("replicationbench")))


def test_a_clone_becomes_tasks(tmp_path: Path) -> None:
    needs = {"needs_gpu": True, "dependencies": ["torch", "torch", "x; rm -rf /"]}
    data = {"kind": "huggingface", "data_instructions": {"access": "Ask for it."}, "hf_name": ["a/b"]}
    paper = {"other_instructions": "Be exact.", "execution_requirements": needs, "dataset": data}
    [draft] = convert(clone(tmp_path, task(), **paper))
    assert "for name in torch; do" in str(draft.environment["Dockerfile"])
    assert "- hf_name: a/b\naccess: Ask for it." in draft.instruction
    assert (draft.id, draft.source_id) == ("stars__mass", "stars/Mass")
    for part in ("On stars", "Few.", "Weigh it.", "{scales} and @ANSWER@", "Be exact.", "a number"):
        assert part in draft.instruction
    assert "2.5" not in draft.instruction and draft.metadata["upstream_uses_gpu"]
    assert json.loads(str(draft.solution["gold"])) == {"value": 2.5}


def test_what_is_left_out(tmp_path: Path) -> None:
    large = [task(paper_id=paper) for paper in replicationbench.TOO_MUCH_DATA]
    assert [draft.id for draft in convert(clone(tmp_path / "a", task(), *large))] == ["stars__mass"]
    assert convert(clone(tmp_path / "b", task(), source="generated")) == []


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"expected_output": [1, 2], "tolerance": [1]}, "another form"),
        ({"expected_output": {"a": 1}, "tolerance": {"b": 1}}, "another form"),
        ({"expected_output": True}, "no number"),
        ({"tolerance": "much"}, "no number"),
        ({"expected_output": []}, "empty"),
        ({"expected_output": None}, "no field 'expected_output'"),
    ],
)
def test_records_that_are_none(changes: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=says):
        convert(clone(tmp_path, task(**changes)))


def test_tasks_without_their_paper(tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text(json.dumps(task()) + "\n")
    with pytest.raises(UsageError, match="split 'papers'"):
        convert(tmp_path)
    with pytest.raises(UsageError, match="clone of the benchmark"):
        convert(tmp_path / "tasks.jsonl")
    (tmp_path / "papers.jsonl").write_text(json.dumps({"paper_id": "others"}) + "\n")
    with pytest.raises(UsageError, match="of which there is nothing"):
        convert(tmp_path)


@pytest.mark.parametrize(
    ("given", "value", "tolerance", "right"),
    [
        (2.6, 2.5, 0.125, True),
        (2.7, 2.5, 0.125, False),
        (2, 2, 0, True),
        (True, 1, 1, False),
        (float("nan"), 1, 1, False),
        (float("inf"), 1, 1e300, False),
        (10**400, 1, 1, False),
        ("2.5", 2.5, 1, False),
        (None, 2.5, 1, False),
        ([1, 2], [1, 2], 0, True),
        ([1, 2, 3], [1, 2], [0, 0], False),
        ({"a": 1, "b": [2]}, {"a": 1, "b": [2]}, {"a": 0, "b": [0]}, True),
        ({"a": 1, "b": 2}, {"a": 1}, {"a": 0}, False),
        ({}, {"a": 1}, {"a": 0}, False),
        (1, {"a": 1}, {"a": 0}, False),
    ],
)
def test_tolerances(given: Any, value: Any, tolerance: Any, right: bool) -> None:
    assert (numbers.difference(given, value, tolerance, "value") is None) == right
