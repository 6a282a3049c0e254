"""A job under fire: kill -9 of its executor, and of the command that makes it grow, at random instants."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time

import pytest

from tests.crash.conftest import Home, assert_nothing_left
from tests.crash.test_crash import ROUNDS, SEED
from valkyrie.tracker.local import LocalTracker
from valkyrie.views import RunRequest
from valkyrie.views.jobs import JobAgent, JobChange, JobRequest, JobView

TRIALS = 4
"""× 12 tasks × 2 agents = 96 trials."""
POOL = 6

pytestmark = pytest.mark.timeout(0 if ROUNDS > 10 else 600)


def start(tracker: LocalTracker) -> JobView:
    template = RunRequest(agent="", benchmark="quickstart", trials=TRIALS)
    agents = [JobAgent("oracle"), JobAgent("nop")]
    return tracker.start_job(JobRequest(agents, template, concurrency=POOL)).job


def finish(home: Home, job_id: str) -> JobView:
    tracker = home.tracker()
    try:
        tracker.resume_job(job_id)
        deadline = time.monotonic() + 200
        while not (view := tracker.fetch_job(job_id)).ended:
            assert time.monotonic() < deadline, f"the job did not end: {view}"
            time.sleep(0.1)
        return view
    finally:
        tracker.close()


def assert_right(home: Home, view: JobView, trials: int = TRIALS) -> None:
    """Every trial graded once, each agent's score what it always is."""
    assert view.state == "completed"
    for run in view.runs:
        assert (run.counts["FINISHED"], run.total) == (12 * trials, 12 * trials), run.agent
        assert run.score.final_score == (1.0 if run.agent == "oracle" else 0.0)
    tracker = home.tracker()
    try:
        from valkyrie.store.upkeep import LOOKS

        with tracker.store.reading() as connection:
            assert [said for look in LOOKS for said in look(connection)] == []
    finally:
        tracker.close()


def test_a_job_survives_kills_of_its_executor(home: Home) -> None:
    rng = random.Random(SEED + 7)
    print(f"CRASH_SEED={SEED}")
    tracker = home.tracker()
    job_id = start(tracker).id
    for _ in range(max(2, ROUNDS // 5)):
        status = home.executor.ask("wake")
        assert status is not None
        time.sleep(rng.uniform(0.0, 1.2))
        if tracker.fetch_job(job_id).ended:
            break
        os.kill(status["pid"], signal.SIGKILL)
        tracker.resume_job(job_id, JobChange(concurrency=rng.choice([3, POOL])))
    tracker.close()
    assert_right(home, finish(home, job_id))
    assert_nothing_left(home)


def test_a_job_grows_whole_or_not_at_all(home: Home) -> None:
    """Whatever instant the command dies at that adds an agent and trials: no run is added twice or half."""
    rng = random.Random(SEED + 8)
    tracker = home.tracker()
    template = RunRequest(agent="", benchmark="quickstart", trials=1)
    request = JobRequest([JobAgent("oracle")], template, concurrency=POOL, name="grows")
    job_id = tracker.start_job(request).job.id
    command = [
        sys.executable, "-m", "valkyrie", "job", "resume", job_id, "--agent", "nop", "--n-attempts", "2",
    ]  # fmt: skip
    environment = {**os.environ, "VALKYRIE_HOME": str(home.root)}
    for _ in range(max(2, ROUNDS // 10)):
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(rng.uniform(0.0, 1.5))
        process.kill()
        process.wait()
        found = tracker.fetch_job(job_id)
        assert [(run.agent, run.total) for run in found.runs] in (
            [("oracle", 12)],
            [("oracle", 24), ("nop", 24)],
        )
    tracker.resume_job(job_id, JobChange(agents=[JobAgent("nop")], trials=2))
    tracker.close()
    view = finish(home, job_id)
    assert [run.agent for run in view.runs] == ["oracle", "nop"]
    assert_right(home, view, trials=2)
    assert_nothing_left(home)
