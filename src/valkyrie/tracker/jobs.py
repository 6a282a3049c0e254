"""Verbs about jobs: several runs started together, sharing one pool of concurrency, and their growth."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from sandboxes.protocol import host_memory_mb
from sandboxes.registry import open_provider
from valkyrie import agents, benchmarks, views
from valkyrie.agents import PreparedAgent
from valkyrie.benchmarks.catalog import known_benchmarks
from valkyrie.benchmarks.protocol import Benchmark, select
from valkyrie.domain import Category, Json, RunState, TaskSpec
from valkyrie.errors import MissingSecretError, UsageError, UserError, ValkyrieError
from valkyrie.plan import Settings, TrialPlan, as_planned, make_plan, plan_digest, shuffled
from valkyrie.report.presentation import job_view, run_view
from valkyrie.store import jobs, runs
from valkyrie.store.schema import cursor_after
from valkyrie.tracker import job_plan
from valkyrie.tracker.app import CallerContext
from valkyrie.tracker.checks import LONGEST_S, MOST_STRETCH, Problem, check_trials, refuse, unfit
from valkyrie.tracker.job_plan import JobPlanned, Selection, select_scenarios, stop_rule
from valkyrie.tracker.run_reader import RunReader
from valkyrie.tracker.runs import Again, NewRun, RunVerbs, limit_reached, new_trials
from valkyrie.tracker.secrets import given_again

if TYPE_CHECKING:
    from valkyrie.store import Connection
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

    def plan_job(self, request: views.JobRequest) -> views.JobPlan:
        planned = self._planned(request)
        prepared = self._prepared(planned.requests(_template(request)), only_look=self._context.only_looks)
        problems = [str(problem) for one in prepared for problem in one.problems]
        rule = stop_rule(request, prepared)
        digest = plan_digest([one.trials for one in prepared], rule)
        plans = [replace(one.view(), shows=self._runs.shown_gaps(one)) for one in prepared]
        return views.JobPlan(plans, list(dict.fromkeys(problems)), digest, rule)

    def start_job(self, request: views.JobRequest, *, key: str | None = None) -> views.StartedJob:
        job_id = str(uuid.uuid5(_SPACE, f"{self._context.identity.org_id} {key}") if key else uuid.uuid4())
        if key and self._job_is_stored(job_id):
            return views.StartedJob(
                self.fetch_job(job_id), ["this start was asked for before; here is its job"]
            )
        planned = self._planned(request)
        prepared = _refuse_problems(self._prepared(planned.requests(_template(request))))
        rule = stop_rule(request, prepared)
        digest = plan_digest([one.trials for one in prepared], rule)
        if rule is not None:
            # By the job's id, which nobody knew before: no agent can be made for the tasks that come first.
            prepared = [replace(one, trials=shuffled(one.trials, job_id), stop_rule=rule) for one in prepared]
        new = _new_runs(job_id, prepared)
        names = {one.request.benchmark: one.benchmark.name for one in prepared}
        now = time.time()
        values = {
            "id": job_id,
            "org_id": self._context.identity.org_id,
            "name": job_plan.job_name(request, now),
            "started_by": self._context.identity.person,
            "created_at": now,
            "concurrency": request.concurrency,
            "ends_at": None if request.time_limit is None else now + request.time_limit,
            "about": dict(request.metadata),
            "arguments": {
                **job_plan.stored(request, planned, names),
                "digest": digest,
            },
            "stop_rule": rule,
        }
        notices = self.store_runs(new, lambda connection: jobs.create(connection, values))
        return views.StartedJob(self.fetch_job(job_id), notices)

    def fetch_job(self, ref: str) -> views.JobView:
        with self._context.store.reading() as connection:
            return self._job(connection, self._context.resolve_job(connection, ref))

    def follow_job(self, ref: str, *, interval: float = 0.2) -> Iterator[views.JobView]:
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

    def list_jobs(self, query: views.JobFilter) -> views.JobPage:
        found: list[views.JobView] = []
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
                    return views.JobPage(found, cursor if last else cursor_after(row))
            if cursor is None:
                return views.JobPage(found, None)

    def stop_job(self, ref: str, request: views.JobStop = views.JobStop()) -> views.JobView:
        view = self.fetch_job(ref)
        if view.ended:
            raise UserError(f"Job {view.name!r} is {view.state} already; there is nothing to cancel.")
        with self._context.store.writing() as connection:
            for run_id in sorted(run.id for run in view.runs):
                if not RunState(runs.locked(connection, run_id).state).terminal:
                    runs.stop(connection, run_id, time.time(), force=request.force, task_ids=None)
        self._context.dispatch.wake(needed=True)
        return self.fetch_job(view.id)

    def resume_job(self, ref: str, change: views.JobChange | None = None) -> views.StartedJob:

        view = self.fetch_job(ref)
        if (kind := view.source.get("type")) in ("eval", "experiment"):
            command = "eval" if kind == "eval" else "experiment run"
            raise UserError(
                f"Job {view.name!r} is an {kind}; `valk {command} --resume {view.id[:8]}` goes on."
            )
        change = change or views.JobChange()
        notices = grow(self._context, self, view, change)
        again = Again(views.ResumeRequest(headers=change.headers))
        return self._all_again(view, again, notices)

    def retry_job(self, ref: str, request: views.JobRetry = views.JobRetry()) -> views.StartedJob:
        view = self.fetch_job(ref)
        if request.concurrency is not None:
            self.share(view.id, request.concurrency)
        category = request.category
        asked = views.ResumeRequest(headers=request.headers)
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

    def prepare_runs(self, job_id: str, requests: Sequence[views.RunRequest], first: int) -> list[NewRun]:
        """Further runs of a job, planned and checked."""
        prepared = _refuse_problems(self._prepared(requests))
        # Ids of their own: two who add runs at the same time must not freeze their agents into one folder.
        return _new_runs(job_id, prepared, first, space=uuid.uuid4())

    def store_runs(self, new: Sequence[NewRun], also: Callable[[Connection], None]) -> list[str]:
        """Store further runs, and what comes with them, at once; what is to be said of them."""
        self._runs.store_all(new, also)
        return self._hand_over(new)

    def select(self, scenarios: Sequence[str], template: views.RunRequest) -> list[Selection]:
        """Return the tasks that scenarios name, as far as whoever asks may name them."""

        def open_one(name: str) -> Any:
            asked = replace(template, benchmark=name)
            return self._context.open_benchmark(asked)

        known = [one.name for one in known_benchmarks() if one.url is None]
        return select_scenarios(scenarios, known, open_one)

    def _planned(self, request: views.JobRequest) -> JobPlanned:
        job_plan.check(request)
        template = request.template
        if request.scenarios:
            return JobPlanned(list(request.agents), self.select(request.scenarios, template))
        ids = None if template.task_ids is None else tuple(template.task_ids)
        named = request.benchmarks or [template.benchmark]
        return JobPlanned(list(request.agents), [Selection(one, template.dataset, ids) for one in named])

    def _prepared(
        self, requests: Sequence[views.RunRequest], *, only_look: bool = False
    ) -> list[PreparedRun]:
        """Return every run resolved and checked; the problems of all in one refusal."""
        found: list[PreparedRun] = []
        refused: list[Problem] = []
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

    def _all_again(self, view: views.JobView, again: Again, notices: Sequence[str]) -> views.StartedJob:
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
        return views.StartedJob(found, list(dict.fromkeys(said)))

    def _job(self, connection: Connection, job_id: str) -> views.JobView:
        row = jobs.get(connection, job_id)
        ids = [run.id for run in jobs.runs_of(connection, [job_id])[job_id]]
        found = [self._reader.view(connection, run_id, detailed=True) for run_id in ids]
        return job_view(row, found, org=self._context.identity.org)

    def _job_of_rows(self, row: Any, rows: Sequence[Any]) -> views.JobView:
        executor = self._reader.executor_state()
        found = [
            run_view(
                one, executor=executor, folder=self._reader.folder(one.id), org=self._context.identity.org
            )
            for one in rows
        ]
        return job_view(row, found, org=self._context.identity.org)

    def _job_is_stored(self, job_id: str) -> bool:
        with self._context.store.reading() as connection:
            return jobs.exists(connection, job_id)


def _template(request: views.JobRequest) -> views.RunRequest:
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


def _missing(refused: Sequence[Problem]) -> dict[str, str]:
    errors = [one.error for one in refused if isinstance(one.error, MissingSecretError)]
    return {name: what for error in errors for name, what in error.missing.items()}


# Growth of a job: more agents, tasks or trials, or other limits; what ended stays as it is.

ALL = "all"
MOST_PLANS = 5
"""So often a growth is planned when others change the job meanwhile."""


@dataclass(frozen=True, slots=True)
class Growth:
    """What one run gets."""

    run_id: str
    settings: Json
    trials: int
    more: Sequence[TrialPlan]


class _OvertakenError(Exception):
    """Someone else changed the job while its growth was planned."""


def grow(context: CallerContext, verbs: JobVerbs, view: views.JobView, change: views.JobChange) -> list[str]:
    """Store everything that is different; what is to be said of it. Refused whole, or done whole."""
    for _ in range(MOST_PLANS):
        try:
            return _grow(context, verbs, view, change)
        except _OvertakenError:
            continue  # planned again, from what the job has become
    raise UserError(f"Job {view.name!r} is being changed by others all the time; try again later.")


@dataclass(frozen=True, slots=True)
class _JobGrowth:
    """What a job becomes."""

    template: views.RunRequest
    selections: Sequence[Selection]
    agents: Sequence[views.JobAgent]
    growths: Sequence[Growth]
    """Of the runs that are there."""
    new: Sequence[NewRun]

    def write(self, connection: Connection) -> None:
        """Store what runs that are there get."""
        for growth in self.growths:
            if growth.more:
                runs.extend(connection, growth.run_id, new_trials(growth.more))
            _keep_settings(connection, growth)

    def arguments(self, before: Json) -> Json:
        """Return the job's arguments; of a job that grew the digest is not known."""
        grows = bool(self.new) or any(one.more for one in self.growths)
        changed = ("trials", "slice", "agent_timeout", "timeout_multiplier", "concurrency")
        now = asdict(self.template)
        return {
            **{name: value for name, value in before.items() if name != "digest" or not grows},
            "agents": [asdict(agent) for agent in self.agents],
            "selections": [asdict(one) for one in self.selections],
            "template": before["template"] | {name: now[name] for name in changed},
        }


