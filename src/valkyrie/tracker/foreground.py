"""Foreground jobs: the process that started them works on their runs, and no other executor does."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from valkyrie.domain import Json, RunState
from valkyrie.errors import UserError
from valkyrie.store import executors, jobs, runs
from valkyrie.tracker.app import CallerContext
from valkyrie.tracker.jobs import JobVerbs
from valkyrie.tracker.runs import NewRun, RunVerbs
from valkyrie.views import RunRequest

if TYPE_CHECKING:
    from valkyrie.executor.host import BoundExecutor
    from valkyrie.store import Connection

_KEPT = "bound"
"""Where in a job's arguments stands what whoever started it wants to know when it goes on."""


@dataclass(frozen=True, slots=True)
class ForegroundRequest:
    """Several runs that share one pool, each with what is remembered of it."""

    name: str
    requests: Sequence[RunRequest]
    concurrency: int
    source: Json
    """What the job is about, as `job list` tells it."""
    kept: Json = field(default_factory=dict)
    """Given back when the job goes on."""


@dataclass(frozen=True, slots=True)
class ForegroundJob:
    """A job that waits for the executor beside it."""

    id: str
    name: str
    run_ids: Sequence[str]
    values: Mapping[str, Mapping[str, str]]
    """What each run is handed."""
    kept: Json
    notices: Sequence[str] = ()
    shows: Sequence[Json] = ()
    """Which gaps between agents each run can show."""

    @property
    def binding(self) -> str:
        return binding_of(self.id)


def binding_of(job_id: str) -> str:
    """Return what the runs of a job are bound to."""
    return f"eval-{job_id}"


class ForegroundJobs:
    """Verbs about foreground jobs."""

    def __init__(self, context: CallerContext, runs: RunVerbs, jobs: JobVerbs) -> None:
        self._context = context
        self._runs = runs
        self._jobs = jobs

    def start_foreground(self, asked: ForegroundRequest) -> ForegroundJob:
        """Plan, check and store all runs at once, or none."""
        job_id = str(uuid.uuid4())
        requests = [replace(request, concurrency=asked.concurrency) for request in asked.requests]
        prepared = self._jobs.prepare_runs(job_id, requests, 0)
        job = ForegroundJob(
            job_id,
            asked.name,
            [one.run_id for one in prepared],
            {one.run_id: one.prepared.secrets for one in prepared},
            asked.kept,
            list(dict.fromkeys(notice for one in prepared for notice in one.prepared.notices)),
            [shows for one in prepared if (shows := self._runs.shown_gaps(one.prepared))],
        )
        bound = [NewRun(one.run_id, one.prepared, {**one.values, "bound": job.binding}) for one in prepared]
        self._runs.store_all(bound, lambda connection: jobs.create(connection, self._job_values(job, asked)))
        return job

    def _job_values(self, job: ForegroundJob, asked: ForegroundRequest) -> Json:
        template = {**asdict(asked.requests[0]), "headers": {}, "benchmark_options": {}}
        return {
            "id": job.id,
            "org_id": self._context.identity.org_id,
            "name": asked.name,
            "started_by": self._context.identity.person,
            "created_at": time.time(),
            "concurrency": asked.concurrency,
            "ends_at": None,
            "about": {},
            "arguments": {
                "agents": [
                    {"agent": agent, "model": model}
                    for agent, model in dict.fromkeys((one.agent, one.model) for one in asked.requests)
                ],
                "template": template,
                "selections": [],
                "source": asked.source,
                _KEPT: asked.kept,
            },
        }

    def fetch_foreground(self, ref: str) -> Json:
        with self._context.store.reading() as connection:
            row = jobs.get(connection, self._context.resolve_job(connection, ref))
        return {"id": row.id, "name": row.name, **_kept(row)}

    def resume_foreground(self, ref: str, *, errors_too: bool = True) -> ForegroundJob:
        """Let what is left of a foreground job wait for the executor beside it again."""
        with self._context.store.reading() as connection:
            row = jobs.get(connection, self._context.resolve_job(connection, ref))
            of_job = jobs.runs_of(connection, [row.id])[row.id]
        kept = _kept(row)
        values: dict[str, Mapping[str, str]] = {}
        notices: list[str] = []
        for one in of_job:
            values[one.id], said = self._runs.values_again(one, {}, one.benchmark_source)
            notices += said
        job = ForegroundJob(
            row.id, row.name, [one.id for one in of_job], values, kept, list(dict.fromkeys(notices))
        )
        with self._context.store.writing() as connection:
            self._open_again(connection, job, errors_too=errors_too)
        return job

    def _open_again(self, connection: Connection, job: ForegroundJob, *, errors_too: bool) -> None:
        for run_id in sorted(job.run_ids):
            row = runs.locked(connection, run_id)
            if row.bound is None and executors.living(connection) and not RunState(row.state).terminal:
                raise UserError(
                    f"Run {run_id[:8]} was taken up by `valk run resume`; `valk run fetch {run_id[:8]} "
                    "--connect` watches it."
                )
            left = row.n_pending + row.n_stopped + (row.n_error - row.e_agent if errors_too else 0)
            if left or not RunState(row.state).terminal:
                runs.reopen(connection, run_id, errors_too=errors_too, bound=job.binding)

    def foreground_executor(self, job: ForegroundJob) -> BoundExecutor:
        from valkyrie.executor.host import BoundExecutor

        return BoundExecutor(self._context.data, self._context.store, job.binding)

    def is_taken_over(self, job: ForegroundJob) -> bool:
        """Return whether an executor other than the one beside it works on runs of this job.

        That is so after `run resume` found the process that started them suspended for longer than its lease.
        """
        with self._context.store.reading() as connection:
            of_job = jobs.runs_of(connection, [job.id])[job.id]
            taken = any(one.bound != job.binding and not RunState(one.state).terminal for one in of_job)
            return taken and bool(executors.living(connection))

    def stop_foreground(self, job: ForegroundJob) -> None:
        """End what is under way, keep what has ended; its executor sees to the rest."""
        now = time.time()
        with self._context.store.writing() as connection:
            for run_id in sorted(job.run_ids):
                if not RunState(runs.locked(connection, run_id).state).terminal:
                    runs.stop(connection, run_id, now, force=True, task_ids=None)


def _kept(row: Any) -> Json:
    kept: Json | None = row.arguments.get(_KEPT)
    if kept is None:
        raise UserError(
            f"Job {row.name!r} is no eval; `valk job resume {row.id[:8]}` goes on with jobs.", cause="usage"
        )
    return kept
