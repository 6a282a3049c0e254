"""Whole runs in containers: the quickstart, a task with a Dockerfile, an executor that dies."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.docker_engine import IMAGE, PrivateEngine
from tests.integration.conftest import tracker, until
from tests.integration.test_steps import written
from valkyrie.errors import UserError
from valkyrie.executor.client import ExecutorClient
from valkyrie.store.layout import DataFolder
from valkyrie.tracker.local import LocalTracker
from valkyrie.views import RunRequest, StopRequest

__all__ = ["tracker"]
pytestmark = pytest.mark.slow

TRIALS = 8


@pytest.mark.parametrize(("agent", "score"), [("oracle", 1.0), ("nop", 0.0)])
def test_the_quickstart(tracker: LocalTracker, engine: PrivateEngine, agent: str, score: float) -> None:
    request = RunRequest(agent=agent, benchmark="quickstart", provider="docker", concurrency=6)
    run = tracker.wait(tracker.start(request).run.id, timeout=280)
    assert (run.state, run.score.final_score, run.score.graded) == ("FINISHED", score, 12), run.error
    assert engine.docker("ps", "-aq") == ""


def with_dockerfile(root: Path) -> Path:
    task = root / "tasks" / "built"
    for name in ("environment", "tests", "solution"):
        (task / name).mkdir(parents=True)
    (task / "task.toml").write_text('[environment]\nnetwork_mode = "no-network"\n')
    (task / "instruction.md").write_text("Answer.")
    (task / "environment" / "Dockerfile").write_text(
        f"FROM {IMAGE}\nWORKDIR /exam\nCOPY question.txt .\n"
        "RUN cat /proc/sys/kernel/random/uuid > /exam/built-as\n"
    )
    (task / "environment" / "question.txt").write_text("6 * 7")
    (task / "solution" / "solve.sh").write_text("cat built-as > answer; cat question.txt >> answer\n")
    (task / "tests" / "test.sh").write_text(
        'cat answer; if [ "$(tail -1 answer)" = "6 * 7" ] && [ "$PWD" = /exam ]; then\n'
        "  echo 1 > /logs/verifier/reward.txt; else echo 0 > /logs/verifier/reward.txt; fi\n"
    )
    return task.parent


def test_a_dockerfile_is_built_once_for_many_trials(
    tracker: LocalTracker, engine: PrivateEngine, tmp_path: Path
) -> None:
    tasks = with_dockerfile(tmp_path)
    request = RunRequest(
        agent="oracle", benchmark=str(tasks), provider="docker", trials=TRIALS, concurrency=TRIALS
    )
    run = tracker.wait(tracker.start(request).run.id, timeout=280)
    assert (run.state, run.score.final_score, run.score.graded) == ("FINISHED", 1.0, TRIALS), run.error
    built = engine.docker("images", "-q", "--filter", "label=valkyrie.kind=build").split()
    assert len(built) == 1
    logs = list((tmp_path / "home" / "sandboxes" / "docker" / "builds").glob("*.log"))
    assert len(logs) == 1
    assert logs[0].read_text().count("RUN cat") == 1
    engine.docker("image", "prune", "-af", "--filter", "label=valkyrie.kind=build")


def test_steps_in_one_container(tracker: LocalTracker, engine: PrivateEngine, tmp_path: Path) -> None:
    tasks = written(tmp_path / "tasks")
    request = RunRequest(agent="oracle", benchmark=str(tasks), provider="docker")
    run = tracker.wait(tracker.start(request).run.id, timeout=110)
    rewards = {task: one["score"] for task, one in tracker.results(run.id)["evaluation_results"].items()}
    assert rewards == {"mean": 0.75, "final": 0.5}
    assert engine.docker("ps", "-aq") == ""


def test_what_a_killed_executor_left_is_reaped(
    tracker: LocalTracker, engine: PrivateEngine, tmp_path: Path
) -> None:
    tasks = with_dockerfile(tmp_path)
    (tasks / "built" / "solution" / "solve.sh").write_text("sleep 60\n")
    request = RunRequest(agent="oracle", benchmark=str(tasks), provider="docker", trials=2, concurrency=2)
    run = tracker.start(request).run
    until(lambda: tracker.fetch(run.id).counts["IN_PROGRESS"] == 2, timeout=60)
    before = engine.docker("ps", "-q").split()
    assert len(before) == 2
    client = ExecutorClient(DataFolder(tmp_path / "home"))
    status = client.status()
    assert status is not None
    os.kill(status["pid"], signal.SIGKILL)
    until(lambda: client.status() is None)
    tracker.resume(run.id)
    until(lambda: tracker.fetch(run.id).counts["IN_PROGRESS"] == 2, timeout=60)
    assert not set(before) & set(engine.docker("ps", "-aq").split())
    tracker.stop(run.id, StopRequest(force=True))
    tracker.wait(run.id, timeout=60)
    until(lambda: engine.left() == [], timeout=60)
    engine.docker("image", "prune", "-af", "--filter", "label=valkyrie.kind=build")


def test_without_an_engine_nothing_starts(tracker: LocalTracker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///no/such/socket")
    request = RunRequest(agent="nop", benchmark="quickstart", provider="docker")
    with pytest.raises(UserError, match=r"/no/such/socket.*setup-system --docker"):
        tracker.start(request)
