"""Results from elsewhere, as command lines; each scene is played on every back end."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from tests.integration.backends.installations import Installation
from tests.integration.evals.runner_folder import write_run, write_task

RECORD = {"type": "trial-result", "stimulus": "greet", "status": "success", "eval": "greetings", "model": "m"}
GRADE = {"passed": True, "score": 1.0, "details": []}


def set_times(root: Path) -> None:
    """When it was written is the same everywhere."""
    for file in root.rglob("*.json"):
        os.utime(file, (1736937100, 1736937100))


def runs_of_runners(installation: Installation) -> None:
    artifacts = write_run(installation.folder / "answers", tasks=["france", "peru", "chad", "mali"])
    set_times(artifacts.root)
    assert installation.valk("ingest", "answers/run-1", "--dry-run").code == 0
    assert installation.valk("ingest", "answers/run-1", "--label", "brought in").code == 0
    run_id = installation.ask("ingest", "answers", "--json").json["runs"][0]["run_id"]
    for words in (
        *(("run", "fetch", run_id), ("run", "tasks", run_id), ("run", "logs", run_id, "france")),
        *(("run", "list", "--label", "brought in"), ("ingest", "answers"), ("run", "retry", run_id)),
    ):
        installation.valk(*words)
    assert installation.valk("run", "outputs", run_id, "--output-dir", "brought").code == 0
    installation.note(
        sorted(
            str(path.relative_to(installation.folder))
            for path in (installation.folder / "brought").rglob("*")
        )
    )
    write_task(artifacts, "mali", "Bamako", result=True)
    set_times(artifacts.root)
    assert installation.valk("ingest", "answers").code == 1
    assert installation.valk("ingest", "answers", "--replace", "--json").code == 0
    assert installation.valk("run", "results", run_id, "--path", "-").code == 0
    assert installation.valk("run", "delete", run_id, "--yes").code == 0
    (artifacts.eval_path("chad")).write_text("{oops")
    assert installation.valk("ingest", "answers").code == 1
    for name in ("answers", "brought"):
        shutil.rmtree(installation.folder / name)


def results_of_evals(installation: Installation) -> None:
    folder = installation.folder / "evals" / "2025-01-15T10-30-00-005Z"
    (folder / "art").mkdir(parents=True)
    (folder / "art" / "kept.txt").write_text("kept")
    lines = [
        {**RECORD, "gradeResult": GRADE, "artifactDir": "art", "trajectory": None},
        {**RECORD, "stimulus": "shout", "status": "error", "error": "no answer", "trajectory": None},
        {**RECORD, "stimulus": "left out", "trajectory": None},
    ]
    (folder / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert installation.valk("ingest", "nowhere").code == 2
    assert installation.valk("ingest", "evals", "--json").code == 0
    run_id = installation.ask("ingest", "evals", "--json").json["runs"][0]["run_id"]
    for words in (("run", "fetch", run_id), ("run", "logs", run_id, "greet"), ("run", "errors", run_id)):
        installation.valk(*words)
    assert installation.valk("run", "outputs", run_id, "--output-dir", "brought").code == 0
    installation.note(
        sorted(
            str(path.relative_to(installation.folder))
            for path in (installation.folder / "brought").rglob("*")
        )
    )
    assert installation.valk("run", "delete", run_id, "--yes").code == 0
    for name in ("evals", "brought"):
        shutil.rmtree(installation.folder / name)


INGEST_SCENES = (runs_of_runners, results_of_evals)
