"""An eval under fire: kill -9 of the command at random instants, then --resume: the report is the same."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from tests.crash.conftest import Home, assert_nothing_left
from tests.crash.test_crash import ROUNDS, SEED
from tests.integration.evals.serving import serving
from valkyrie.store.schema import attempt
from valkyrie.testing.model_server import Fault, Script, ToolRequest

STIMULI, RUNS = 100, 2
JUDGED = 25
KEY = "the-judge-key-of-this-machine"
KILLS = min(6, max(2, ROUNDS // 2))

pytestmark = pytest.mark.timeout(0 if ROUNDS > 10 else 600)


def write_spec(folder: Path) -> Path:
    """Half of the stimuli pass; every trial sets up, and is graded by a program, in a real sandbox."""
    stimuli = [
        {
            "name": f"s{number:03d}",
            "prompt": f"number {number}",
            "environment": {"commands": ["echo ready > ready.txt"]},
            "graders": [
                {"type": "output-matches", "config": {"pattern": "number \\d*[02468]$"}},
                {"type": "run-command", "config": {"command": "grep -q ready ready.txt"}},
                {"type": "file-exists", "config": {"path": "ready.txt"}},
            ],
        }
        for number in range(STIMULI)
    ]
    document = {"name": "fire", "defaults": {"executor": "mock", "runs": RUNS}, "stimuli": stimuli}
    path = folder / "eval.yaml"
    path.write_text(json.dumps(document))
    return path


def command(home: Home, folder: Path, *words: str) -> subprocess.Popen[bytes]:
    with (folder / "said.txt").open("ab") as said:
        return subprocess.Popen(
            [sys.executable, "-m", "valkyrie", "eval", *words],
            cwd=folder,
            env={**os.environ, "VALKYRIE_HOME": str(home.root)},
            stdout=said,
            stderr=subprocess.STDOUT,
        )


def verdicts(folder: Path) -> list[Any]:
    lines = (folder / "results.jsonl").read_text().splitlines()
    keys = ("stimulus", "trialIndex", "status", "model")
    found = [json.loads(line) for line in lines]
    return [
        [*(one.get(key) for key in keys), one["gradeResult"]["score"], one["gradeResult"]["details"]]
        for one in found
    ]


def report(folder: Path) -> str:
    """The report without times, ids, how often something was tried, and where it was written."""
    text = (folder / "eval-results.md").read_text().replace(f"--output-dir {folder.parent.name}", "")
    return re.sub(r"\d+(\.\d+)? ?m?s\b|[0-9a-f]{8}-[0-9a-f-]{27}|\d{4}-\d\d-\d\dT[\dZ:.-]+", "~", text)


def test_kill_9_and_resume_give_the_same_report(home: Home, tmp_path: Path) -> None:
    rng = random.Random(f"{SEED} eval")
    write_spec(tmp_path)
    common = ("--workers", "6", "--name", "fire")
    undisturbed = command(home, tmp_path, "-e", "eval.yaml", "--output-dir", "calm", *common)
    assert undisturbed.wait(180) == 1, (tmp_path / "said.txt").read_text()[-2000:]
    words = ("-e", "eval.yaml", "--output-dir", "fire", *common)
    for _ in range(KILLS):
        process = command(home, tmp_path, *words)
        time.sleep(rng.uniform(0.6, 4.0))
        process.send_signal(signal.SIGKILL)
        process.wait(60)
        if (tmp_path / "fire").exists() and any((tmp_path / "fire").glob("*/eval.json")):
            words = ("--resume",)
    last = command(home, tmp_path, *words)
    assert last.wait(180) == 1, (tmp_path / "said.txt").read_text()[-2000:]
    calm = next((tmp_path / "calm").iterdir())
    burnt = next(path for path in (tmp_path / "fire").iterdir() if (path / "results.jsonl").exists())
    assert verdicts(burnt) == verdicts(calm)
    assert len(verdicts(burnt)) == STIMULI * RUNS
    assert report(burnt) == report(calm)
    assert_nothing_left(home)


def write_judged(folder: Path) -> None:
    """Every trial is graded by a program first, and by a judge when what that found is safe."""
    stimuli = [
        {
            "name": f"s{number:02d}",
            "prompt": f"number {number}",
            "environment": {"commands": ["echo ready > ready.txt"]},
            "graders": [
                {"type": "run-command", "config": {"command": "grep -q ready ready.txt"}},
                {"type": "diff-empty"},
                {"type": "prompt", "config": {"prompt": "Is it?", "evidence": ["diff", "trajectory"]}},
            ],
        }
        for number in range(JUDGED)
    ]
    document = {"name": "judged", "defaults": {"executor": "mock", "runs": RUNS}, "stimuli": stimuli}
    (folder / "eval.yaml").write_text(json.dumps(document))


def test_kill_9_around_judges_grades_every_trial_once(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VALKYRIE_JUDGE_API_KEY", KEY)
    rng = random.Random(f"{SEED} judged")
    write_judged(tmp_path)
    answer = {"rubric_scores": [], "overall_score": 5, "overall_reasoning": "so it seems"}
    with serving(Script.of(Fault("server_error", every=5), ToolRequest("submit_grade", answer))) as server:
        words = ("-e", "eval.yaml", "--judge-model", "openai/judge", "--judge-url", server.url)
        for _ in range(KILLS):
            process = command(home, tmp_path, *words)
            time.sleep(rng.uniform(0.8, 2.5))
            process.send_signal(signal.SIGKILL)
            process.wait(60)
            if any((tmp_path / "vally-results").glob("*/eval.json")):
                words = ("--resume",)
        last = command(home, tmp_path, *words)
        assert last.wait(180) == 0, (tmp_path / "said.txt").read_text()[-2000:]
    (results,) = (tmp_path / "vally-results").glob("*/results.jsonl")
    assert len(verdicts(results.parent)) == JUDGED * RUNS
    tracker = home.tracker()
    with tracker.store.reading() as connection:
        outcomes = list(connection.execute(select(attempt.c.outcome)).scalars())
    tracker.close()
    assert outcomes.count("graded") == JUDGED * RUNS
    assert set(outcomes) <= {"graded", "lost", "failed"}
    kept = (path for path in tmp_path.rglob("*") if path.is_file())
    assert [path for path in kept if KEY.encode() in path.read_bytes()] == []
    assert_nothing_left(home)
