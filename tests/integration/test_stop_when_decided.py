"""Jobs that stop when they are decided, end to end: scripted agents, a real executor."""

from __future__ import annotations

import pytest

from tests.integration.duel import AGENT, BENCHMARK
from valkyrie.job_views import JobAgent, JobRequest, JobView
from valkyrie.store.audit import LOOKS
from valkyrie.tracker.local import LocalTracker
from valkyrie.views import RunRequest, TrialFilter, TrialView

TASKS = 300


def request(*models: str, trials: int = 1, **more: object) -> JobRequest:
    template = RunRequest(agent="", benchmark=BENCHMARK, dataset=str(TASKS), provider="null", trials=trials)
    agents = [JobAgent(AGENT, model) for model in models]
    return JobRequest(agents, template, concurrency=8, stop_when_decided=True, **more)  # type: ignore[arg-type]


def ended(tracker: LocalTracker, ref: str) -> JobView:
    return [*tracker.follow_job(ref)][-1]


def trials_of(tracker: LocalTracker, run_id: str) -> list[TrialView]:
    return list(tracker.trials(run_id, TrialFilter(limit=5000))[0])


def assert_books_right(tracker: LocalTracker) -> None:
    with tracker.store.reading() as connection:
        assert [said for look in LOOKS for said in look(connection)] == []


def test_a_job_stops_when_it_is_decided(tracker: LocalTracker) -> None:
    job = ended(tracker, tracker.start_job(request("0.45", "0.7"), key="decided").job.id)
    assert job.state == "completed"
    assert job.decision is not None
    (pair,) = job.decision["pairs"]
    assert pair["outcome"] == "b ahead"
    assert pair["tasks"] < 0.6 * TASKS
    assert pair["interval"][1] < 0
    for run in job.runs:
        trials = trials_of(tracker, run.id)
        counted = [trial for trial in trials if trial.state == "FINISHED"]
        skipped = [trial for trial in trials if trial.state == "SKIPPED"]
        assert trials == [*counted, *skipped]  # the first of the plan, on both sides
        assert len(counted) == pair["tasks"]
        assert {trial.cause for trial in skipped} == {"decided"}
        assert {trial.score for trial in skipped} == {None}
        assert (run.state, run.score.planned, run.score.ungraded) == ("FINISHED", len(counted), 0)
        passed = sum(trial.passed is True for trial in counted)
        assert run.score.final_score == pytest.approx(passed / len(counted))
        spared = job.decision["skipped"][run.id]
        assert spared["not_run"] + spared["set_aside"] == len(skipped)
        assert spared["saved_cost"] == pytest.approx(0.5 * spared["not_run"])
    a, b = (
        {one.task_id for one in trials_of(tracker, run.id) if one.state == "FINISHED"} for run in job.runs
    )
    assert a == b
    assert_books_right(tracker)
