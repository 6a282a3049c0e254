"""`ingest` of a benchmark runner's folder: one finished run, once, with everything the runner kept."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from benchmark_runner.artifacts import RunArtifacts
from benchmark_runner.schemas import EvalStatus, GenerationStatus, ScoreResult
from tests.integration.evals.commands import Valk, valk
from tests.integration.evals.runner_folder import CAPITALS, write_run, write_task
from valkyrie.config.values import data_folder

__all__ = ["valk"]


def ingested(valk: Valk, *words: str) -> dict[str, Any]:
    said = valk("ingest", *words, "--json")
    assert said.code == 0, said.err
    [run] = said.json["runs"]
    return run  # type: ignore[no-any-return]


def tasks_of(valk: Valk, run_id: str) -> dict[str, dict[str, Any]]:
    return {one["task_id"]: one for one in valk("run", "tasks", run_id, "--json").json["trials"]}


def test_a_runners_run_becomes_a_finished_run(valk: Valk, tmp_path: Path) -> None:
    write_run(tmp_path / "results", dataset_name="tiny")
    run = ingested(valk, "results/run-1", "--label", "first")
    assert (run["status"], run["trials"], run["errors"], run["notices"]) == ("stored", 3, 0, [])
    assert run["name"] == "capitals [some-model] run-1"

    [listed] = valk("run", "list", "--label", "first", "--json").json["runs"]
    about = [listed[name] for name in ("benchmark", "dataset", "agent", "model", "state")]
    assert about == ["capitals", "tiny", "capitals-runner", "some-model", "FINISHED"]
    tasks = tasks_of(valk, run["run_id"])
    assert {name: (one["score"], one["passed"]) for name, one in tasks.items()} == {
        "france": (1.0, True),
        "peru": (1.0, True),
        "chad": (0.0, False),
    }
    results = json.loads(valk("run", "results", run["run_id"], "--path", "-").out)
    assert results["score"]["final_score"] == results["score"]["score_graded"] == pytest.approx(2 / 3)
    assert results["evaluation_results"]["chad"]["said"] == "N'Djamena"
    assert results["started_at"].startswith("2025-01-15T10:30:00")
    stored = valk("run", "fetch", run["run_id"], "--json").out
    assert '"generation_version": "1.2"' in stored and "pass-4711" not in stored


def test_questions_answers_and_logs_are_kept(valk: Valk, tmp_path: Path) -> None:
    write_run(tmp_path / "results")
    run_id = ingested(valk, "results")["run_id"]
    log = valk("run", "logs", run_id, "france").out
    assert "What is the capital of france?" in log and "answer (success): Paris" in log
    assert "ingested from results/run-1/run_config.json" in log
    assert valk("run", "outputs", run_id, "--output-dir", "out").code == 0
    [kept] = [path.parent for path in (tmp_path / "out").rglob("answer.txt") if "france" in str(path)]
    assert (kept / "answer.txt").read_text() == "Paris"
    assert (kept.parent / "agent" / "session.txt").read_text() == "thinking about france\n"
    assert json.loads((kept.parent / "grading" / "eval.json").read_text())["status"] == "evaluated"
    assert valk("export", run_id, "--exporter", "csv").code == 0


def test_every_way_a_task_can_end(valk: Valk, tmp_path: Path) -> None:
    artifacts = write_run(
        tmp_path / "results", tasks=[*CAPITALS, "slow", "loop", "broken", "ungraded", "new"]
    )
    slow = {"status": EvalStatus.DID_NOT_COMPLETE}
    late = "generation timed out after 5 seconds"
    write_task(artifacts, "slow", generated=GenerationStatus.MAX_TIME, error=late, **slow)
    write_task(artifacts, "loop", generated=GenerationStatus.MAX_TURNS, **slow)
    failed = EvalStatus.GENERATION_ERROR
    write_task(artifacts, "broken", generated=GenerationStatus.ERROR, status=failed, error="no such model")
    write_task(artifacts, "ungraded", "x", status=EvalStatus.ERROR, error="the service answered 500")
    run = ingested(valk, "results/run-1")
    assert (run["trials"], run["errors"]) == (7, 4)
    assert "1 task of 8 not evaluated yet and left out" in run["notices"][0]
    assert "its score is the mean over these tasks" in run["notices"][1]
    tasks = tasks_of(valk, run["run_id"])
    assert {name: (one["state"], one["category"], one["cause"]) for name, one in tasks.items()} == {
        **dict.fromkeys(CAPITALS, ("FINISHED", None, None)),
        "slow": ("ERROR", "agent", "agent_timeout"),
        "loop": ("ERROR", "agent", "agent_timeout"),
        "broken": ("ERROR", "agent", "agent_failed"),
        "ungraded": ("ERROR", "benchmark", "service_failed"),
    }
    assert tasks["slow"]["message"] == late and "max_turns" in tasks["loop"]["message"]
    score = json.loads(valk("run", "results", run["run_id"], "--path", "-").out)["score"]
    assert score["final_score"] == pytest.approx(2 / 7) and score["score_graded"] == pytest.approx(2 / 6)


def test_a_whole_score_with_errors_among_the_tasks(valk: Valk, tmp_path: Path) -> None:
    artifacts = write_run(tmp_path / "results")
    write_task(artifacts, "peru", generated=GenerationStatus.MAX_TIME, status=EvalStatus.DID_NOT_COMPLETE)
    artifacts.write_score(ScoreResult(tasks_evaluated=[], final_score=1 / 3, complete=True))
    run = ingested(valk, "results/run-1")
    score = json.loads(valk("run", "results", run["run_id"], "--path", "-").out)["score"]
    assert (score["final_score"], score["score_graded"]) == (pytest.approx(1 / 3), pytest.approx(1 / 2))

    artifacts.write_score(ScoreResult(tasks_evaluated=[], final_score=61.5, complete=True))
    run = ingested(valk, "results/run-1", "--replace")
    score = json.loads(valk("run", "results", run["run_id"], "--path", "-").out)["score"]
    assert (score["final_score"], score["score_graded"]) == (61.5, None), "its own scale, not a mean"


def test_once_and_again(valk: Valk, tmp_path: Path) -> None:
    artifacts = write_run(tmp_path / "results", tasks=[*CAPITALS, "mali"])
    first = ingested(valk, "results/run-1", "--label", "mine")
    assert ingested(valk, "results")["status"] == "known"
    write_task(artifacts, "mali", "Bamako", result=True)
    said = valk("ingest", "results/run-1")
    assert said.code == 1 and "was ingested before with other results" in said.err and "--replace" in said.err
    assert tasks_of(valk, first["run_id"]).keys() == CAPITALS.keys()
    assert ingested(valk, "results/run-1", "--replace", "--dry-run")["status"] == "would be replaced"
    again = ingested(valk, "results/run-1", "--replace")
    assert (again["status"], again["run_id"], again["trials"]) == ("replaced", first["run_id"], 4)
    [listed] = valk("run", "list", "--json").json["runs"]
    assert listed["label"] == "mine", "the label it had"
    assert "Bamako" in valk("run", "logs", first["run_id"], "mali").out
    assert ingested(valk, "results/run-1", "--replace")["status"] == "known"
    assert sorted(path.name for path in (data_folder() / "runs").iterdir()) == [first["run_id"]]
    assert valk("db", "check").code == 0


def test_where_artifacts_are_kept_these_are_kept_too(valk: Valk, tmp_path: Path) -> None:
    assert valk("config", "set", "artifacts_folder", tmp_path / "kept").code == 0
    write_run(tmp_path / "results")
    run_id = ingested(valk, "results")["run_id"]
    shutil.rmtree(data_folder() / "runs" / run_id)
    assert "answer (success): Paris" in valk("run", "logs", run_id, "france").out, "as from another machine"
    assert valk("run", "delete", run_id, "--yes").code == 0
    assert not [path for path in (tmp_path / "kept").rglob("*") if path.is_file()]


def test_several_runs_of_one_folder(valk: Valk, tmp_path: Path) -> None:
    write_run(tmp_path / "results")
    write_run(tmp_path / "results", "run-2", model="other-model")
    said = valk("ingest", "results")
    assert "Next: valk compare" in said.out
    listed = valk("run", "list", "--json").json["runs"]
    assert valk("compare", *(one["id"] for one in listed)).code == 0 and len(listed) == 2


def test_the_same_id_given_to_another_run(valk: Valk, tmp_path: Path) -> None:
    write_run(tmp_path / "monday", "nightly")
    write_run(tmp_path / "tuesday", "nightly", started_at="2025-01-16T10:30:00+00:00")
    first = ingested(valk, "monday")
    assert ingested(valk, "tuesday")["run_id"] != first["run_id"]


def test_what_agents_left_is_not_searched(valk: Valk, tmp_path: Path) -> None:
    artifacts = write_run(tmp_path / "results")
    planted = artifacts.log_dir("france") / "inner"
    planted.mkdir()
    for name in ("results.jsonl", "run_config.json"):
        (planted / name).write_text("{oops")
    assert ingested(valk, "results")["trials"] == 3


def test_odd_task_ids(valk: Valk, tmp_path: Path) -> None:
    odd = ["a/b", "..", ".hidden", "q?* {x}", "ünï", "x" * 400, "final_score.json"]
    artifacts = RunArtifacts(tmp_path / "results", "run-1")
    write_run(tmp_path / "results", tasks=odd)
    for task_id in odd:
        write_task(artifacts, task_id, task_id, result=0.5)
    run_id = ingested(valk, "results/run-1")["run_id"]
    assert tasks_of(valk, run_id).keys() == set(odd)
    assert "answer (success): a/b" in valk("run", "logs", run_id, "a/b").out


def test_results_of_any_shape(valk: Valk, tmp_path: Path) -> None:
    shapes = {"flag": True, "number": 0.25, "none": None, "list": [1], "percent": {"pass_percentage": 80}}
    artifacts = write_run(tmp_path / "results", tasks=list(shapes))
    artifacts.drop_score()
    for task_id, result in shapes.items():
        write_task(artifacts, task_id, {"answer": [1, 2]}, result=result)
    run = ingested(valk, "results/run-1")
    tasks = tasks_of(valk, run["run_id"])
    scores = {name: (one["score"], one["passed"]) for name, one in tasks.items()}
    assert scores["flag"] == (1.0, True) and scores["number"] == (0.25, False)
    assert {scores[name] for name in ("none", "list", "percent")} == {(None, None)}
    assert "its results name no score" in run["notices"][0]
    results = json.loads(valk("run", "results", run["run_id"], "--path", "-").out)
    assert results["score"]["final_score"] is None


def _no_json(root: Path) -> str:
    (root / "france" / "eval.json").write_text("{oops")
    return "results/run-1/france/eval.json is not what a runner writes"


def _other_task(root: Path) -> str:
    (root / "france" / "eval.json").write_text('{"task_id": "peru", "status": "evaluated"}')
    return "results/run-1/france/eval.json is of task 'peru'"


def _linked_file(root: Path) -> str:
    (root / "france" / "generation.json").unlink()
    (root / "france" / "generation.json").symlink_to("/etc/passwd")
    return "results/run-1/france/generation.json is a link"


def _linked_folder(root: Path) -> str:
    (root / "france").rename(root.parent / "elsewhere")
    (root / "france").symlink_to(root.parent / "elsewhere")
    return "results/run-1/france is a link"


def _linked_config(root: Path) -> str:
    (root / "run_config.json").rename(root / "other.json")
    (root / "run_config.json").symlink_to("other.json")
    return "results/run-1/run_config.json is a link"


def _broken_config(root: Path) -> str:
    (root / "run_config.json").write_text('{"run_id": "run-1"}')
    return "results/run-1/run_config.json is not what a runner writes: model: Field required"


def _unprintable_task(root: Path) -> str:
    text = (root / "run_config.json").read_text()
    (root / "run_config.json").write_text(text.replace('"france"', '"fr\\u0007nce"'))
    return "results/run-1/run_config.json: 'fr\\x07nce' is no name"


def _no_number(root: Path) -> str:
    (root / "final_score.json").write_text('{"tasks_evaluated": [], "final_score": NaN, "complete": true}')
    return "results/run-1/final_score.json"


def _endless_result(root: Path) -> str:
    deep = "[" * 150 + "]" * 150
    (root / "france" / "eval.json").write_text(
        f'{{"task_id": "france", "status": "evaluated", "result": {deep}}}'
    )
    return "results/run-1/france/eval.json"


def _a_pipe(root: Path) -> str:
    (root / "france" / "eval.json").unlink()
    os.mkfifo(root / "france" / "eval.json")
    return "results/run-1/france/eval.json is no plain file"


def _nothing_done(root: Path) -> str:
    for file in root.glob("*/eval.json"):
        file.unlink()
    return "Nothing to ingest: 3 tasks of 3 not evaluated yet"


DAMAGES = [
    *(_no_json, _other_task, _linked_file, _linked_folder, _linked_config, _broken_config),
    *(_unprintable_task, _no_number, _endless_result, _a_pipe, _nothing_done),
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_folder_is_refused_whole(valk: Valk, tmp_path: Path, damage: Any) -> None:
    why = damage(write_run(tmp_path / "results").root)
    said = valk("ingest", "results")
    assert (said.code, why in said.err) == (1, True), said.err
    assert valk("run", "list", "--json").json["total"] == 0
    assert not list((data_folder() / "runs").iterdir())


def test_logs_lead_nowhere_else(valk: Valk, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("s3cr3t")
    artifacts = write_run(tmp_path / "results")
    logs = artifacts.log_dir("france")
    (logs / "link").symlink_to(tmp_path / "key")
    (logs / "folder").symlink_to(tmp_path)
    os.mkfifo(logs / "pipe")
    artifacts.log_dir("peru").rename(tmp_path / "peru-logs")
    artifacts.log_dir("peru").symlink_to(tmp_path / "peru-logs")
    run_id = ingested(valk, "results")["run_id"]
    kept = [path for path in data_folder().rglob("*") if path.is_file() and "runs" in path.parts]
    assert not any(path.is_symlink() or b"s3cr3t" in path.read_bytes() for path in kept)
    assert "3 entries of agent_logs were left behind" in valk("run", "logs", run_id, "france").out
