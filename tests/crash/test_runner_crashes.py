"""A runner killed at random instants: every task generated and graded once, but for those in flight."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.crash.test_crash import ROUNDS, SEED
from tests.integration.benchmark_runner.runner_project import RunnerProject, live, sum_task, sums_app

TASKS = 60
PARALLELISM = 6
EVALUATIONS = 4
IN_FLIGHT = PARALLELISM + PARALLELISM + EVALUATIONS
"""At most so many answers are being made, waiting to be graded, or being graded."""

pytestmark = pytest.mark.timeout(0 if ROUNDS > 10 else 600)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunnerProject]:
    monkeypatch.setenv("QUIZ_JOURNAL", str(tmp_path / "journal"))
    monkeypatch.setenv("QUIZ_PAUSE", "0.08")
    for name in ("VALS_AUTH_KEY", "VALS_API_KEY", "BENCHMARK_API_KEY", "AUTH_REQUIRED", "SERVICE_URL"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "project").mkdir()
    with live(sums_app()) as service:
        made = RunnerProject(tmp_path / "project", service)
        tasks = [sum_task(n, "pause") for n in range(TASKS)]
        for task in tasks[::7]:
            task["says"] = "no idea"
        made.write_tasks(tasks)
        yield made


def start(project: RunnerProject, run_id: str) -> subprocess.Popen[str]:
    return project.start(
        *("run", "--model", "m1", "--run-id", run_id, "--service-url", project.service.url),
        *("--parallelism", str(PARALLELISM), "--eval-concurrency", str(EVALUATIONS)),
    )


def finish(project: RunnerProject, run_id: str) -> dict[str, Any]:
    process = start(project, run_id)
    output, errors = process.communicate(timeout=280)
    assert process.returncode == 0, (output, errors)
    return project.read("final_score.json", run_id=run_id)


def assert_whole(project: RunnerProject, run_id: str) -> None:
    """No file of the run is ever half written."""
    for path in (project.results / run_id).rglob("*.json"):
        if not path.name.startswith("."):
            assert isinstance(json.loads(path.read_bytes()), dict), path
    assert not list((project.results / run_id).rglob("*.unreadable"))


def test_killed_at_random_instants(project: RunnerProject) -> None:
    rng = random.Random(SEED + 9)
    print(f"CRASH_SEED={SEED}")
    quiet = finish(project, "quiet")
    assert quiet["metadata"]["correct"] == TASKS - len(range(0, TASKS, 7))
    kills = 0
    for number in range(max(1, ROUNDS // 3)):
        run_id = f"crashed-{number}"
        Path(os.environ["QUIZ_JOURNAL"]).unlink()
        project.service.forget()
        kills += crash_and_finish(project, run_id, rng, quiet)
    print(f"{kills} kills over runs of {TASKS} tasks")


def crash_and_finish(project: RunnerProject, run_id: str, rng: random.Random, quiet: dict[str, Any]) -> int:
    safe: set[str] = set()
    graded: set[str] = set()
    kills = 0
    for _ in range(min(ROUNDS, 5)):
        process = start(project, run_id)
        time.sleep(rng.uniform(0.2, 1.2))
        finished = process.poll() is not None
        process.send_signal(signal.SIGKILL)
        process.communicate()
        project.service.hear()
        assert_whole(project, run_id)
        safe = {path.parent.name for path in (project.results / run_id).glob("*/generation.json")}
        graded = {path.parent.name for path in (project.results / run_id).glob("*/eval.json")}
        if finished:
            break
        kills += 1
        generated, sent = Counter(project.journal()), Counter(project.service.graded())
        assert all(generated[task_id] <= kills for task_id in generated)
        assert sum(generated.values()) - len(safe) <= kills * PARALLELISM
        assert sum(sent.values()) - len(graded) <= kills * EVALUATIONS
        assert len(safe) - len(graded) <= IN_FLIGHT
    before, sent_before = Counter(project.journal()), Counter(project.service.graded())
    scored = finish(project, run_id)
    after, sent_after = Counter(project.journal()), Counter(project.service.graded())
    assert (after - before) == Counter(set(all_tasks()) - safe), "what has an answer is not generated again"
    assert (sent_after - sent_before) == Counter(set(all_tasks()) - graded)
    assert scored == quiet
    assert_whole(project, run_id)
    assert not list(project.results.rglob(".new-*"))
    return kills


def all_tasks() -> list[str]:
    return [f"sum-{n:03}" for n in range(TASKS)]
