"""A tracker with canned jobs, for what the command line prints."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.unit.cli.fake_tracker import FakeTracker, make_run, make_trial
from valkyrie.errors import InfrastructureError, UnknownError
from valkyrie.store.layout import encode_task_id
from valkyrie.views import CostView, OutputsWanted, ResultsWanted, ScoreView, TrialFilter, TrialView
from valkyrie.views.jobs import (
    JobChange,
    JobFilter,
    JobPage,
    JobPlan,
    JobRequest,
    JobRetry,
    JobStop,
    JobView,
    StartedJob,
)

LOST = ScoreView(0.0, 0.0, 3, 4, 0.75, {"infrastructure": 1}, True, True, 0, (0.0, 0.56), "wilson")


def make_job(job_id: str = "job-aaaa1111", **changed: Any) -> JobView:
    runs = changed.pop("runs", None) or [
        make_run("run-one", agent="codex", model="gpt-5", total=4, counts={"FINISHED": 4}),
        make_run("run-two", agent="nop", total=4, counts={"FINISHED": 3, "ERROR": 1}, score=LOST),
    ]
    job = JobView(
        id=job_id,
        name="nightly",
        state="completed",
        created_at=1_700_000_000.0,
        started_by=None,
        concurrency=10,
        metadata={},
        source={"type": "benchmark", "benchmark_name": "quickstart"},
        trials=2,
        agent_timeout=None,
        timeout_multiplier=1.0,
        ends_at=None,
        runs=runs,
        version=1,
    )
    return replace(job, **changed)


def trials_of_two() -> dict[str, list[TrialView]]:
    """codex passes 3 of 4 and half of one; nop fails 3 and has an error."""
    return {
        "run-one": [
            make_trial("add", k=0),
            make_trial("fix/it", k=0, score=0.5, passed=False),
            make_trial("add", k=1),
            make_trial("fix/it", k=1),
        ],
        "run-two": [
            make_trial("add", k=0, score=0.0, passed=False),
            make_trial("fix/it", k=0, score=0.0, passed=False, exit_reason="TIMEOUT", exit_code=124),
            make_trial("add", k=1, score=0.0, passed=False),
            make_trial(
                "fix/it", k=1, state="ERROR", score=None, passed=None, category="infrastructure",
                cause="sandbox_failed", message="no room", exit_code=None,
            ),
        ],
    }  # fmt: skip


class FakeJobs(FakeTracker):
    """Speaks the job verbs of the Tracker protocol; remembers what it was asked."""

    def __init__(self, jobs: Sequence[JobView] = ()) -> None:
        super().__init__()
        self.jobs = {job.id: job for job in (jobs or [make_job()])}
        self.by_run = trials_of_two()
        self.job_steps: list[JobView] = []
        self.unfetchable: set[str] = set()
        self.endless = False

    def _job(self, ref: str) -> JobView:
        found = [job for job in self.jobs.values() if job.id.startswith(ref) or job.name == ref]
        if not found:
            raise UnknownError(f"no job is called {ref!r}.")
        return found[0]

    def plan_job(self, request: JobRequest) -> JobPlan:
        self.asked.append(("plan_job", request))
        plans = [
            self.plan(replace(request.template, agent=one.agent, model=one.model)) for one in request.agents
        ]
        return JobPlan(plans, self.problems)

    def start_job(self, request: JobRequest) -> StartedJob:
        self.asked.append(("start_job", request))
        return StartedJob(self._job(""), ["OPENAI_API_KEY comes from the environment"])

    def fetch_job(self, ref: str) -> JobView:
        return self._job(ref)

    def follow_job(self, ref: str, *, interval: float = 0.2) -> Iterator[JobView]:
        for step in self.job_steps or [self._job(ref)]:
            self.jobs[step.id] = step
            yield step
            if self.endless:
                threading.Event().wait()

    def list_jobs(self, query: JobFilter) -> JobPage:
        self.asked.append(("list_jobs", query))
        jobs = list(self.jobs.values())
        first = int(query.cursor or 0)
        after = first + query.limit
        return JobPage(jobs[first:after], str(after) if after < len(jobs) else None)

    def stop_job(self, ref: str, request: JobStop = JobStop()) -> JobView:
        self.asked.append(("stop_job", ref, request.force))
        return replace(self._job(ref), state="cancelled")

    def resume_job(self, ref: str, change: JobChange | None = None) -> StartedJob:
        self.asked.append(("resume_job", ref, change))
        return StartedJob(self._job(ref), [])

    def retry_job(self, ref: str, request: JobRetry = JobRetry()) -> StartedJob:
        self.asked.append(("retry_job", ref, request.category, request.concurrency))
        return StartedJob(self._job(ref), [])

    def delete_job(self, ref: str) -> None:
        self.asked.append(("delete_job", ref))

    def trials(self, ref: str, query: TrialFilter) -> tuple[Sequence[TrialView], int]:
        every = self.by_run.get(ref, [])
        found = [trial for trial in every if not query.states or trial.state in query.states]
        return found[query.offset : query.offset + query.limit], len(found)

    def results(self, ref: str, request: ResultsWanted = ResultsWanted()) -> dict[str, Any]:
        return {"evaluation_results": {"add": {"rewards": {"correct": 1.0, "tidy": 0.5}, "score": 1.0}}}

    def outputs(
        self, ref: str, destination: Path, request: OutputsWanted = OutputsWanted()
    ) -> Sequence[Path]:
        task_ids = request.task_ids
        if self.unfetchable & set(task_ids or ()):
            raise InfrastructureError("the bucket is gone")
        for trial in self.by_run[ref]:
            if task_ids is None or trial.task_id in task_ids:
                folder = destination / encode_task_id(trial.task_id) / (str(trial.k) if trial.k else "")
                folder.mkdir(parents=True, exist_ok=True)
                (folder / "attempt.log").write_text(f"{ref} {trial.task_id} {trial.k}\n")
        return []


COST = CostView(1.25, 4)