def _grow(context: CallerContext, verbs: JobVerbs, view: views.JobView, change: views.JobChange) -> list[str]:
    with context.store.reading() as connection:
        row = jobs.get(connection, view.id)
        rows = jobs.runs_of(connection, [view.id])[view.id]
    _check(change, row.arguments["template"]["trials"])
    if row.stop_rule is not None and (change.agents or change.scenarios or change.trials is not None):
        raise UsageError(
            f"Job {view.name!r} stops when it is decided: what it compares was fixed before it began. "
            "Start a new job for other agents, tasks or trials."
        )
    planned = _plan_growth(context, verbs, row, rows, change)
    values: Json = {"arguments": planned.arguments(row.arguments)}
    notices = _under_way(view, change)
    if change.time_limit is not None:
        values["ends_at"] = time.time() + change.time_limit
    elif row.ends_at is not None and row.ends_at <= time.time():
        values["ends_at"] = None
        notices.append("the job's time limit was over; it goes on without one (--time-limit sets another)")

    def write(connection: Connection) -> None:
        if jobs.locked(connection, view.id).version != row.version:
            raise _OvertakenError
        planned.write(connection)
        jobs.change(connection, view.id, **values)
        if change.concurrency is not None:
            jobs.share(connection, view.id, change.concurrency)

    return [*notices, *verbs.store_runs(planned.new, write)]


