"""The verbs as one object (`LocalTracker` on a store, `RemoteTracker` over HTTP), and questions asked with
them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeVar

from valkyrie import views
from valkyrie.domain import LATEST, Json, may_be_id
from valkyrie.errors import UnknownError, UsageError


class Tracker(Protocol):
    """Everything a person can ask of the platform.

    `ref` is a run id or a unique prefix of one, the name or id of a job of one run, JOB/AGENT, or `latest`,
    what the caller started last; an unknown or ambiguous one raises UsageError, the latter listing the
    matches. Verbs raise ValkyrieError subclasses only.
    """

    def plan(self, request: views.RunRequest) -> views.PlanView:
        """Return what `start` would do, checked in full; starts nothing."""
        ...

    def start(self, request: views.RunRequest) -> views.StartedRun:
        """Plan, check, store, hand to an executor. Nothing is stored when a check fails."""
        ...

    def fetch(self, ref: str) -> views.RunView: ...

    def follow(self, ref: str, *, interval: float = 0.2) -> Iterator[views.RunView]:
        """Yield the run now, then again after every change, until it ended (that view is the last)."""
        ...

    def list(self, query: views.RunFilter) -> views.RunPage: ...

    def trials(self, ref: str, query: views.TrialFilter) -> tuple[Sequence[views.TrialView], int]:
        """Trials that match, and how many match in all."""
        ...

    def attempts(self, ref: str, task_id: str, k: int = 0) -> Sequence[views.AttemptView]:
        """Return every attempt of one trial, oldest first; none is ever deleted."""
        ...

    def errors(self, ref: str) -> Sequence[views.ErrorGroup]: ...

    def stop(self, ref: str, request: views.StopRequest = views.StopRequest()) -> views.RunView:
        """Pending trials become STOPPED; running ones finish, unless `force` kills them."""
        ...

    def resume(self, ref: str, request: views.ResumeRequest = views.ResumeRequest()) -> views.StartedRun:
        """STOPPED trials run again; what was interrupted by a crash goes on."""
        ...

    def retry(self, ref: str, request: views.RetryRequest = views.RetryRequest()) -> views.StartedRun:
        """As resume, and ERROR trials too (only of a category, if given)."""
        ...

    def regrade(self, ref: str, request: views.RegradeRequest) -> views.RegradeView:
        """Grade the kept work of an ended run's trials again, without running agents."""
        ...

    def gradings(self, ref: str) -> Sequence[views.GradingView]:
        """Return the run's gradings by number; 0 is the one its own trials made."""
        ...

    def use_grading(self, ref: str, number: int) -> views.RunView:
        """Make one grading the run's own: verdicts, counters and final score."""
        ...

    def compare_gradings(self, ref: str, a: int, b: int) -> views.GradingComparison:
        """Return which trials two gradings of a run judge differently."""
        ...

    def update(self, ref: str, request: views.UpdateRequest) -> views.RunView:
        """Change a live run."""
        ...

    def wait(self, ref: str, *, timeout: float | None = None) -> views.RunView:
        """Block until the run ended; TimeoutError when it did not in time."""
        ...

    def results(self, ref: str, request: views.ResultsWanted = views.ResultsWanted()) -> Json:
        """Return the results file's content; their service scores some tasks anew, with the headers."""
        ...

    def results_text(self, ref: str, request: views.ResultsWanted = views.ResultsWanted()) -> Iterator[str]:
        """Yield the text of that file, piece by piece; no string in it is cut between two pieces."""
        ...

    def upload_results(
        self, ref: str, request: views.ResultsWanted = views.ResultsWanted()
    ) -> views.ResultsLink:
        """Put the results file where artifacts are kept; one of a subset never replaces the whole one."""
        ...

    def outputs(
        self, ref: str, destination: Path, request: views.OutputsWanted = views.OutputsWanted()
    ) -> Sequence[Path]:
        """Copy what was kept of each trial's last attempt to `destination/<task>/…`, archives unpacked."""
        ...

    def logs(
        self, ref: str, task_id: str, *, k: int = 0, attempt: int | None = None, follow: bool = False
    ) -> Iterator[str]:
        """An attempt's log (the last one's unless said), piece by piece; `follow` goes on until it ended."""
        ...

    def run_logs(self, ref: str, query: views.LogQuery) -> Iterator[views.LogLine]:
        """Logs of many trials, those of each one's last attempt unless said."""
        ...

    def delete(self, ref: str) -> None:
        """Forget an ended run and everything kept of it; refuses while it is in progress."""
        ...

    def shell(self, ref: str, task_id: str, k: int = 0) -> Sequence[str]:
        """Return the command that opens a shell in a kept sandbox (`--keep-sandbox`)."""
        ...

    def queue(self) -> views.QueueView:
        """Open runs in the order they are served, and the executors that live."""
        ...

    # Jobs: several runs started together

    def plan_job(self, request: views.JobRequest) -> views.JobPlan:
        """Return what `start_job` would do, checked in full; starts nothing."""
        ...

    def start_job(self, request: views.JobRequest) -> views.StartedJob:
        """Plan agents × tasks × trials whole, check, store all runs at once, hand them to an executor."""
        ...

    def fetch_job(self, ref: str) -> views.JobView:
        """A job by its id, a unique beginning of it, or its name (of several the newest)."""
        ...

    def follow_job(self, ref: str, *, interval: float = 0.2) -> Iterator[views.JobView]:
        """Yield the job now, then again after every change, until it ended (that view is the last)."""
        ...

    def list_jobs(self, query: views.JobFilter) -> views.JobPage: ...

    def stop_job(self, ref: str, request: views.JobStop = views.JobStop()) -> views.JobView:
        """Stop all its runs: `cancel`."""
        ...

    def resume_job(self, ref: str, change: views.JobChange | None = None) -> views.StartedJob:
        """Go on with what was stopped or interrupted, perhaps with more agents, tasks or trials.

        What has ended is never run again: trials are matched by their digests.
        """
        ...

    def retry_job(self, ref: str, request: views.JobRetry = views.JobRetry()) -> views.StartedJob:
        """As resume, and ERROR trials too (only of a category, if given)."""
        ...

    def delete_job(self, ref: str) -> None:
        """Forget an ended job, its runs, and everything kept of them."""
        ...

    # Agents

    def agents(self) -> Sequence[views.AgentView]:
        """Pushed agents by name."""
        ...

    def push_agent(
        self, folder: Path, name: str | None = None, *, origin: str | None = None
    ) -> views.AgentView:
        """Take an agent's folder in, over an earlier one of that name."""
        ...

    def remove_agent(self, name: str) -> None: ...

    def download_agent(self, name: str, output_dir: Path) -> Path:
        """Unpack a pushed agent as `output_dir/<name>`, which must not exist."""
        ...

    # Secrets and benchmarks

    def secrets(self) -> Sequence[views.SecretView]: ...

    def set_secret(self, name: str, value: str) -> None: ...

    def remove_secret(self, name: str) -> None: ...

    def benchmarks(self) -> Sequence[views.BenchmarkView]:
        """Return the benchmarks that can be named."""
        ...

    def benchmark_tasks(self, request: views.TasksRequest) -> views.TasksView: ...

    def disk(self) -> views.DiskView: ...

    def executor_status(self) -> Json | None:
        """Return what the executor of this store says of itself; None when there is none."""
        ...

    def on_line(self, tell: Callable[[str | None], None]) -> None:
        """Call `tell` with why nothing is heard of a tracker elsewhere, and with None when it is again."""
        ...

    def close(self) -> None: ...


