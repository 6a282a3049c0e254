"""Jobs that stop when they are decided, end to end: scripted agents, a real executor."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.integration.duel import AGENT, BENCHMARK
from valkyrie.compare.job_documents import job_document
from valkyrie.compare.job_sides import decision_lines
from valkyrie.compare.summary import sentence
from valkyrie.compare.tables import summarised
from valkyrie.errors import UsageError, ValkyrieError
from valkyrie.store.upkeep import LOOKS
from valkyrie.tracker.local import LocalTracker
from valkyrie.views import RunRequest, TrialFilter, TrialView
from valkyrie.views.jobs import JobAgent, JobChange, JobRequest, JobView

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


def test_the_quick_agent_waits_for_the_slow_one(tracker: LocalTracker) -> None:
    asked = request("0.3-slow", "0.8")
    asked = replace(asked, template=replace(asked.template, dataset=f"{TASKS}x0.002"))
    job = ended(tracker, tracker.start_job(asked, key="slow").job.id)
    assert job.decision is not None
    (pair,) = job.decision["pairs"]
    for run in job.runs:
        begun = sum(trial.attempts > 0 for trial in trials_of(tracker, run.id))
        # What ends between two looks may be ahead of what decides, and what begins then ahead of that.
        assert begun <= pair["tasks"] + 3 * asked.concurrency < TASKS


@pytest.mark.slow
def test_a_margin_decides_that_agents_are_alike(tracker: LocalTracker) -> None:
    asked = request("0.95", "0.950", margin=0.2)
    job = ended(tracker, tracker.start_job(asked, key="alike").job.id)
    assert job.decision is not None
    (pair,) = job.decision["pairs"]
    assert pair["outcome"] == "no further apart"
    assert pair["tasks"] < TASKS
    said = summarised(job, {run.id: trials_of(tracker, run.id) for run in job.runs}).comparisons[0]
    assert (said.verdict, said.tasks) == ("same", pair["tasks"])
    assert "are no further apart than 20.0 points" in sentence(said)


@pytest.mark.slow
def test_families_are_what_is_decided_on(tracker: LocalTracker) -> None:
    asked = request("0.2", "0.9")
    asked = replace(asked, template=replace(asked.template, family="repository"))
    job = ended(tracker, tracker.start_job(asked, key="families").job.id)
    assert job.decision is not None
    (pair,) = job.decision["pairs"]
    assert pair["tasks"] == 10 * pair["families"] < TASKS
    for run in job.runs:
        counted = [one for one in trials_of(tracker, run.id) if one.state == "FINISHED"]
        assert len({one.family for one in counted}) == pair["families"]
    with pytest.raises(ValkyrieError, match="no task has that key"):
        tracker.start_job(replace(asked, template=replace(asked.template, family="repo")))


@pytest.mark.slow
def test_the_summary_says_what_was_decided_and_saved(tracker: LocalTracker) -> None:
    job = ended(tracker, tracker.start_job(request("0.45", "0.7"), key="decided").job.id)
    document = job_document(job, {run.id: trials_of(tracker, run.id) for run in job.runs})
    spared = document["decision"]["trials_not_run"]
    assert document["decision"]["saved_cost"] == pytest.approx(0.5 * spared)
    outcomes = document["benchmark_outcomes"][0]
    skipped = [one for one in outcomes["scenario_outcomes"] if one["state"] == "SKIPPED"]
    assert (len(skipped), outcomes["n_canceled"]) == (outcomes["n_skipped"], 0)
    assert {one["skip_reason"] for one in skipped} == {"decided"}
    assert decision_lines(job)[0].startswith(f"Decided: {spared} trials not run, about $")
    found = summarised(job, {run.id: trials_of(tracker, run.id) for run in job.runs})
    assert sentence(found.comparisons[0]).startswith("Decided, whenever you look: duel:0.7 is ahead of")
    assert found.comparisons[0].interval == pytest.approx(tuple(job.decision["pairs"][0]["interval"]))


def test_a_decided_job_has_nothing_to_resume_and_cannot_grow(tracker: LocalTracker) -> None:
    job = ended(tracker, tracker.start_job(request("0.2", "0.9"), key="over").job.id)
    again = tracker.resume_job(job.id)
    assert "nothing is left to run" in again.notices
    assert again.job.decision == job.decision
    with pytest.raises(UsageError, match="fixed before it began"):
        tracker.resume_job(job.id, JobChange(agents=[JobAgent(AGENT, "0.5")]))


@pytest.mark.slow
def test_the_digest_of_the_plan_covers_margin_and_error_rate(tracker: LocalTracker) -> None:
    asked = request("0.2", "0.9")
    plans = [
        tracker.plan_job(one).digest
        for one in (
            asked,
            replace(asked, margin=0.05),
            replace(asked, error_rate=0.01),
            replace(asked, stop_when_decided=False),
        )
    ]
    assert len(set(plans)) == 4
    job = tracker.start_job(asked).job
    assert job.digest == plans[0]
    ended(tracker, job.id)


def test_a_rule_nobody_can_stop_by_is_refused(tracker: LocalTracker) -> None:
    asked = request("0.2", "0.9")
    for wrong in (
        replace(asked, agents=asked.agents[:1]),
        replace(asked, margin=1.5),
        replace(asked, error_rate=0.0),
        replace(asked, stop_when_decided=False, margin=0.1),
    ):
        with pytest.raises(UsageError):
            tracker.plan_job(wrong)
