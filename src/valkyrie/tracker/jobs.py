"""Verbs about jobs: several runs started together, sharing one pool of concurrency."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from valkyrie.domain import Category, RunState
from valkyrie.errors import UsageError, UserError, ValkyrieError
from valkyrie.report.presentation import job_view, run_view
from valkyrie.store import jobs, runs
from valkyrie.tracker.app import CallerContext
from valkyrie.tracker.problems import Problem, refuse
from valkyrie.tracker.run_reader import RunReader
from valkyrie.tracker.runs import Again, NewRun, RunVerbs, limit_reached
from valkyrie.views import ResumeRequest, RunRequest
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

if TYPE_CHECKING:
    from valkyrie.store import Connection
    from valkyrie.tracker.job_plan import JobPlanned, Selection
    from valkyrie.tracker.prepare import PreparedRun

_SPACE = uuid.UUID("0b9c5a2e-8e0f-4b57-9c62-7f0b6a1d4e33")
"""Ids of jobs whose start carries a key of the caller's, and of their runs, are made from it."""
LISTED_AT_ONCE = 100


class JobVerbs:
    """Plan, start and change jobs. A job is planned whole: either all of its runs are stored, or none."""

    def __init__(self, context: CallerContext, reader: RunReader, runs: RunVerbs) -> None:
        self._context = context
        self._reader = reader
        self._runs = runs

    def plan_job(self, request: JobRequest) -> JobPlan:
        from valkyrie.plan import plan_digest
        from valkyrie.tracker.job_plan import stop_rule

        planned = self._planned(request)
        prepared = self._prepared(planned.requests(_template(request)), only_look=self._context.only_looks)
        problems = [str(problem) for one in prepared for problem in one.problems]
        rule = stop_rule(request, prepared)
        digest = plan_digest([one.trials for one in prepared], rule)
        plans = [replace(one.view(), shows=self._runs.shown_gaps(one)) for one in prepared]
        return JobPlan(plans, list(dict.fromkeys(problems)), digest, rule)

    def start_job(self, request: JobRequest, *, key: str | None = None) -> StartedJob:
        from valkyrie.plan import plan_digest, shuffled
        from valkyrie.tracker.job_plan import job_name, stop_rule, stored

        job_id = str(uuid.uuid5(_SPACE, f"{self._context.identity.org_id} {key}") if key else uuid.uuid4())
        if key and self._job_is_stored(job_id):
            return StartedJob(self.fetch_job(job_id), ["this start was asked for before; here is its job"])
        planned = self._planned(request)
        prepared = _refuse_problems(self._prepared(planned.requests(_template(request))))
        rule = stop_rule(request, prepared)
        digest = plan_digest([one.trials for one in prepared], rule)
        if rule is not None:
            # By the job's id, which nobody knew before: no agent can be made for the tasks that come first.
            prepared = [replace(one, trials=shuffled(one.trials, job_id), stop_rule=rule) for one in prepared]
        new = _new_runs(job_id, prepared)
        now = time.time()
        values = {
            "id": job_id,
            "org_id": self._context.identity.org_id,
            "name": job_name(request, now),
            "started_by": self._context.identity.person,
            "created_at": now,
            "concurrency": request.concurrency,
            "ends_at": None if request.time_limit is None else now + request.time_limit,
            "about": dict(request.metadata),
            "arguments": {
                **stored(request, planned, {one.request.benchmark: one.benchmark.name for one in prepared}),
                "digest": digest,
            },
            "stop_rule": rule,
        }
        notices = self.store_runs(new, lambda connection: jobs.create(connection, values))
        return StartedJob(self.fetch_job(job_id), notices)

    def fetch_job(self, ref: str) -> JobView:
        with self._context.store.reading() as connection:
            return self._job(connection, self._context.resolve_job(connection, ref))

    def follow_job(self, ref: str, *, interval: float = 0.2) -> Iterator[JobView]:
        view = self.fetch_job(ref)
        yield view
        for _ in () if view.ended else self._context.store.changes(interval):
            with self._context.store.reading() as connection:
                version = jobs.version(connection, view.id)
                if version is None:
                    return
                if version == view.version and all(
                    run.executor == self._reader.executor_state() for run in view.runs
                ):
                    continue
                view = self._job(connection, view.id)
            yield view
            if view.ended:
                return

    def list_jobs(self, query: JobFilter) -> JobPage:
        found: list[JobView] = []
        cursor = query.cursor
        wanted = set(query.states)
        while True:
            with self._context.store.reading() as connection:
                rows, cursor = jobs.page(
                    connection,
                    self._context.identity.org_id,
                    since=query.since,
                    name=query.name,
                    limit=LISTED_AT_ONCE if wanted else query.limit,
                    cursor=cursor,
                )
                of_each = jobs.runs_of(connection, [row.id for row in rows])
            for row in rows:
                view = self._job_of_rows(row, of_each[row.id])
                if wanted and view.state not in wanted:
                    continue
                found.append(view)
                if len(found) == query.limit:
                    last = row is rows[-1]
                    return JobPage(found, cursor if last else jobs.cursor_after(row))
            if cursor is None:
                return JobPage(found, None)

    def stop_job(self, ref: str, request: JobStop = JobStop()) -> JobView:
        view = self.fetch_job(ref)
        if view.ended:
            raise UserError(f"Job {view.name!r} is {view.state} already; there is nothing to cancel.")
        with self._context.store.writing() as connection:
            for run_id in sorted(run.id for run in view.runs):
                if not RunState(runs.locked(connection, run_id).state).terminal:
                    runs.stop(connection, run_id, time.time(), force=request.force, task_ids=None)
        self._context.dispatch.wake(needed=True)
        return self.fetch_job(view.id)

    def resume_job(self, ref: str, change: JobChange | None = None) -> StartedJob:
        from valkyrie.tracker.job_growth import grow

        view = self.fetch_job(ref)
        if (kind := view.source.get("type")) in ("eval", "experiment"):
            command = "eval" if kind == "eval" else "experiment run"
            raise UserError(
                f"Job {view.name!r} is an {kind}; `valk {command} --resume {view.id[:8]}` goes on."
            )
        change = change or JobChange()
        notices = grow(self._context, self, view, change)
        again = Again(ResumeRequest(headers=change.headers))
        return self._all_again(view, again, notices)

    def retry_job(self, ref: str, request: JobRetry = JobRetry()) -> StartedJob:
        view = self.fetch_job(ref)
        if request.concurrency is not None:
            self.share(view.id, request.concurrency)
        category = request.category
        asked = ResumeRequest(headers=request.headers)
        again = Again(asked, errors_too=True, category=category, conclude=category is None)
        return self._all_again(view, again, [])

    def delete_job(self, ref: str) -> None:
        view = self.fetch_job(ref)
        open_runs = [run for run in view.runs if not RunState(run.state).terminal]
        if open_runs:
            raise UserError(
                f"Job {view.name!r} is {view.state}. `valk job stop {view.id[:8]}` ends it first."
            )
        for run in view.runs:
            self._runs.delete(run.id)
        with self._context.store.writing() as connection:
            jobs.forget(connection, view.id)

    # What job_growth needs

    def share(self, job_id: str, concurrency: int) -> None:
        """Set how many trials of a job run at once, from now on."""
        if concurrency < 1:
            raise UsageError(f"--concurrency must be at least 1, not {concurrency}.")
        with self._context.store.writing() as connection:
            jobs.share(connection, job_id, concurrency)
        self._context.dispatch.wake()

    def prepare_runs(self, job_id: str, requests: Sequence[RunRequest], first: int) -> list[NewRun]:
        """Further runs of a job, planned and checked."""
        prepared = _refuse_problems(self._prepared(requests))
        # Ids of their own: two who add runs at the same time must not freeze their agents into one folder.
        return _new_runs(job_id, prepared, first, space=uuid.uuid4())

    def store_runs(self, new: Sequence[NewRun], also: Callable[[Connection], None]) -> list[str]:
        """Store further runs, and what comes with them, at once; what is to be said of them."""
        self._runs.store_all(new, also)
        return self._hand_over(new)

    def select(self, scenarios: Sequence[str], template: RunRequest) -> list[Selection]:
        """Return the tasks that scenarios name, as far as whoever asks may name them."""
        from valkyrie.benchmarks.catalog import known_benchmarks
        from valkyrie.tracker.job_plan import select_scenarios

        def open_one(name: str) -> Any:
            asked = replace(template, benchmark=name)
            return self._context.open_benchmark(asked)

        known = [one.name for one in known_benchmarks() if one.url is None]
        return select_scenarios(scenarios, known, open_one)

    def _planned(self, request: JobRequest) -> JobPlanned:
        from valkyrie.tracker.job_plan import JobPlanned, Selection, check

        check(request)
        template = request.template
        if request.scenarios:
            return JobPlanned(list(request.agents), self.select(request.scenarios, template))
        ids = None if template.task_ids is None else tuple(template.task_ids)
        named = request.benchmarks or [template.benchmark]
        return JobPlanned(list(request.agents), [Selection(one, template.dataset, ids) for one in named])

    def _prepared(self, requests: Sequence[RunRequest], *, only_look: bool = False) -> list[PreparedRun]:
        """Return every run resolved and checked; the problems of all in one refusal."""
        found: list[PreparedRun] = []
        refused: list[str] = []
        for request in requests:
            try:
                found.append(self._context.prepare(request, only_look=only_look))
            except ValkyrieError as error:
                if len(requests) == 1:
                    raise
                refused.append(Problem(error))
        if refused:
            raise refuse(refused, _missing(refused))
        return found

    def _hand_over(self, new: Sequence[NewRun]) -> list[str]:
        notices = [notice for one in new for notice in one.prepared.notices]
        for one in new:
            notices += self._context.dispatch.deliver(one.run_id, one.prepared.secrets)
        return list(dict.fromkeys(notices))

    def _all_again(self, view: JobView, again: Again, notices: Sequence[str]) -> StartedJob:
        """Every run of the job goes on that has something left, if only its score to be computed."""
        said, goes_on = list(notices), False
        for run in self.fetch_job(view.id).runs:
            settled = 0 if again.names_agents else run.score.errors.get(Category.AGENT, 0)
            settled = settled if again.errors_too else run.counts["ERROR"]
            left = run.total - run.counts["FINISHED"] - run.counts.get("SKIPPED", 0) - settled
            cost = run.cost
            if left and cost and (reached := limit_reached(run.id, cost.total, cost.limit)):
                said.append(reached)
            elif left or RunState(run.state) not in (RunState.FINISHED, RunState.STOPPED):
                said += self._runs.go_on(run.id, again).notices
                goes_on = True
        found = self.fetch_job(view.id)
        if found.ended and not goes_on:
            said.append("nothing is left to run")
        return StartedJob(found, list(dict.fromkeys(said)))

    def _job(self, connection: Connection, job_id: str) -> JobView:
        row = jobs.get(connection, job_id)
        ids = [run.id for run in jobs.runs_of(connection, [job_id])[job_id]]
        views = [self._reader.view(connection, run_id, detailed=True) for run_id in ids]
        return job_view(row, views, org=self._context.identity.org)

    def _job_of_rows(self, row: Any, rows: Sequence[Any]) -> JobView:
        executor = self._reader.executor_state()
        views = [
            run_view(
                one, executor=executor, folder=self._reader.folder(one.id), org=self._context.identity.org
            )
            for one in rows
        ]
        return job_view(row, views, org=self._context.identity.org)

    def _job_is_stored(self, job_id: str) -> bool:
        with self._context.store.reading() as connection:
            return jobs.exists(connection, job_id)


def _template(request: JobRequest) -> RunRequest:
    """Each run may use the whole pool; what they share is seen to when trials are leased."""
    return replace(request.template, concurrency=request.concurrency)


def _new_runs(
    job_id: str, prepared: Sequence[PreparedRun], first: int = 0, space: uuid.UUID = _SPACE
) -> list[NewRun]:
    return [
        NewRun(
            str(uuid.uuid5(space, f"{job_id} {position}")),
            one,
            {"job_id": job_id, "job_position": position},
        )
        for position, one in enumerate(prepared, first)
    ]


def _refuse_problems(prepared: Sequence[PreparedRun]) -> Sequence[PreparedRun]:
    problems = [problem for one in prepared for problem in one.problems]
    if problems:
        raise refuse(problems, {name: what for one in prepared for name, what in one.missing.items()})
    return prepared


def _missing(refused: Sequence[str]) -> dict[str, str]:
    errors = (getattr(one, "error", None) for one in refused)
    return {name: what for error in errors for name, what in getattr(error, "missing", {}).items()}