def _plan_growth(
    context: CallerContext, verbs: JobVerbs, row: Any, rows: Sequence[Any], change: views.JobChange
) -> _JobGrowth:
    """Plan what each run gets, and the runs that are added: of new agents, and on new benchmarks."""
    template = _changed(job_plan.stored_template(row.arguments), change)
    had = job_plan.stored_selections(row.arguments)
    selections: Sequence[Selection] = had
    trials_grow = change.trials is not None or bool(change.scenarios)
    if template.slice is not None and (trials_grow or change.agents):
        selections = [_sliced(context, rows, template, one) for one in selections]
        template = replace(template, slice=None)
    selections = _more(context, verbs, change, template, selections)
    growths = [
        _growth(context, one, template, _selection_of(one, selections), trials_grow=trials_grow)
        for one in rows
    ]
    agents_had = job_plan.stored_agents(row.arguments)
    agents_new = [agent for agent in change.agents if agent not in agents_had]
    known = {(one.benchmark, one.dataset) for one in had}
    added = [one for one in selections if (one.benchmark, one.dataset) not in known]
    further = [
        *JobPlanned(agents_had, added).requests(template),
        *JobPlanned(agents_new, selections).requests(template),
    ]
    last = max((one.job_position or 0 for one in rows), default=-1)
    new = verbs.prepare_runs(row.id, further, first=last + 1)
    return _JobGrowth(template, selections, [*agents_had, *agents_new], growths, new)


