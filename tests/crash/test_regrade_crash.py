"""kill -9 while kept work is graded again: resume gives the same result as an undisturbed regrade."""

from __future__ import annotations

import os
import random
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.crash.conftest import Home, assert_nothing_left
from tests.crash.test_crash import ROUNDS, SEED
from valkyrie.store import regrades
from valkyrie.store.upkeep import LOOKS
from valkyrie.tracker.local import LocalTracker
from valkyrie.views import RegradeRequest, RunRequest, RunView

TASKS = ("one", "two", "three")
TOML = """
[environment]
network_mode = "no-network"
[environment.env]
HOLD = "${REGRADE_HOLD:-}"
"""
# What a host's variable holds is in no log: the word that is looked for is written in two parts.
TEST = """
echo "tests" "begin"
[ "$HOLD" != "wait" ] || exec sleep 600
grep -q WANTED /app/out.txt && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt
"""


def write_tasks(folder: Path, **wanted: str) -> str:
    for name in TASKS:
        files = {
            "task.toml": TOML,
            "instruction.md": "Write your name.",
            "solution/solve.sh": f"echo {name} > /app/out.txt",
            "tests/test.sh": TEST.replace("WANTED", wanted.get(name, name)),
        }
        for path, text in files.items():
            (folder / name / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / name / path).write_text(text)
    return str(folder)


def test_killed_while_kept_work_is_graded_again(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A run is handed again the variables that it was handed first.
    monkeypatch.setenv("REGRADE_HOLD", "go")
    tracker = home.tracker()
    run_id = tracker.start(
        RunRequest(
            agent="oracle",
            benchmark=write_tasks(tmp_path / "tasks"),
            provider="local",
            pass_env=("REGRADE_HOLD",),
            concurrency=2,
        )
    ).run.id
    first = tracker.wait(run_id, timeout=100)
    archives = kept(first)
    request = RegradeRequest(tests=write_tasks(tmp_path / "new", two="other"))
    for kill in range(2):
        monkeypatch.setenv("REGRADE_HOLD", "wait")
        if kill:
            tracker.resume(run_id)
        else:
            tracker.regrade(run_id, request)
        wait_until_tests_run(tracker, run_id)
        status = home.executor.status()
        assert status is not None
        os.kill(status["pid"], signal.SIGKILL)
        # The tests as they were frozen are used, whatever becomes of the folder.
        write_tasks(tmp_path / "new", one="other", three="other")
    monkeypatch.setenv("REGRADE_HOLD", "go")
    tracker.resume(run_id)
    again = tracker.wait(run_id, timeout=100)
    assert (again.state, again.score.passed, again.score.final_score) == ("FINISHED", 2, pytest.approx(2 / 3))
    compared = tracker.compare_gradings(run_id, 0, 1)
    assert [(one.task_id, one.kind) for one in compared.changes] == [("two", "now fails")]
    for name in TASKS:
        outcomes = [attempt.outcome for attempt in tracker.attempts(run_id, name)]
        assert outcomes[0] == outcomes[-1] == "graded"
        assert set(outcomes[1:-1]) <= {"lost"}
    assert kept(again) == archives
    assert tracker.use_grading(run_id, 0).score == first.score
    with tracker.store.reading() as connection:
        assert [text for look in LOOKS for text in look(connection)] == []
    tracker.close()
    assert_nothing_left(home)


def kept(run: RunView) -> list[str]:
    return sorted(path.name for path in Path(run.folder, "work").iterdir())


def wait_until_tests_run(tracker: LocalTracker, run_id: str) -> None:
    """Wait until a trial's tests hold in its last attempt."""
    deadline = time.monotonic() + 60
    while True:
        for name in TASKS:
            last = tracker.attempts(run_id, name)[-1]
            log = Path(last.log) if last.outcome is None and last.log else None
            if log and log.exists() and "tests begin" in log.read_text():
                return
        assert time.monotonic() < deadline, tracker.fetch(run_id)
        time.sleep(0.02)


@pytest.mark.timeout(0 if ROUNDS > 10 else 600)
def test_killed_at_random_instants_of_a_regrade(home: Home) -> None:
    rng = random.Random(SEED + 2)
    print(f"CRASH_SEED={SEED}")
    tracker = home.tracker()
    run_id = tracker.start(replace(home.request(), trials=2)).run.id
    first = tracker.wait(run_id, timeout=200)
    tracker.regrade(run_id, RegradeRequest())
    for _ in range(ROUNDS):
        status = home.executor.ask("wake")
        assert status is not None
        time.sleep(rng.uniform(0.0, 2.0))
        if tracker.fetch(run_id).state != "IN_PROGRESS":
            break
        os.kill(status["pid"], signal.SIGKILL)
        tracker.resume(run_id)
    again = tracker.wait(run_id, timeout=200)
    assert (again.state, again.score) == ("FINISHED", first.score)
    with tracker.store.reading() as connection:
        assert [text for look in LOOKS for text in look(connection)] == []
        assert {one.grading for one in regrades.verdicts(connection, run_id, 1)} == {1}
    tracker.close()
    assert_nothing_left(home)
