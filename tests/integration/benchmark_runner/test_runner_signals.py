"""Signals and two processes at once: what a run leaves when it is stopped, and that it goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.benchmark_runner.runner_project import RunnerProject, sum_task


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


@contextmanager
def running(project: RunnerProject, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A run whose two tasks in flight wait at the gate."""
    project.write_tasks([sum_task(n, "wait" if n in (4, 5) else "") for n in range(12)])
    process = project.start("run", *COMMON, "--service-url", project.service.url, *words)
    try:
        until(lambda: "sum-005" in project.journal() and len([*project.results.glob("*/*/eval.json")]) == 4)
        yield process
    finally:
        process.kill()
        process.communicate()


COMMON = ("--model", "m1", "--run-id", "r1", "--parallelism", "2")


@pytest.fixture
def gate(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("QUIZ_GATE", str(place / "gate"))
    return place / "gate"


def heard(process: subprocess.Popen[str], number: int) -> None:
    """Send a signal and see it taken: the process says so."""
    os.kill(process.pid, number)
    assert process.stderr is not None
    assert "Finishing 2 tasks in flight; Ctrl+C again leaves them." in process.stderr.readline()


def finish(project: RunnerProject, gate: Path, generated: int) -> str:
    gate.touch()
    before = len(project.journal())
    said = project.run("--parallelism", "2")
    assert len(project.journal()) - before == generated
    assert sorted(set(project.journal())) == [f"sum-{n:03}" for n in range(12)]
    assert sorted(project.service.graded()) == [f"sum-{n:03}" for n in range(12)]
    assert "Done: 12/12 evaluated, 0 eval errors.\nFinal score: 100" in said
    assert not list(project.root.rglob(".new-*"))
    return said


def test_one_interrupt_finishes_what_is_in_flight(sums: RunnerProject, gate: Path) -> None:
    with running(sums) as process:
        heard(process, signal.SIGINT)
        gate.touch()
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "Stopped: 6/12 tasks done. Give the same command to go on." in output
    assert "Traceback" not in errors
    assert len(sums.service.graded()) == 6
    assert "Resuming r1: 12 tasks\nProcessing 6/12 tasks" in finish(sums, gate, generated=6)


def test_a_second_interrupt_leaves_what_is_in_flight(sums: RunnerProject, gate: Path) -> None:
    with running(sums) as process:
        heard(process, signal.SIGINT)
        os.kill(process.pid, signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "Stopped: 4/12 tasks done." in output and "Traceback" not in errors
    assert "Processing 8/12 tasks" in finish(sums, gate, generated=8)


def test_being_asked_to_end(sums: RunnerProject, gate: Path) -> None:
    with running(sums, "--json") as process:
        os.kill(process.pid, signal.SIGTERM)
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 143, errors
    assert '"exit_code": 143' in output and '"not_generated": ["sum-004", ' in output
    assert "Traceback" not in errors
    assert "Processing 8/12 tasks" in finish(sums, gate, generated=8)


def test_two_processes_do_not_work_on_one_run(sums: RunnerProject, gate: Path) -> None:
    with running(sums) as process:
        for said in (sums.run(code=1), sums.evaluate(code=1), sums.score("--force", code=1)):
            assert "Another process is working on run r1 (results/r1)." in said
            assert "Wait for it or stop it, or choose another --run-id." in said
        assert "Final score: 100" in sums.run("sum-001", run_id="r2")
        gate.touch()
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "Final score: 100" in output
    assert "cached" in sums.score()
