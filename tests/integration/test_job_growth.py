"""A job that several people change at once, and one whose runs did not end well."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from valkyrie.errors import UnknownError, UserError
from valkyrie.tracker.local import LocalTracker
from valkyrie.views import RunRequest
from valkyrie.views.jobs import JobAgent, JobChange, JobRequest, JobView

pytestmark = pytest.mark.slow

BENCHMARK = "tests.integration.scripted:ScriptedBenchmark"
AGENT = "tests.integration.scripted:ScriptedAgent"


@pytest.fixture
def others(tracker: LocalTracker) -> Iterator[list[LocalTracker]]:
    made = [LocalTracker(tracker.data.root) for _ in range(3)]
    yield made
    for one in made:
        one.close()


def start(tracker: LocalTracker, dataset: str = "ok*2") -> JobView:
    template = RunRequest(agent="", benchmark=BENCHMARK, dataset=dataset, provider="null")
    return tracker.start_job(JobRequest([JobAgent(AGENT, "first")], template, name="mine")).job


def ended(tracker: LocalTracker, ref: str) -> JobView:
    return [*tracker.follow_job(ref)][-1]


def at_once(*verbs: Callable[[], object]) -> None:
    begin = Barrier(len(verbs))

    def call(verb: Callable[[], object]) -> None:
        begin.wait()
        verb()

    with ThreadPoolExecutor(len(verbs)) as pool:
        for done in [pool.submit(call, verb) for verb in verbs]:
            done.result()


def test_growths_at_the_same_time_lose_and_double_nothing(
    tracker: LocalTracker, others: list[LocalTracker]
) -> None:
    job = start(tracker)
    red, blue = JobAgent(AGENT, "red"), JobAgent(AGENT, "blue")
    one, two, three = others
    at_once(
        lambda: one.resume_job(job.id, JobChange(agents=[red])),
        lambda: two.resume_job(job.id, JobChange(agents=[red, blue])),
        lambda: three.resume_job(job.id, JobChange(trials=3, concurrency=2)),
    )
    found = ended(tracker, job.id)
    assert sorted(run.model or "" for run in found.runs) == ["blue", "first", "red"]
    assert [run.counts["FINISHED"] for run in found.runs] == [6, 6, 6]
    assert (found.state, found.concurrency, found.trials) == ("completed", 2, 3)
    with tracker.store.reading() as connection:
        from valkyrie.store import jobs

        agents = jobs.get(connection, job.id).arguments["agents"]
    assert sorted(agent["model"] for agent in agents) == ["blue", "first", "red"]


def test_an_agent_is_added_after_a_run_was_deleted(tracker: LocalTracker) -> None:
    job = start(tracker)
    more = JobChange(agents=[JobAgent(AGENT, "red"), JobAgent(AGENT, "blue")])
    tracker.resume_job(job.id, more)
    runs = ended(tracker, job.id).runs
    tracker.delete(runs[1].id)
    tracker.resume_job(job.id, JobChange(agents=[JobAgent(AGENT, "green")]))
    assert [run.model for run in ended(tracker, job.id).runs] == ["first", "blue", "green"]


def test_a_job_that_is_gone_does_not_grow(tracker: LocalTracker) -> None:
    job = ended(tracker, start(tracker).id)
    tracker.delete_job(job.id)
    with pytest.raises(UnknownError):
        tracker.resume_job(job.id, JobChange(agents=[JobAgent(AGENT, "red")]))


def test_cancel_and_resume_at_the_same_time(tracker: LocalTracker, others: list[LocalTracker]) -> None:
    job = start(tracker, "ok*30")

    def cancel() -> None:
        try:
            others[1].stop_job(job.id)
        except UserError as error:
            assert "already" in str(error)

    for _ in range(3):
        at_once(lambda: others[0].resume_job(job.id), cancel)
    tracker.resume_job(job.id)
    found = ended(tracker, job.id)
    assert (found.state, found.runs[0].counts["FINISHED"]) == ("completed", 30)


@pytest.mark.parametrize("verb", ["resume_job", "retry_job"])
def test_a_score_that_could_not_be_computed_is_tried_again(tracker: LocalTracker, verb: str) -> None:
    job = ended(tracker, start(tracker, "ok,unscorable").id)
    assert (job.state, job.runs[0].counts["FINISHED"]) == ("failed", 2)
    passed = job.runs[0].version
    assert "nothing is left to run" not in getattr(tracker, verb)(job.id).notices
    again = ended(tracker, job.id)
    assert again.state == "failed" and again.runs[0].version > passed
