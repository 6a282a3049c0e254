"""What the results file says beside the score."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from valkyrie.report.results import results_document, results_text
from valkyrie.views import CostView, HookView, RunView, ScoreView

SCORE = ScoreView(1.0, 1.0, 1, 2, 0.5, {}, False, True, 1)


def a_run(**changed: Any) -> RunView:
    made: dict[str, Any] = {
        "id": "r", "benchmark": "b", "dataset": "default", "agent": "a", "model": None, "label": None,
        "provider": "local", "state": "FINISHED", "counts": {}, "total": 2, "concurrency": 5,
        "created_at": 0.0, "started_at": 0.0, "finished_at": 60.0, "started_by": None, "score": SCORE,
        "error": None, "note": None, "executor": "none", "folder": "/x", "arguments": {}, "enforcement": {},
        "version": 1,
    }  # fmt: skip
    return RunView(**{**made, **changed})


def a_row(task_id: str, **changed: Any) -> Any:
    row = {
        "task_id": task_id, "k": 0, "state": "FINISHED", "result": {"note": "fine"}, "score": 1.0,
        "passed": True, "exit_reason": None, "exit_code": 0, "attempts": 2, "timing": {"agent": 3.0},
        "cost": None, "usage": None, "category": None, "cause": None, "message": None,
        "confirmed": None, "score_confirmed": None, "evidence": None,
    }  # fmt: skip
    return SimpleNamespace(**{**row, **changed})


def test_people_passes_cost_and_hooks_are_told() -> None:
    hook = HookView("lambda", "ended:1", "failed", "not found", 3, 0.0, 61.0)
    run = a_run(started_by="ann", org="acme", cost=CostView(1.5, 2, 10.0), hooks=[hook])
    document = results_document(run, None, [a_row("x", cost=1.5), a_row("y")], passes=2)
    assert (document["organisation"], document["started_by"], document["passes"]) == ("acme", "ann", 2)
    assert document["cost"] == {"total": 1.5, "reports": 2, "limit": 10.0}
    assert document["hooks"] == [
        {
            "kind": "lambda", "trigger": "ended:1", "state": "failed", "detail": "not found", "attempts": 3,
            "finished_at": "1970-01-01T00:01:01.000+00:00",
        }
    ]  # fmt: skip
    assert document["evaluation_results"]["x"]["cost"] == 1.5
    assert "cost" not in document["evaluation_results"]["y"]
    assert document["status"] == "FINISHED", "a failed hook changes no status"
    json.dumps(document, allow_nan=False)


def test_what_has_no_value_is_left_out() -> None:
    document = results_document(a_run(), None, [])
    assert not {"cost", "hooks", "passes", "started_by", "label", "final_evaluation"} & document.keys()
    assert document["organisation"] == "default"


def test_evidence_and_what_counts_as_zero_are_told() -> None:
    evidence = {"mode": "shared", "open_to_tampering": True}
    error = {"state": "ERROR", "score": None, "passed": None, "message": "m"}
    document = results_document(
        a_run(),
        None,
        [
            a_row("x", confirmed=False, score_confirmed=0.25, evidence=evidence),
            a_row("y", score=0.0, passed=False, category="agent", cause="grader_broken_by_work"),
            a_row("z", category="agent", cause="agent_install_failed", **error),
            a_row("i", category="infrastructure", cause="sandbox_failed", **error),
        ],
    )
    found = document["evaluation_results"]["x"]
    assert (found["confirmed"], found["score_confirmed"], found["evidence"]) == (False, 0.25, evidence)
    assert not {"confirmed", "evidence"} & document["evaluation_results"]["y"].keys()
    assert document["counted_as_zero"] == {"y": "grader_broken_by_work", "z": "agent_install_failed"}
    assert {"score_confirmed", "unconfirmed", "score_low", "score_high", "ungraded"} <= document[
        "score"
    ].keys()


def test_the_file_is_written_while_trials_are_read() -> None:
    seen: list[str] = []

    def rows() -> Iterator[Any]:
        for name in ("x", 'odd "\n## name', "half \ud800", "y"):
            seen.append(name)
            yield a_row(name, evidence={"mode": "fresh"})
        yield a_row("z", k=1, state="ERROR", category="infrastructure", cause="sandbox_failed", message="m")
        yield a_row("n", score=float("nan"), passed=None)
        yield a_row("s", state="STOPPED")

    pieces = results_text(a_run(), {"final_score": 1.0}, rows(), passes=2)
    first = next(piece for piece in pieces if "evaluation_results" in piece)
    assert '"x": {' in first and seen == ["x"]
    text = "".join(results_text(a_run(), {"final_score": 1.0}, rows(), passes=2))
    document = results_document(a_run(), {"final_score": 1.0}, rows(), passes=2)
    document["evaluation_results"]["n"]["score"] = None  # no JSON has a word for it
    assert json.loads(text) == document and list(json.loads(text)) == list(document)
    assert text.splitlines()[1] == '  "schema_version": 1,' and text.endswith("\n}\n")
    assert json.loads("".join(results_text(a_run(), None, []))) == results_document(a_run(), None, [])
