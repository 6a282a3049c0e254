"""Results from elsewhere, as command lines; each scene is played on every back end."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from tests.integration.backends.worlds import World
from tests.integration.evals.runner_folder import write_run, write_task

RECORD = {"type": "trial-result", "stimulus": "greet", "status": "success", "eval": "greetings", "model": "m"}
GRADE = {"passed": True, "score": 1.0, "details": []}


def set_times(root: Path) -> None:
    """When it was written is the same everywhere."""
    for file in root.rglob("*.json"):
        os.utime(file, (1736937100, 1736937100))


def runs_of_runners(world: World) -> None:
    artifacts = write_run(world.folder / "answers", tasks=["france", "peru", "chad", "mali"])
    set_times(artifacts.root)
    assert world.valk("ingest", "answers/run-1", "--dry-run").code == 0
    assert world.valk("ingest", "answers/run-1", "--label", "brought in").code == 0
    run_id = world.ask("ingest", "answers", "--json").json["runs"][0]["run_id"]
    for words in (
        *(("run", "fetch", run_id), ("run", "tasks", run_id), ("run", "logs", run_id, "france")),
        *(("run", "list", "--label", "brought in"), ("ingest", "answers"), ("run", "retry", run_id)),
    ):
        world.valk(*words)
    assert world.valk("run", "outputs", run_id, "--output-dir", "brought").code == 0
    world.note(sorted(str(path.relative_to(world.folder)) for path in (world.folder / "brought").rglob("*")))
    write_task(artifacts, "mali", "Bamako", result=True)
    set_times(artifacts.root)
    assert world.valk("ingest", "answers").code == 1
    assert world.valk("ingest", "answers", "--replace", "--json").code == 0
    assert world.valk("run", "results", run_id, "--path", "-").code == 0
    assert world.valk("run", "delete", run_id, "--yes").code == 0
    (artifacts.eval_path("chad")).write_text("{oops")
    assert world.valk("ingest", "answers").code == 1
    for name in ("answers", "brought"):
        shutil.rmtree(world.folder / name)


def results_of_evals(world: World) -> None:
    folder = world.folder / "evals" / "2025-01-15T10-30-00-005Z"
    (folder / "art").mkdir(parents=True)
    (folder / "art" / "kept.txt").write_text("kept")
    lines = [
        {**RECORD, "gradeResult": GRADE, "artifactDir": "art", "trajectory": None},
        {**RECORD, "stimulus": "shout", "status": "error", "error": "no answer", "trajectory": None},
        {**RECORD, "stimulus": "left out", "trajectory": None},
    ]
    (folder / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert world.valk("ingest", "nowhere").code == 2
    assert world.valk("ingest", "evals", "--json").code == 0
    run_id = world.ask("ingest", "evals", "--json").json["runs"][0]["run_id"]
    for words in (("run", "fetch", run_id), ("run", "logs", run_id, "greet"), ("run", "errors", run_id)):
        world.valk(*words)
    assert world.valk("run", "outputs", run_id, "--output-dir", "brought").code == 0
    world.note(sorted(str(path.relative_to(world.folder)) for path in (world.folder / "brought").rglob("*")))
    assert world.valk("run", "delete", run_id, "--yes").code == 0
    for name in ("evals", "brought"):
        shutil.rmtree(world.folder / name)


INGEST_SCENES = (runs_of_runners, results_of_evals)
