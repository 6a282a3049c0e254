"""What one word stands for: a run, or the runs of a job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from valkyrie.domain import LATEST, may_be_id
from valkyrie.errors import UnknownError, UsageError

if TYPE_CHECKING:
    from valkyrie.tracker.protocol import Tracker
    from valkyrie.views import RunView
    from valkyrie.views.jobs import JobView

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class NamedRuns:
    """What one word stands for: a run, or the runs of a job."""

    runs: Sequence[RunView]
    job: JobView | None = None

    def name_of(self, run: RunView, *, several: bool) -> str:
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


def _latest(opened: Tracker, job: JobView | None, run: RunView | None) -> NamedRuns:
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