def _under_way(view: views.JobView, change: views.JobChange) -> list[str]:
    """Return what cannot reach a run that an executor is at work on."""
    limits = change.agent_timeout is not None or change.timeout_multiplier is not None
    if limits and not view.ended:
        return ["runs under way keep their time limits; stop the job and resume it to change them"]
    return []


def _check(change: views.JobChange, trials: int) -> None:
    if change.concurrency is not None and change.concurrency < 1:
        raise UsageError(f"--concurrency must be at least 1, not {change.concurrency}.")
    if change.trials is not None and change.trials < trials:
        raise UsageError(f"--trials was {trials} and can only grow, not become {change.trials}.")
    stretch = change.timeout_multiplier
    if stretch is not None and not 0 < stretch <= MOST_STRETCH:
        raise UsageError(
            f"--timeout-multiplier must be above 0 and at most {MOST_STRETCH:g}, not {stretch:g}."
        )
    job_plan.check_seconds("--timeout", change.agent_timeout, LONGEST_S)
    job_plan.check_seconds("--time-limit", change.time_limit)


def _changed(template: views.RunRequest, change: views.JobChange) -> views.RunRequest:
    given = {
        "trials": change.trials,
        "agent_timeout": change.agent_timeout,
        "timeout_multiplier": change.timeout_multiplier,
        "concurrency": change.concurrency,
        "headers": change.headers or None,
    }
    return replace(template, **{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]


def _sliced(
    context: CallerContext, rows: Sequence[Any], template: views.RunRequest, selection: Selection
) -> Selection:
    """Return the same tasks by their ids: once some are added, the slice would be another one."""
    key = selection.benchmark, selection.dataset
    row = next(one for one in rows if (one.arguments["benchmark"], one.dataset) == key)
    benchmark = benchmarks.open_frozen(row.benchmark_source, given_again(row.arguments, context.organisation))
    chosen = asyncio.run(_chosen(benchmark, selection, template.slice))
    return replace(selection, task_ids=tuple(chosen))


async def _chosen(benchmark: Benchmark, selection: Selection, slice_text: str | None) -> list[str]:
    try:
        available = await benchmark.list_tasks(selection.dataset)
        return select(available, task_ids=selection.task_ids, slice_text=slice_text)
    finally:
        await benchmark.close()


def _more(
    context: CallerContext,
    verbs: JobVerbs,
    change: views.JobChange,
    template: views.RunRequest,
    had: Sequence[Selection],
) -> list[Selection]:
    """Return the job's tasks with those that are added; `all` is every task of the benchmarks it has."""
    if ALL in change.scenarios:
        had = [replace(one, task_ids=None) for one in had]
    named = [one for one in change.scenarios if one != ALL]
    found = {(one.benchmark, one.dataset): one for one in had}
    for one in _named(context, verbs, named, template, had):
        key = one.benchmark, one.dataset
        old = found.get(key)
        if old is None:
            found[key] = one
        elif old.task_ids is not None:
            found[key] = replace(old, task_ids=tuple(dict.fromkeys([*old.task_ids, *(one.task_ids or ())])))
    return list(found.values())


def _named(
    context: CallerContext,
    verbs: JobVerbs,
    scenarios: Sequence[str],
    template: views.RunRequest,
    had: Sequence[Selection],
) -> Sequence[Selection]:
    """Scenarios of a job with one benchmark are its tasks; else they are looked up."""
    if not scenarios:
        return []
    if len(had) == 1:
        tasks = asyncio.run(_task_ids(context, template, had[0]))
        own = tuple(one for one in scenarios if one in tasks)
        if len(own) == len(scenarios):
            return [Selection(had[0].benchmark, had[0].dataset, own)]
    return verbs.select(scenarios, template)


async def _task_ids(context: CallerContext, template: views.RunRequest, selection: Selection) -> set[str]:
    asked = replace(template, benchmark=selection.benchmark, dataset=selection.dataset)
    benchmark = context.open_benchmark(asked)
    try:
        return set(await benchmark.list_tasks(selection.dataset))
    finally:
        await benchmark.close()


def _selection_of(row: Any, selections: Sequence[Selection]) -> Selection:
    asked = row.arguments["benchmark"]
    return next(one for one in selections if (one.benchmark, one.dataset) == (asked, row.dataset))


def _growth(
    context: CallerContext, row: Any, template: views.RunRequest, selection: Selection, *, trials_grow: bool
) -> Growth:
    """Return what a run that is there gets; its agent is the one that was frozen into it."""
    settings = Settings(**row.arguments["settings"])
    changed = replace(
        settings,
        agent_timeout=template.agent_timeout,
        timeout_multiplier=template.timeout_multiplier,
    )
    if not trials_grow:
        return Growth(row.id, asdict(changed), template.trials, [])
    benchmark = benchmarks.open_frozen(row.benchmark_source, given_again(row.arguments, context.organisation))
    tasks = asyncio.run(_describe(benchmark, row.dataset, selection, template))
    _refuse_unfit(context, row, tasks, template)
    digests: dict[str, Any] = {
        "agent_digest": row.arguments["agent_digest"],
        "model": row.model,
        "settings": changed,
    }
    planned = make_plan(
        tasks, trials=template.trials, host_mb=host_memory_mb(), family=template.family, **digests
    )
    with context.store.reading() as connection:
        had = runs.planned(connection, row.id)
    _refuse_changed(row, planned, tasks, had, {**digests, "settings": settings})
    more = [one for one in planned if (one.task_id, one.k) not in had]
    return Growth(row.id, asdict(changed), template.trials, more)


async def _describe(
    benchmark: Benchmark, dataset: str, selection: Selection, template: views.RunRequest
) -> list[TaskSpec]:
    try:
        chosen = select(await benchmark.list_tasks(dataset), task_ids=selection.task_ids)
        check_trials(len(chosen), template.trials)
        return [await benchmark.describe(task_id, dataset) for task_id in chosen]
    finally:
        await benchmark.close()


def _refuse_unfit(
    context: CallerContext, row: Any, tasks: Sequence[TaskSpec], template: views.RunRequest
) -> None:
    agent = agents.open_frozen(row.agent_frozen, context.data.run(row.id).agent, context.data.bundles)
    stand_in = PreparedAgent(
        row.agent,
        agent.digest,
        row.agent_frozen,
        agent.secrets,
        egress_allowlist=row.agent_frozen.get("contract", {}).get("egress_allowlist", []),
        needs_solution=agent.needs_solution,
    )
    if row.arguments.get("provider_settings"):
        return  # elsewhere: what it cannot give shows when it is asked for
    here = open_provider(row.provider, context.data.sandboxes(row.provider)).capabilities()
    if problems := unfit(tasks, stand_in, here, template):
        raise refuse(problems)


def _refuse_changed(
    row: Any,
    planned: Sequence[TrialPlan],
    tasks: Sequence[TaskSpec],
    had: dict[tuple[str, int], str],
    older: dict[str, Any],
) -> None:
    """Trials are what their digests say: a task whose files changed since is another task."""
    specs = {task.id: task for task in tasks}
    changed = sorted(
        {
            one.task_id
            for one in planned
            if (one.task_id, one.k) in had
            and as_planned(specs[one.task_id], one.k, had[one.task_id, one.k], **older) is None
        }
    )
    if changed:
        names = ", ".join(map(repr, changed[:5]))
        raise UserError(
            f"Run {row.id[:8]} cannot grow: {names} changed since it was planned. Restore the files, or "
            "start a new job.",
            cause="task_changed",
        )


def _keep_settings(connection: Any, growth: Growth) -> None:
    row = runs.get(connection, growth.run_id)
    arguments = {**row.arguments, "settings": growth.settings, "trials": growth.trials}
    if row.arguments != arguments:
        runs.set_values(connection, growth.run_id, arguments=arguments)
