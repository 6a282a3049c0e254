"""A job that stops when it is decided, under kill -9: the same decision as its twin that nobody disturbed."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.crash.conftest import Home
from tests.crash.test_crash import ROUNDS, SEED
from tests.integration.duel import AGENT, BENCHMARK
from valkyrie.store.upkeep import LOOKS
from valkyrie.tracker.local import LocalTracker
from valkyrie.views import RunRequest, TrialFilter
from valkyrie.views.jobs import JobAgent, JobRequest, JobView

ROOT = Path(__file__).parents[2]
REQUEST = JobRequest(
    [JobAgent(AGENT, "0.4"), JobAgent(AGENT, "0.7"), JobAgent(AGENT, "0.55")],
    RunRequest(agent="", benchmark=BENCHMARK, dataset="200x0.02", provider="null"),
    concurrency=6,
    stop_when_decided=True,
)

pytestmark = pytest.mark.timeout(0 if ROUNDS > 10 else 600)


@pytest.fixture
def homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Home]]:
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}:{ROOT}")
    monkeypatch.setenv("VALKYRIE_EXECUTOR_IDLE_S", "60")
    made = [Home(tmp_path / "quiet"), Home(tmp_path / "disturbed")]
    yield made
    for home in made:
        home.end_executor()


def found(tracker: LocalTracker, job: JobView) -> dict[str, Any]:
    """What was decided, and which tasks count for it."""
    assert job.state == "completed"
    assert job.decision is not None
    with tracker.store.reading() as connection:
        assert [said for look in LOOKS for said in look(connection)] == []
    counted = {}
    for run in job.runs:
        trials = tracker.trials(run.id, TrialFilter(limit=5000))[0]
        counted[run.model] = [(one.task_id, one.score) for one in trials if one.state == "FINISHED"]
        assert {one.state for one in trials} <= {"FINISHED", "SKIPPED"}
    models = {run.id: run.model for run in job.runs}
    pairs = [
        (models[one["a_run"]], models[one["b_run"]], one["outcome"], one["tasks"], one["interval"])
        for one in job.decision["pairs"]
    ]
    return {"pairs": sorted(pairs), "counted": counted, "scores": [run.score.final_score for run in job.runs]}


def test_kills_do_not_change_the_decision(homes: list[Home]) -> None:
    quiet, disturbed = homes
    tracker = quiet.tracker()
    started = tracker.start_job(REQUEST, key="twin").job
    expected = found(tracker, [*tracker.follow_job(started.id)][-1])
    tracker.close()

    rng = random.Random(SEED + 11)
    tracker = disturbed.tracker()
    job_id = tracker.start_job(REQUEST, key="twin").job.id
    assert job_id == started.id  # the order of tasks follows from it
    ends = sorted(rng.sample(range(1, 3 * len(expected["counted"]["0.7"])), max(2, ROUNDS // 5)))
    kills = 0
    for job in tracker.follow_job(job_id, interval=0.02):
        done = sum(run.counts["FINISHED"] for run in job.runs)
        decided = job.decision is not None and kills < 100
        if not job.ended and (decided or (ends and done >= ends[0])):
            ends = [] if decided else [one for one in ends if one > done]
            kills = 100 if decided else kills + 1  # once right after the first decision was committed
            status = disturbed.executor.status()
            if status is not None:
                os.kill(status["pid"], signal.SIGKILL)
            tracker.resume_job(job_id)
    tracker.resume_job(job_id)
    assert found(tracker, [*tracker.follow_job(job_id)][-1]) == expected
    tracker.close()
    assert kills