# All trials of a run, read page by page.

PAGE = 1000


def each_trial(
    tracker: Tracker,
    ref: str,
    *,
    states: Sequence[str] = (),
    search: str | None = None,
    detail: views.TrialDetail = "trial",
) -> Iterator[views.TrialView]:
    """Yield the trials of a run in their order, without holding more than a page."""
    query = views.TrialFilter(states=tuple(states), search=search, limit=PAGE, after=-1, detail=detail)
    while True:
        page, _ = tracker.trials(ref, query)
        yield from page
        if len(page) < PAGE:
            return
        query = replace(query, after=page[-1].position)


# What one word stands for: a run, or the runs of a job.

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class NamedRuns:
    """What one word stands for: a run, or the runs of a job."""

    runs: Sequence[views.RunView]
    job: views.JobView | None = None

    def name_of(self, run: views.RunView, *, several: bool) -> str:
        """`agent:model`, its variant, and which job it is from where there are several."""
        name = f"{run.agent}:{run.model}" if run.model else run.agent
        if (variant := run.arguments.get("variant", "main")) != "main":
            name = f"{name} ({variant})"
        return f"{name} in {self.job.name}" if self.job and several else name


def named_runs(opened: Tracker, ref: str) -> NamedRuns:
    """Return the run or the job that `ref` names; UsageError where it names neither, or both."""
    job, no_job = _asked(opened.fetch_job, ref)
    if job and job.name == ref.strip():
        return NamedRuns(job.runs, job)
    run, no_run = _asked(opened.fetch, ref)
    if ref.strip() == LATEST:
        return _latest(opened, job, run)
    if job and run and run.job_id == job.id:
        return NamedRuns(job.runs, job)
    if job and run:
        raise UsageError(f"{ref!r} is the beginning of run {run.id} and of job {job.id}; give more of it.")
    if run:
        return NamedRuns([run])
    if job:
        return NamedRuns(job.runs, job)
    for error in (no_job, no_run):
        if error and not isinstance(error, UnknownError) and may_be_id(ref.strip()):
            raise error  # several begin so
    raise no_run or UnknownError(f"No run or job {ref!r}.")


def _latest(opened: Tracker, job: views.JobView | None, run: views.RunView | None) -> NamedRuns:
    """Return what was started last: a job, or a run of its own.

    A run that cannot be told from others of its job means the job.
    """
    if run and run.job_id:
        job = opened.fetch_job(run.job_id)
    elif run:
        return NamedRuns([run])
    if job is None:
        raise UnknownError("You have started nothing yet. `valk run list` shows all runs.")
    return NamedRuns(job.runs, job)


def _asked(fetch: Callable[[str], Found], ref: str) -> tuple[Found | None, UsageError | None]:
    """Return what the word names, or why it names nothing."""
    try:
        return fetch(ref), None
    except UsageError as error:
        return None, error
