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
from tests.integration.benchmark_runner.runner_world import Desk, live, sum_task, sums_app

TASKS = 60
PARALLELISM = 6
EVALUATIONS = 4
IN_FLIGHT = PARALLELISM + PARALLELISM + EVALUATIONS
"""At most so many answers are being made, waiting to be graded, or being graded."""

pytestmark = pytest.mark.timeout(0 if ROUNDS > 10 else 600)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    monkeypatch.setenv("QUIZ_JOURNAL", str(tmp_path / "journal"))
    monkeypatch.setenv("QUIZ_PAUSE", "0.08")
    for name in ("VALS_AUTH_KEY", "VALS_API_KEY", "BENCHMARK_API_KEY", "AUTH_REQUIRED", "SERVICE_URL"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "desk").mkdir()
    with live(sums_app()) as service:
        made = Desk(tmp_path / "desk", service)
        tasks = [sum_task(n, "pause") for n in range(TASKS)]
        for task in tasks[::7]:
            task["says"] = "no idea"
        made.write_tasks(tasks)
        yield made


def start(desk: Desk, run_id: str) -> subprocess.Popen[str]:
    return desk.start(
        *("run", "--model", "m1", "--run-id", run_id, "--service-url", desk.service.url),
        *("--parallelism", str(PARALLELISM), "--eval-concurrency", str(EVALUATIONS)),
    )


def finish(desk: Desk, run_id: str) -> dict[str, Any]:
    process = start(desk, run_id)
    output, errors = process.communicate(timeout=280)
    assert process.returncode == 0, (output, errors)
    return desk.read("final_score.json", run_id=run_id)


def assert_whole(desk: Desk, run_id: str) -> None:
    """No file of the run is ever half written."""
    for path in (desk.results / run_id).rglob("*.json"):
        if not path.name.startswith("."):
            assert isinstance(json.loads(path.read_bytes()), dict), path
    assert not list((desk.results / run_id).rglob("*.unreadable"))


def test_killed_at_random_instants(desk: Desk) -> None:
    rng = random.Random(SEED + 9)
    print(f"CRASH_SEED={SEED}")
    quiet = finish(desk, "quiet")
    assert quiet["metadata"]["correct"] == TASKS - len(range(0, TASKS, 7))
    kills = 0
    for number in range(max(1, ROUNDS // 3)):
        run_id = f"crashed-{number}"
        Path(os.environ["QUIZ_JOURNAL"]).unlink()
        desk.service.forget()
        kills += crash_and_finish(desk, run_id, rng, quiet)
    print(f"{kills} kills over runs of {TASKS} tasks")


def crash_and_finish(desk: Desk, run_id: str, rng: random.Random, quiet: dict[str, Any]) -> int:
    safe: set[str] = set()
    graded: set[str] = set()
    kills = 0
    for _ in range(min(ROUNDS, 5)):
        process = start(desk, run_id)
        time.sleep(rng.uniform(0.2, 1.2))
        finished = process.poll() is not None
        process.send_signal(signal.SIGKILL)
        process.communicate()
        desk.service.hear()
        assert_whole(desk, run_id)
        safe = {path.parent.name for path in (desk.results / run_id).glob("*/generation.json")}
        graded = {path.parent.name for path in (desk.results / run_id).glob("*/eval.json")}
        if finished:
            break
        kills += 1
        generated, sent = Counter(desk.journal()), Counter(desk.service.graded())
        assert all(generated[task_id] <= kills for task_id in generated)
        assert sum(generated.values()) - len(safe) <= kills * PARALLELISM
        assert sum(sent.values()) - len(graded) <= kills * EVALUATIONS
        assert len(safe) - len(graded) <= IN_FLIGHT
    before, sent_before = Counter(desk.journal()), Counter(desk.service.graded())
    scored = finish(desk, run_id)
    after, sent_after = Counter(desk.journal()), Counter(desk.service.graded())
    assert (after - before) == Counter(set(all_tasks()) - safe), "what has an answer is not generated again"
    assert (sent_after - sent_before) == Counter(set(all_tasks()) - graded)
    assert scored == quiet
    assert_whole(desk, run_id)
    assert not list(desk.results.rglob(".new-*"))
    return kills


def all_tasks() -> list[str]:
    return [f"sum-{n:03}" for n in range(TASKS)]
