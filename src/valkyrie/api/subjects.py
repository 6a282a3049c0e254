"""What can be watched: a run, or a job, which changes when one of its runs does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from valkyrie.nouns import RunState
from valkyrie.store import jobs, runs

if TYPE_CHECKING:
    from valkyrie.job_views import JobView
    from valkyrie.store import Connection
    from valkyrie.tracker.local import LocalTracker
    from valkyrie.views import RunView

Kind = Literal["run", "job"]


@dataclass(frozen=True, slots=True)
class Subject:
    """How one kind of thing is found, and looked at."""

    resolve: Callable[[Connection, str, str, str | None], str]
    """The id of what a word names to an organisation, and a person of it."""
    version: Callable[[Connection, str], int | None]
    """Grows with every change; cheaper than the whole."""
    fetch: Callable[[LocalTracker, str], tuple[RunView | JobView, bool]]
    """It as it stands, and whether it ended."""


def _run(tracker: LocalTracker, run_id: str) -> tuple[RunView, bool]:
    view = tracker.fetch(run_id)
    return view, RunState(view.state).terminal


def _job(tracker: LocalTracker, job_id: str) -> tuple[JobView, bool]:
    view = tracker.fetch_job(job_id)
    return view, view.ended


SUBJECTS: Mapping[Kind, Subject] = {
    "run": Subject(runs.resolve, runs.version, _run),
    "job": Subject(jobs.resolve, jobs.version, _job),
}
