"""kill -9 in parts of each step of a task that has several: the trial begins anew, and is graded once."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.crash.conftest import Home, assert_nothing_left
from valkyrie.tracker.local import LocalTracker
from valkyrie.views import RunRequest, StopRequest

TOML = """
[environment]
network_mode = "no-network"
[environment.env]
HOLD = "${STEPS_HOLD:-}"
[[steps]]
name = "plan"
[[steps]]
name = "build"
[[steps.verifier.collect]]
command = "/usr/bin/env bash /app/hold.sh build-collect"
"""
# What a host's variable holds is in no log: the name of the part is written in two words.
HOLD = 'echo "at ${1%-*} ${1#*-}"; [ "$HOLD" != "$1" ] || exec sleep 600\n'
REWARD = "/logs/verifier/reward.txt"
FILES = {
    "task.toml": TOML,
    "environment/hold.sh": HOLD,
    "steps/plan/instruction.md": "Plan.",
    "steps/plan/solution/solve.sh": "touch plan",
    "steps/plan/tests/test.sh": f"bash hold.sh plan-tests; [ -e build ] || echo 1 > {REWARD}",
    "steps/build/instruction.md": "Build.",
    "steps/build/solution/solve.sh": "bash hold.sh build-agent; [ -e plan ] && touch build",
    "steps/build/tests/test.sh": f"bash hold.sh build-tests; [ -e build ] && echo 0.5 > {REWARD}",
}
PARTS = ("plan-tests", "build-agent", "build-collect", "build-tests")


def test_killed_in_parts_of_both_steps(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in FILES.items():
        (tmp_path / "tasks/task" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tasks/task" / name).write_text(text)
    tracker = home.tracker()
    monkeypatch.setenv("STEPS_HOLD", PARTS[0])
    run_id = tracker.start(
        RunRequest(
            agent="oracle", benchmark=str(tmp_path / "tasks"), provider="local", pass_env=("STEPS_HOLD",)
        )
    ).run.id
    for number, part in enumerate(PARTS, 1):
        wait_until_it_holds(tracker, run_id, number, part)
        status = home.executor.status()
        assert status is not None
        if part == "build-agent":
            tracker.stop(run_id, StopRequest(force=True))
            assert tracker.wait(run_id, timeout=60).counts["STOPPED"] == 1
        os.kill(status["pid"], signal.SIGKILL)
        monkeypatch.setenv("STEPS_HOLD", PARTS[number] if number < len(PARTS) else "")
        tracker.resume(run_id)
    run = tracker.wait(run_id, timeout=100)
    assert (run.state, run.score.final_score, run.counts["FINISHED"]) == ("FINISHED", 0.75, 1)
    result = tracker.results(run_id)["evaluation_results"]["task"]
    assert [(step["name"], step["score"]) for step in result["steps"]] == [("plan", 1.0), ("build", 0.5)]
    ends = [attempt.outcome for attempt in tracker.attempts(run_id, "task")]
    assert ends == ["lost", "stopped", "lost", "lost", "graded"]
    tracker.close()
    assert_nothing_left(home)


def wait_until_it_holds(tracker: LocalTracker, run_id: str, number: int, part: str) -> None:
    deadline = time.monotonic() + 60
    while True:
        attempts = tracker.attempts(run_id, "task")
        log = attempts[-1].log if len(attempts) == number else None
        if log and Path(log).exists() and f"at {part.replace('-', ' ')}\n" in Path(log).read_text():
            return
        assert time.monotonic() < deadline, (number, part, attempts)
        time.sleep(0.02)
