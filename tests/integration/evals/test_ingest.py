"""`ingest`: foreign results as runs of the store, once, with errors kept apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.integration.evals.commands import Valk, valk
from valkyrie.config.values import data_folder

__all__ = ["valk"]

STAMP = "2025-01-15T10-30-00-005Z"


def record(stimulus: str, *, passed: bool = True, **more: Any) -> dict[str, Any]:
    """A trial as another tool writes it."""
    return {
        "type": "trial-result",
        "variant": "main",
        "stimulus": stimulus,
        "status": "success",
        "durationMs": 1500,
        "gradeResult": {
            "name": "aggregate",
            "kind": "code",
            "passed": passed,
            "score": 1.0 if passed else 0.25,
            "evidence": "",
            "stimulusName": stimulus,
            "details": [
                {"name": "output-contains", "kind": "code", "passed": passed, "score": float(passed)}
            ],
        },
        "trajectory": {
            "id": f"t-{stimulus}",
            "stimulus": {"name": stimulus, "prompt": f"Do {stimulus}."},
            "events": [{"type": "assistant_message", "data": {"content": "done"}}],
            "metrics": {"tokenUsage": {"inputTokens": 100, "outputTokens": 20}, "turnCount": 2},
            "output": "done",
            "metadata": {"model": "claude-x", "executor": "copilot-sdk", "startedAt": "2025-01-15T10:30:01Z"},
        },
        **more,
    }


def failed(stimulus: str) -> dict[str, Any]:
    return {
        "type": "trial-result",
        "variant": "main",
        "stimulus": stimulus,
        "status": "error",
        "durationMs": 9,
        "error": "the model did not answer",
        "trajectory": None,
    }


def write(folder: Path, *records: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(one) + "\n" for one in records)
    (folder / "results.jsonl").write_text(text, encoding="utf-8")
    return folder


def test_results_become_a_finished_run(valk: Valk, tmp_path: Path) -> None:
    write(
        tmp_path / "r" / STAMP,
        record("greet"),
        record("sum", passed=False),
        failed("slow"),
    )
    said = valk("ingest", "r", "--json")
    assert said.code == 0, said.err
    [run] = said.json["runs"]
    assert (run["status"], run["trials"], run["errors"]) == ("stored", 3, 1)

    listed = valk("run", "list", "--json").json["runs"]
    assert [(one["benchmark"], one["agent"], one["model"], one["state"]) for one in listed] == [
        ("eval", "copilot-sdk", "claude-x", "FINISHED")
    ]
    tasks = {one["task_id"]: one for one in valk("run", "tasks", run["run_id"], "--json").json["trials"]}
    assert {name: one["state"] for name, one in tasks.items()} == {
        "greet": "FINISHED",
        "sum": "FINISHED",
        "slow": "ERROR",
    }
    assert (tasks["sum"]["score"], tasks["sum"]["passed"]) == (0.25, False)
    assert tasks["slow"]["category"] == "infrastructure"
    results = json.loads(valk("run", "results", run["run_id"], "--path", "-").out)
    assert results["score"]["score_graded"] == pytest.approx(0.625)
    assert results["score"]["errors"] == {"infrastructure": 1}
    assert results["tokens"] == {"input": 200, "cached": 0, "output": 40}
    assert results["evaluation_results"]["greet"]["graders"][0]["name"] == "output-contains"
    assert results["started_at"].startswith("2025-01-15T10:30:00")
    assert valk("run", "fetch", run["run_id"]).code == 0
    assert "ingested from" in valk("run", "logs", run["run_id"], "greet").out


def test_the_same_results_are_stored_once(valk: Valk, tmp_path: Path) -> None:
    write(tmp_path / "a", record("greet"), record("sum"))
    write(tmp_path / "b", record("sum"), record("greet"))  # the same, elsewhere and in another order
    first = valk("ingest", "a", "--json").json["runs"][0]
    for folder in ("a", "b"):
        again = valk("ingest", folder, "--json").json["runs"][0]
        assert (again["status"], again["run_id"]) == ("known", first["run_id"])
    assert valk("run", "list", "--json").json["total"] == 1


def test_a_run_id_with_other_results_is_refused(valk: Valk, tmp_path: Path) -> None:
    write(tmp_path / "a", record("greet", runId="ci-17"))
    assert valk("ingest", "a").code == 0
    write(tmp_path / "a", record("greet", runId="ci-17", passed=False))
    said = valk("ingest", "a")
    assert said.code == 1
    assert "was ingested before with other results" in said.err
    assert "valk run delete" in said.err


def test_each_eval_model_and_variant_is_a_run(valk: Valk, tmp_path: Path) -> None:
    for variant in ("plain", "skilled"):
        write(
            tmp_path / "x" / STAMP / variant,
            *(
                record(f"s{n}", passed=variant == "skilled" or n == 0, variant=variant, model=model, eval="e")
                for n in range(8)
                for model in ("m1", "m2")
            ),
        )
    runs = valk("ingest", "x", "--json").json["runs"]
    assert sorted(one["name"] for one in runs) == [
        "e [m1] plain",
        "e [m1] skilled",
        "e [m2] plain",
        "e [m2] skilled",
    ]
    ids = {one["name"]: one["run_id"] for one in runs}
    found = valk("compare", ids["e [m1] skilled"], ids["e [m1] plain"], "--json").json
    assert found["comparisons"][0]["verdict"] == "better"
    labels = {one["label"] for one in valk("run", "list", "--json").json["runs"]}
    assert labels == {"plain", "skilled"}


def test_nothing_goes_on(valk: Valk, tmp_path: Path) -> None:
    write(tmp_path / "r", record("greet"), failed("slow"))
    run_id = valk("ingest", "r", "--label", "old", "--json").json["runs"][0]["run_id"]
    for verb in ("resume", "retry"):
        said = valk("run", verb, run_id)
        assert said.code == 1
        assert "was ingested" in said.err
    assert valk("run", "list", "--label", "old", "--json").json["total"] == 1
    assert valk("run", "delete", run_id, "--yes").code == 0
    assert valk("run", "list", "--json").json["total"] == 0


def test_an_ingested_run_is_exported_again(valk: Valk, tmp_path: Path) -> None:
    write(tmp_path / "r", record("greet", variant="v"), record("sum", variant="v", passed=False), failed("x"))
    runs = {one["name"]: one["run_id"] for one in valk("ingest", "r", "--json").json["runs"]}
    run_id = runs["eval [claude-x] v"]
    assert valk("export", run_id, "--exporter", "jsonl").code == 0
    again = [json.loads(line) for line in (tmp_path / "jsonl" / "results.jsonl").read_text().splitlines()]
    assert [(one["stimulus"], one["variant"], one["gradeResult"]["score"]) for one in again] == [
        ("greet", "v", 1.0),
        ("sum", "v", 0.25),
    ]
    assert again[1]["gradeResult"]["details"][0]["name"] == "output-contains"
    said = valk("export", run_id, "--exporter", "harbor")
    assert (said.code, "not results" in said.err) == (2, True)
    assert valk("export", run_id, "--exporter", "csv", "--tag", "a=b").code == 2


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_both_databases_keep_the_same(
    valk: Valk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, kind: str
) -> None:
    if kind == "postgresql":
        monkeypatch.setenv("VALKYRIE_DATABASE_URL", request.getfixturevalue("postgres_url"))
    write(tmp_path / "r", *(record(f"s{n}", passed=n % 3 > 0) for n in range(600)), failed("slow"))
    run_id = valk("ingest", "r", "--json").json["runs"][0]["run_id"]
    score = json.loads(valk("run", "results", run_id, "--path", "-").out)["score"]
    assert (score["passed"], score["graded"], score["planned"]) == (400, 600, 601)
    assert score["score_graded"] == pytest.approx(0.75)
    assert score["final_score"] == pytest.approx(450 / 601)
    assert valk("ingest", "r", "--json").json["runs"][0]["status"] == "known"
    assert valk("db", "check").code == 0


def test_dry_run_stores_nothing(valk: Valk, tmp_path: Path) -> None:
    write(tmp_path / "r", record("greet"))
    assert "Nothing was stored" in valk("ingest", "r", "--dry-run").out
    assert valk("run", "list", "--json").json["total"] == 0


def test_repeated_trials_keep_their_numbers(valk: Valk, tmp_path: Path) -> None:
    write(
        tmp_path / "r",
        *(record("greet", passed=n != 1, trialIndex=n) for n in range(3)),
        record("greet", passed=False, trialIndex=0),
    )
    said = valk("ingest", "r", "--json").json["runs"][0]
    trials = valk("run", "tasks", said["run_id"], "--json").json["trials"]
    assert [(one["k"], one["passed"]) for one in trials] == [(0, True), (1, False), (2, True), (3, False)]
    assert "got a new one" in said["notices"][0]


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        (["ingest", "nowhere"], 2, "No folder nowhere"),
        (["ingest", "empty"], 1, "no results.jsonl"),
        (["ingest", "broken"], 1, "results.jsonl: Line 2 is not JSON"),
        (["ingest", "ungraded"], 1, "Nothing to ingest: 1 trial without a verdict"),
        (["ingest", "good", "--store", "x.db"], 2, "VALKYRIE_HOME"),
        (["ingest"], 2, "DIR"),
    ],
)
def test_refusals(valk: Valk, tmp_path: Path, words: list[str], code: int, why: str) -> None:
    (tmp_path / "empty").mkdir()
    write(tmp_path / "good", record("greet"))
    write(tmp_path / "ungraded", record("greet") | {"gradeResult": None})
    broken = write(tmp_path / "broken", record("greet"))
    with (broken / "results.jsonl").open("a") as file:
        file.write("{oops\n")
    said = valk(*words)
    assert (said.code, why in said.err) == (code, True), said.err
    assert valk("run", "list", "--json").json["total"] == 0


def test_a_record_cannot_name_files_elsewhere(valk: Valk, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("s3cr3t")
    folder = tmp_path / "r"
    (folder / "art").mkdir(parents=True)
    (folder / "art" / "kept.txt").write_text("kept")
    (folder / "art" / "link").symlink_to(secret / "key")
    write(
        folder,
        record("out", artifactDir=str(secret), sessionLog=str(secret / "key")),
        record("up", artifactDir="../secret"),
        record("in", artifactDir="art"),
    )
    assert valk("ingest", "r").code == 0
    kept = [path for path in data_folder().rglob("*") if path.is_file() and "runs" in path.parts]
    assert [path.name for path in kept if path.parent.name == "artifacts"] == ["kept.txt"]
    assert not any(b"s3cr3t" in path.read_bytes() for path in kept)
