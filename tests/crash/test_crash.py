"""kill -9 anywhere, then resume: the same score, nothing graded twice, nothing left behind.

`make test-all` runs a dozen rounds; `make crash ROUNDS=50` as many as asked for. A round is one kill.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.crash.conftest import Home, assert_nothing_left, assert_nothing_lost
from valkyrie.views import RunFilter

ROUNDS = int(os.environ.get("CRASH_ROUNDS", "3"))
SEED = int(os.environ.get("CRASH_SEED", "0")) or random.randrange(1, 1 << 30)


@pytest.mark.timeout(0 if ROUNDS > 10 else 600)
def test_executor_killed_at_random_instants(home: Home) -> None:
    rng = random.Random(SEED)
    print(f"CRASH_SEED={SEED}")
    kills, runs = 0, 0
    while kills < ROUNDS:
        tracker = home.tracker()
        run_id = tracker.start(home.request()).run.id
        runs += 1
        while kills < ROUNDS and tracker.fetch(run_id).state == "IN_PROGRESS":
            status = home.executor.ask("wake")
            assert status is not None
            time.sleep(rng.uniform(0.0, 1.2))
            if tracker.fetch(run_id).state != "IN_PROGRESS":
                break
            os.kill(status["pid"], signal.SIGKILL)
            kills += 1
            tracker.resume(run_id)
        tracker.close()
        assert_nothing_lost(home, home.finish(run_id))
    print(f"{kills} kills over {runs} runs of 60 trials")
    assert_nothing_left(home)


@pytest.mark.timeout(0 if ROUNDS > 10 else 600)
def test_cli_killed_at_random_instants(home: Home) -> None:
    """Whatever instant the CLI dies at, a run exists whole or not at all, and goes on."""
    rng = random.Random(SEED + 1)
    print(f"CRASH_SEED={SEED}")
    command = [
        sys.executable, "-m", "valkyrie", "run", "start", "--agent", "oracle", "--benchmark", "quickstart",
        "--trials", "5", "--concurrency", "6",
    ]  # fmt: skip
    environment = {**os.environ, "VALKYRIE_HOME": str(home.root)}
    for _ in range(max(1, ROUNDS // 5)):
        before = ids(home)
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(rng.uniform(0.0, 1.5))
        process.kill()
        process.wait()
        for run_id in ids(home) - before:
            assert_nothing_lost(home, home.finish(run_id))
    assert_nothing_left(home)


def ids(home: Home) -> set[str]:
    tracker = home.tracker()
    try:
        return {run.id for run in tracker.list(RunFilter(limit=1000)).runs}
    finally:
        tracker.close()


def test_the_score_survives_a_kill_while_it_is_written(home: Home) -> None:
    """All trials graded, the run not concluded: the next executor writes the score."""
    tracker = home.tracker()
    run_id = tracker.start(home.request()).run.id
    view = tracker.wait(run_id, timeout=120)
    status = home.executor.status()
    assert status is not None
    os.kill(status["pid"], signal.SIGKILL)
    with tracker.store.writing() as connection:
        from sqlalchemy import update

        from valkyrie.store.schema import run

        connection.execute(
            update(run).where(run.c.id == run_id).values(state="IN_PROGRESS", final_score=None)
        )
    tracker.close()
    again = home.finish(run_id)
    assert again.score == view.score
    assert_nothing_lost(home, again)
    assert Path(again.folder).exists()
