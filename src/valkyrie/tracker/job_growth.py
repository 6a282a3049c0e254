"""Growth of a job: more agents, tasks or trials, or other limits; what ended stays as it is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from sandboxes.registry import open_provider
from sandboxes.values import host_memory_mb
from valkyrie import agents, benchmarks
from valkyrie.agents import PreparedAgent
from valkyrie.benchmarks.protocol import Benchmark, select
from valkyrie.domain import Json, TaskSpec
from valkyrie.errors import UsageError, UserError
from valkyrie.plan import Settings, TrialPlan, as_planned, make_plan
from valkyrie.store import jobs, runs
from valkyrie.tracker import job_plan
from valkyrie.tracker.bounds import check_trials
from valkyrie.tracker.checks import LONGEST_S, MOST_STRETCH, unfit
from valkyrie.tracker.job_plan import JobPlanned, Selection
from valkyrie.tracker.problems import refuse
from valkyrie.tracker.record import new_trials
from valkyrie.tracker.secrets import given_again
from valkyrie.views.jobs import JobChange, JobView

if TYPE_CHECKING:
    from valkyrie.store import Connection
    from valkyrie.tracker.app import CallerContext
    from valkyrie.tracker.jobs import JobVerbs

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


def grow(context: CallerContext, verbs: JobVerbs, view: JobView, change: JobChange) -> list[str]:
    """Store everything that is different; what is to be said of it. Refused whole, or done whole."""
    for _ in range(MOST_PLANS):
        try:
            return _grow(context, verbs, view, change)
        except _OvertakenError:
            continue  # planned again, from what the job has become
    raise UserError(f"Job {view.name!r} is being changed by others all the time; try again later.")


def _grow(context: CallerContext, verbs: JobVerbs, view: JobView, change: JobChange) -> list[str]:
    with context.store.reading() as connection:
        row = jobs.get(connection, view.id)
        rows = jobs.runs_of(connection, [view.id])[view.id]
    _check(change, row.arguments["template"]["trials"])
    if row.stop_rule is not None and (change.agents or change.scenarios or change.trials is not None):
        raise UsageError(
            f"Job {view.name!r} stops when it is decided: what it compares was fixed before it began. "
            "Start a new job for other agents, tasks or trials."
        )
    template = _changed(job_plan.stored_template(row.arguments), change)
    selections = job_plan.stored_selections(row.arguments)
    trials_grow = change.trials is not None or bool(change.scenarios)
    if template.slice is not None and (trials_grow or change.agents):
        selections = [_sliced(context, rows, template, one) for one in selections]
        template = replace(template, slice=None)
    selections = _more(context, verbs, change, template, selections)
    growths = [
        _growth(context, one, template, _selection_of(one, selections), trials_grow=trials_grow)
        for one in rows
    ]
    had = job_plan.stored_agents(row.arguments)
    new = [agent for agent in change.agents if agent not in had]
    known = {(one.benchmark, one.dataset) for one in job_plan.stored_selections(row.arguments)}
    added = [one for one in selections if (one.benchmark, one.dataset) not in known]
    further = [
        *JobPlanned(had, added).requests(template),
        *JobPlanned(new, selections).requests(template),
    ]
    grows = bool(further) or any(one.more for one in growths)
    last = max((one.job_position for one in rows), default=-1)
    new_runs = verbs.prepare_runs(view.id, further, first=last + 1)
    arguments = {
        **{name: value for name, value in row.arguments.items() if name != "digest" or not grows},
        "agents": [asdict(agent) for agent in [*had, *new]],
        "selections": [asdict(one) for one in selections],
        "template": row.arguments["template"]
        | {
            name: getattr(template, name)
            for name in ("trials", "slice", "agent_timeout", "timeout_multiplier", "concurrency")
        },
    }
    values: Json = {"arguments": arguments}
    notices = _under_way(view, change)
    if change.time_limit is not None:
        values["ends_at"] = time.time() + change.time_limit
    elif row.ends_at is not None and row.ends_at <= time.time():
        values["ends_at"] = None
        notices.append("the job's time limit was over; it goes on without one (--time-limit sets another)")

    def write(connection: Connection) -> None:
        if jobs.locked(connection, view.id).version != row.version:
            raise _OvertakenError
        for growth in growths:
            if growth.more:
                runs.extend(connection, growth.run_id, new_trials(growth.more))
            _keep_settings(connection, growth)
        jobs.change(connection, view.id, **values)
        if change.concurrency is not None:
            jobs.share(connection, view.id, change.concurrency)

    return [*notices, *verbs.store_runs(new_runs, write)]


def _under_way(view: JobView, change: JobChange) -> list[str]:
    """Return what cannot reach a run that an executor is at work on."""
    limits = change.agent_timeout is not None or change.timeout_multiplier is not None
    if limits and not view.ended:
        return ["runs under way keep their time limits; stop the job and resume it to change them"]
    return []


def _check(change: JobChange, trials: int) -> None:
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


def _changed(template: Any, change: JobChange) -> Any:
    given = {
        "trials": change.trials,
        "agent_timeout": change.agent_timeout,
        "timeout_multiplier": change.timeout_multiplier,
        "concurrency": change.concurrency,
        "headers": change.headers or None,
    }
    return replace(template, **{name: value for name, value in given.items() if value is not None})


def _sliced(context: CallerContext, rows: Sequence[Any], template: Any, selection: Selection) -> Selection:
    """Return the same tasks by their ids: once some are added, the slice would be another one."""
    key = selection.benchmark, selection.dataset
    row = next(one for one in rows if (one.arguments["benchmark"], one.dataset) == key)
    benchmark = benchmarks.open_frozen(row.benchmark_source, given_again(row.arguments, context.organisation))
    chosen = asyncio.run(_chosen(benchmark, selection, template.slice))
    return replace(selection, task_ids=tuple(chosen))


async def _chosen(benchmark: Benchmark, selection: Selection, slice_text: str) -> list[str]:
    try:
        available = await benchmark.list_tasks(selection.dataset)
        return select(available, task_ids=selection.task_ids, slice_text=slice_text)
    finally:
        await benchmark.close()


def _more(
    context: CallerContext, verbs: JobVerbs, change: JobChange, template: Any, had: Sequence[Selection]
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
    context: CallerContext, verbs: JobVerbs, scenarios: Sequence[str], template: Any, had: Sequence[Selection]
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


async def _task_ids(context: CallerContext, template: Any, selection: Selection) -> set[str]:
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
    context: CallerContext, row: Any, template: Any, selection: Selection, *, trials_grow: bool
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
    benchmark: Benchmark, dataset: str, selection: Selection, template: Any
) -> list[TaskSpec]:
    try:
        chosen = select(await benchmark.list_tasks(dataset), task_ids=selection.task_ids)
        check_trials(len(chosen), template.trials)
        return [await benchmark.describe(task_id, dataset) for task_id in chosen]
    finally:
        await benchmark.close()


def _refuse_unfit(context: CallerContext, row: Any, tasks: Sequence[TaskSpec], template: Any) -> None:
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
