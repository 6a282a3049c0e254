"""Service, executor and connection killed at random instants of a service run: graded once, answered once."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.abilities import need_local_sandboxes
from tests.crash.conftest import Home, assert_nothing_left
from tests.crash.killable_service import KillableService
from tests.crash.test_crash import ROUNDS, SEED
from valkyrie.domain import RunState
from valkyrie.tracker.local import LocalTracker
from valkyrie.views import RunRequest, RunView

FULL = ROUNDS > 10
TASKS = 60 if FULL else 12
KILLS = 15 if FULL else 3
CONTRACT = """\
name: dice
install_cmd: "true"
run_cmd: "echo the agent runs; od -An -N8 -tx8 /dev/urandom > answer.txt; : {problem_statement_path}"
final_output: /workspace/answer.txt
"""


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    folder = tmp_path / "dice"
    folder.mkdir()
    (folder / "contract.yaml").write_text(CONTRACT)
    return folder


@pytest.fixture(params=["text", "sandbox"] if FULL else ["text"])
def service(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KillableService]:
    need_local_sandboxes(tmp_path / "probe")
    made = KillableService(tmp_path, request.param, TASKS)
    yield made
    made.close()


@pytest.mark.timeout(0 if FULL else 600)
def test_killed_at_random_instants(
    home: Home, service: KillableService, agent: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("VALKYRIE_CONFIG_PATH", str(tmp_path / "config.yaml"))
    rng = random.Random(SEED + 7)
    print(f"CRASH_SEED={SEED}")
    tracker = home.tracker()
    wanted = RunRequest(agent=str(agent), benchmark=service.line.url, concurrency=8)
    run_id = tracker.start(wanted).run.id
    blows = [strike_executor, strike_service, strike_line]
    struck = 0
    for number in range(KILLS):
        time.sleep(rng.uniform(0.2, 2.0))
        if RunState(tracker.fetch(run_id).state).terminal:
            break
        blows[number % 3](home, service)
        struck += 1
        tracker.resume(run_id)
    run = finish(tracker, run_id)
    print(f"{struck} blows on a run of {TASKS} tasks, graded by {service.mode}")
    assert_every_task_was_graded_once(tracker, run, service)
    tracker.close()
    assert_nothing_left(home)


def strike_executor(home: Home, _: KillableService) -> None:
    status = home.executor.status()
    if status:
        os.kill(status["pid"], signal.SIGKILL)


def strike_service(_: Home, service: KillableService) -> None:
    service.kill()
    service.start()


def strike_line(_: Home, service: KillableService) -> None:
    service.line.cut()


def finish(tracker: LocalTracker, run_id: str) -> RunView:
    """Let the run end undisturbed; what the kills left in error is retried, as a person would."""
    run = tracker.wait(run_id, timeout=300)
    for _ in range(3):
        if run.counts["FINISHED"] == run.total and run.state == "FINISHED":
            break
        run = tracker.wait(tracker.retry(run_id).run.id, timeout=300)
    return run


def assert_every_task_was_graded_once(tracker: LocalTracker, run: RunView, service: KillableService) -> None:
    assert (run.state, run.counts["FINISHED"], run.score.final_score) == ("FINISHED", TASKS, 100.0), run.error
    results = tracker.results(run.id)["evaluation_results"]
    given = service.answers()
    assert len(results) == TASKS
    for task_id, result in results.items():
        attempts = tracker.attempts(run.id, task_id)
        outcomes = [one.outcome for one in attempts]
        assert outcomes[-1] == "graded" and set(outcomes[:-1]) <= {"lost", "failed"}, outcomes
        assert {one.category for one in attempts} <= {None, "infrastructure"}
        assert result["answer"] in given[task_id]
        logs = ["".join(tracker.logs(run.id, task_id, attempt=one.number)) for one in attempts if one.log]
        safe = next((number for number, log in enumerate(logs) if "checkpoint is safe" in log), len(logs))
        assert all("grading goes on" in log and "the agent runs" not in log for log in logs[safe + 1 :])
    if service.mode == "text":
        # An answer is safe before it is sent: the service never sees a second one for the same task.
        assert all(len(answers) == 1 for answers in given.values()), given
