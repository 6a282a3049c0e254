"""kill -9 while work is carried, graded in a fresh sandbox, or controlled: graded once, by the agent's first
work, with nothing left behind."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.crash.conftest import Home, assert_nothing_left
from valkyrie.tracker.local import LocalTracker
from valkyrie.views import RunRequest

TOML = """
[environment]
network_mode = "no-network"
[verifier]
environment_mode = "fresh"
[verifier.env]
HOLD = "${VERIFY_HOLD:-}"
"""
REWARD = "/logs/verifier/reward.txt"
# What a host's variable holds is in no log: the name of the part is written otherwise.
HOLD = 'hold() { echo "at part $1"; [ "$HOLD" != "hold-$1" ] || exec sleep 600; }\n'
FILES = {
    "task.toml": TOML,
    "instruction.md": "Say when.",
    # What the agent makes is never the same twice: a second run of it would show.
    "solution/solve.sh": "echo the agent works; date +%N > stamp; head -c 3000000 /dev/urandom > large",
}
GRADED = HOLD + f"hold grading; [ -s stamp ] && [ -s large ] && cp stamp /logs/verifier/ && echo 1 > {REWARD}"
BROKEN = HOLD + f"if [ -e stamp ]; then hold broken; exit 3; fi; hold control; echo 0 > {REWARD}"


def lay_out(folder: Path, tests: str) -> str:
    for name, text in {**FILES, "tests/test.sh": tests}.items():
        (folder / "task" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "task" / name).write_text(text)
    return str(folder)


def kill_at(home: Home, tracker: LocalTracker, run_id: str, number: int, part: str) -> None:
    """Kill the executor when the tests have come to this part of the attempt."""
    deadline = time.monotonic() + 60
    while True:
        attempts = tracker.attempts(run_id, "task")
        log = attempts[-1].log if len(attempts) == number else None
        if log and Path(log).exists() and f"at part {part}\n" in Path(log).read_text():
            break
        assert time.monotonic() < deadline, (number, part, attempts)
        time.sleep(0.02)
    status = home.executor.status()
    assert status is not None
    os.kill(status["pid"], signal.SIGKILL)


def test_killed_while_grading_in_a_fresh_sandbox(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = lay_out(tmp_path / "tasks", GRADED)
    tracker = home.tracker()
    monkeypatch.setenv("VERIFY_HOLD", "hold-grading")
    run_id = tracker.start(
        RunRequest(agent="oracle", benchmark=tasks, provider="local", pass_env=("VERIFY_HOLD",))
    ).run.id
    kill_at(home, tracker, run_id, 1, "grading")
    tracker.resume(run_id)
    kill_at(home, tracker, run_id, 2, "grading")
    monkeypatch.setenv("VERIFY_HOLD", "")
    tracker.resume(run_id)
    run = tracker.wait(run_id, timeout=100)
    assert (run.state, run.score.final_score, run.score.score_confirmed) == ("FINISHED", 1.0, 1.0)
    attempts = tracker.attempts(run_id, "task")
    assert [attempt.outcome for attempt in attempts] == ["lost", "lost", "graded"]
    logs = [Path(attempt.log or "").read_text() for attempt in attempts]
    assert ["the agent works" in log for log in logs] == [True, False, False]
    tracker.close()
    assert_nothing_left(home)


def test_killed_while_a_control_runs(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = lay_out(tmp_path / "tasks", BROKEN)
    tracker = home.tracker()
    monkeypatch.setenv("VERIFY_HOLD", "hold-control")
    run_id = tracker.start(
        RunRequest(agent="oracle", benchmark=tasks, provider="local", pass_env=("VERIFY_HOLD",))
    ).run.id
    kill_at(home, tracker, run_id, 1, "control")
    monkeypatch.setenv("VERIFY_HOLD", "")
    tracker.resume(run_id)
    run = tracker.wait(run_id, timeout=100)
    assert (run.state, run.score.final_score, run.counts["FINISHED"]) == ("FINISHED", 0.0, 1)
    attempts = tracker.attempts(run_id, "task")
    assert [attempt.outcome for attempt in attempts] == ["lost", "graded"]
    assert attempts[-1].cause == "grader_broken_by_work"
    tracker.close()
    assert_nothing_left(home)


def test_killed_as_soon_as_grading_begins(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somewhere in packing, keeping, committing, unpacking: wherever that is, the trial is graded once."""
    monkeypatch.setenv("VERIFY_HOLD", "")
    tasks = lay_out(tmp_path / "tasks", GRADED)
    tracker = home.tracker()
    run_id = tracker.start(
        RunRequest(agent="oracle", benchmark=tasks, provider="local", pass_env=("VERIFY_HOLD",), trials=6)
    ).run.id
    for _ in range(4):
        deadline = time.monotonic() + 60
        while (seen := tracker.fetch(run_id)).state == "IN_PROGRESS" and not seen.counts["EVALUATING"]:
            assert time.monotonic() < deadline, seen.counts
        if seen.state != "IN_PROGRESS":
            break
        if (status := home.executor.status()) is not None:
            os.kill(status["pid"], signal.SIGKILL)
        tracker.resume(run_id)
    run = tracker.wait(run_id, timeout=100)
    assert (run.state, run.score.final_score, run.counts["FINISHED"]) == ("FINISHED", 1.0, 6)
    for k in range(6):
        ends = [attempt.outcome for attempt in tracker.attempts(run_id, "task", k)]
        assert ends[-1] == "graded" and set(ends[:-1]) <= {"lost"}, ends
    tracker.close()
    assert_nothing_left(home)
