"""`benchmark-job start`, `stop`, `resume`, `retry`, `delete`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from benchmark_runner.terminal import safe
from valkyrie.cli.job import (
    CATEGORIES,
    agent_option,
    attempts_option,
    concurrency_option,
    error_rate_option,
    follow_option,
    job_argument,
    margin_option,
    multiplier_option,
    output_option,
    scenarios_option,
    stop_option,
    time_limit_option,
    timeout_option,
)
from valkyrie.cli.options import (
    Decorated,
    chosen_tasks,
    confirm,
    header_option,
    start_asking,
    tracker,
    verb,
    with_configured,
    yes_option,
)
from valkyrie.cli.output import Output
from valkyrie.cli.run_start import default_provider
from valkyrie.cli.run_start import start as run_start
from valkyrie.cli.vocabulary import AgentPairs, Pairs, with_models
from valkyrie.compare.job_documents import job_document
from valkyrie.compare.job_sides import ACTIVE, rule_text, run_names
from valkyrie.compare.job_tables import job_state, next_commands, plan_table, started_rows
from valkyrie.report.formats import counts_line, plural
from valkyrie.report.run_details import gaps_text
from valkyrie.views import RunRequest, to_json
from valkyrie.views.jobs import (
    DEFAULT_CONCURRENCY,
    DEFAULT_ERROR_RATE,
    DEFAULT_TIMEOUT_S,
    JobAgent,
    JobChange,
    JobRequest,
    JobRetry,
    JobStop,
)

if TYPE_CHECKING:
    from valkyrie.tracker.protocol import Tracker
    from valkyrie.views.jobs import JobView, StartedJob


EXAMPLES = """
valk job start --agent oracle --agent nop --benchmark quickstart --connect
valk job start --agent claude-code:claude-sonnet-4-5 --agent codex:gpt-5 --benchmark aime --trials 4
valk job start --agent ./mine:gpt-x --task-ids fix-the-bug parse-dates -n trial-of-mine
valk job start --agent my-agent --benchmark quickstart --env-vars DEBUG=1 --secrets API_KEY=my-key
valk job start --agent oracle --benchmark quickstart --concurrency 50 --timeout 3600 -o json
valk job start --agent old --agent new --benchmark swe-bench --stop-when-decided --margin 5
"""
_BORROWED = (
    *("dataset", "task_ids", "task_ids_file", "slice_", "provider", "kwargs", "label", "model_url"),
    *(
        "priority",
        "max_cost",
        "abort_after",
        "max_attempts",
        "host_image",
        "on_agent_failure",
        "keep_sandbox",
    ),
    *("verify", "family", "pass_env", "allow_paths"),
    *("headers", "ignore_custom_services", "no_store_secrets"),
    *("intervals", "webhook", "webhook_url", "webhook_key", "lambda_function"),
)


def _options_of_run_start(function: Decorated) -> Decorated:
    """What means the same for one run and for a job's runs is the same option."""
    known = {option.name: option for option in run_start.params}
    params: list[click.Parameter] = function.__dict__.setdefault("__click_params__", [])
    params += reversed([known[name] for name in _BORROWED])
    return function


def _pairs_option(flag: str, name: str, metavar: str, help: str) -> Callable[[Decorated], Decorated]:
    return click.option(flag, name, cls=Pairs, metavar=metavar, help=help)


@verb("start", examples=EXAMPLES)
@agent_option(
    required=True,
    help="Agent, by name or folder, and its model if it needs one; split at the first colon. Repeatable.",
)
@click.option("--model", metavar="MODEL", help="Model of the agents that name none.")
@click.option(
    "--benchmark",
    "benchmarks",
    multiple=True,
    metavar="NAME|FOLDER|URL",
    help="Benchmark to run; --task-ids alone finds its own. Repeatable: each agent has a run on each.",
)
@scenarios_option("Tasks to run instead of a benchmark; --task-ids does the same.", hidden=True)
@click.option(
    "--agent-kwarg",
    "agent_kwargs",
    cls=AgentPairs,
    metavar="AGENT KEY=VALUE",
    help="A parameter of one agent alone, by its name or NAME:MODEL; -k is for all. Repeatable.",
)
@click.option("--job-name", "-n", "name", metavar="NAME", help="Name for this job [default: made up].")
@_pairs_option(
    "--env-vars", "env_vars", "KEY=VALUE…", "Environment variables of the agents; not for secrets."
)
@_pairs_option(
    "--secrets", "secrets", "ENV=SECRET…", "Fill the environment variable ENV from the secret SECRET."
)
@timeout_option(
    f"Seconds an agent may take, whatever a task says [default: the task's own, else {DEFAULT_TIMEOUT_S:g}]."
)
@attempts_option(1, "Trials of each task, independent of each other.")
@concurrency_option(DEFAULT_CONCURRENCY, "Trials at once, of all agents together.")
@multiplier_option(1.0)
@_pairs_option("--metadata", "metadata", "KEY=VALUE…", "Words of yours, kept with the job.")
@time_limit_option
@stop_option
@margin_option
@error_rate_option
@_options_of_run_start
@click.option(
    "--dry-run", is_flag=True, help="Plan and check everything, start nothing; exit 1 if it would not start."
)
@follow_option
@output_option
def start(output: Output, *, dry_run: bool, follow: bool, **given: Any) -> int:
    """Start a job: agents × tasks × trials, side by side.

    Every agent gets the same tasks; all trials share one pool of --concurrency, fairly. The job is
    planned and checked whole before anything is stored; it returns at once with the job's id and the
    commands one needs next.

    An option with … takes several words up to the next flag, and may be repeated: --task-ids a b c.
    """
    request = _request(**given)
    with tracker(to_start=not dry_run) as opened:
        if dry_run:
            return _show_plan(opened, request, output)
        started = start_asking(
            output,
            lambda names: opened.start_job(
                replace(request, template=replace(request.template, pass_env=names))
            ),
            request.template.pass_env,
        )
        show_started(started, "Job started", output, follow=follow)
        if not follow:
            return 0
        from valkyrie.cli.job_status import watch_job

        return watch_job(opened, started.job.id, output)


def _request(
    *,
    agents: Sequence[JobAgent],
    model: str | None,
    agent_kwargs: Sequence[tuple[str, str, str]],
    benchmarks: tuple[str, ...],
    scenarios: tuple[str, ...],
    name: str | None,
    metadata: Mapping[str, str],
    concurrency: int,
    time_limit: float | None,
    stop_when_decided: bool,
    margin: float | None,
    error_rate: float | None,
    **given: Any,
) -> JobRequest:
    if not stop_when_decided and (margin is not None or error_rate is not None):
        raise click.UsageError("--margin and --error-rate go with --stop-when-decided.")
    if not benchmarks and not scenarios:
        scenarios = tuple(chosen_tasks(given.pop("task_ids"), given.pop("task_ids_file")) or ())
        given |= {"task_ids": None, "task_ids_file": None}
    if benchmarks and scenarios:
        raise click.UsageError("Give either --benchmark or --scenarios; --task-ids are tasks of a benchmark.")
    if not benchmarks and not scenarios:
        raise click.UsageError("Give either --benchmark or --scenarios (--task-ids is the same).")
    if scenarios and any(given[option] for option in ("slice_", "task_ids", "task_ids_file")):
        raise click.UsageError("--scenarios already names the tasks; leave --slice and --task-ids out.")
    if name is not None and not name.strip():
        raise click.UsageError("--job-name is empty; leave it out for a made-up one.")
    one = benchmarks[0] if len(benchmarks) == 1 else ""
    return JobRequest(
        agents=_with_kwargs(with_models(agents, model), agent_kwargs),
        template=_template(one, concurrency, **given),
        scenarios=tuple(dict.fromkeys(scenarios)),
        benchmarks=() if one else benchmarks,
        name=name,
        concurrency=concurrency,
        metadata=metadata,
        time_limit=time_limit,
        stop_when_decided=stop_when_decided,
        margin=None if margin is None else margin / 100,
        error_rate=DEFAULT_ERROR_RATE if error_rate is None else error_rate,
    )


def _with_kwargs(agents: Sequence[JobAgent], given: Sequence[tuple[str, str, str]]) -> Sequence[JobAgent]:
    """Agents with the parameters that are theirs alone."""
    found = list(agents)
    for word, key, value in given:
        places = [place for place, one in enumerate(found) if word in (one.agent, one.said)]
        if not places:
            names = ", ".join(one.said for one in agents)
            raise click.UsageError(
                f"--agent-kwarg: no agent of the job is called {word!r}. There are: {names}."
            )
        for place in places:
            one = found[place]
            if key in one.kwargs:
                raise click.UsageError(f"--agent-kwarg: {key} of {one.said} is given twice.")
            found[place] = replace(one, kwargs={**one.kwargs, key: value})
    return found


def _template(
    benchmark: str,
    concurrency: int,
    *,
    slice_: str | None,
    task_ids: str | None,
    task_ids_file: str | None,
    provider: str | None,
    intervals: tuple[int, ...],
    webhook: str | None,
    webhook_url: str | None,
    webhook_key: str | None,
    no_store_secrets: bool,
    agent_timeout: float | None,
    **given: Any,
) -> RunRequest:
    """What all runs of the job have in common."""
    return RunRequest(
        agent="",
        benchmark=benchmark,
        concurrency=concurrency,
        slice=slice_,
        task_ids=chosen_tasks(task_ids, task_ids_file),
        provider=provider or default_provider(),
        store_secrets=not no_store_secrets,
        agent_timeout=agent_timeout,
        default_agent_timeout=DEFAULT_TIMEOUT_S,
        **with_configured(
            intervals=intervals, webhook=webhook, webhook_url=webhook_url, webhook_key=webhook_key
        ),
        **given,
    )


def show_started(started: StartedJob, title: str, output: Output, *, follow: bool) -> None:
    """The panel of a job that was handed to an executor, and what one may do next."""
    job = started.job
    output.notices(started.notices)
    output.emit("job", event="launch", **job_document(job), notices=list(started.notices))
    output.panel(title, started_rows(job, output.ink))
    if not follow:
        output.panel("Next", next_commands(job, everything=True))


def _show_plan(opened: Tracker, request: JobRequest, output: Output) -> int:
    plan = opened.plan_job(request)
    output.emit(
        "job_plan",
        plans=[to_json(one) for one in plan.plans],
        problems=list(plan.problems),
        would_start=not plan.problems,
        digest=plan.digest,
        stop_rule=plan.stop_rule,
    )
    if output.json:
        return 1 if plan.problems else 0
    if plan.plans:
        output.table(plan_table(plan.plans, output.ink))
    shown = dict.fromkeys(gaps_text(one.shows) for one in plan.plans if one.shows)
    output.lines(f"It can show: {text}." for text in shown)
    if plan.stop_rule is not None:
        output.line(f"It stops {rule_text(plan.stop_rule)}.")
    for one in plan.plans:
        output.lines(
            f"{safe(one.agent)}: {safe(name)} → {safe(place)}" for name, place in one.destinations.items()
        )
    output.notices(dict.fromkeys(notice for one in plan.plans for notice in one.notices))
    for problem in plan.problems:
        output.line(f"{output.ink.paint('✗', 'red')} {safe(problem, keep_lines=True)}")
    output.line("It would not start." if plan.problems else "Everything is in order; nothing was started.")
    return 1 if plan.problems else 0


# `benchmark-job stop`, `resume`, `retry`, `delete`.


@verb("stop", examples="valk job stop 3f2a\nvalk job stop nightly --force --yes")
@job_argument
@click.option("--force", is_flag=True, help="Kill trials under way instead of letting them finish.")
@yes_option
@output_option
def stop(output: Output, *, ref: str, force: bool, yes: bool) -> int:
    """Stop a job; trials under way finish unless forced.

    What has not begun is stopped; `job resume` goes on with it. --force asks first on a terminal; where
    nobody can be asked it needs --yes.
    """
    with tracker() as opened:
        job = opened.fetch_job(ref)
        if force:
            under_way = sum(run.counts.get(state, 0) for run in job.runs for state in ACTIVE)
            question = f"Kill {plural(under_way, 'trial')} of job {safe(job.name)} ({job.id}) under way?"
            confirm(output, question, yes=yes)
        job = opened.stop_job(job.id, JobStop(force=force))
    output.emit("job", event="update", **job_document(job))
    show_state(job, output)
    return 0


def show_state(job: JobView, output: Output) -> None:
    """A job's state, what its runs count, and what one may do next."""
    output.line(f"{job.id}  {safe(job.name)}  {job_state(job.state, output.ink)}")
    names = run_names(job)
    output.lines(f"  {names[run.id]}  {counts_line(run.counts)}" for run in job.runs)
    output.panel("Next", next_commands(job))


@verb(
    "resume",
    examples="valk job resume 3f2a --connect\n"
    "valk job resume 3f2a --agent codex:gpt-5 --concurrency 50\n"
    "valk job resume 3f2a --task-ids parse-dates sort-words --trials 4",
)
@job_argument
@agent_option(required=False, help="Add this agent to the job's. Repeatable.")
@scenarios_option("Add these tasks to the job's; `all` is every task of its benchmark.", "--task-ids")
@attempts_option(None, "Trials of each task from now on; never fewer than before.")
@concurrency_option(None, "Trials at once from now on.")
@timeout_option("Seconds an agent may take from now on.")
@multiplier_option(None)
@time_limit_option
@header_option
@follow_option
@output_option
def resume(
    output: Output,
    *,
    ref: str,
    agents: Sequence[JobAgent],
    scenarios: tuple[str, ...],
    trials: int | None,
    concurrency: int | None,
    agent_timeout: float | None,
    timeout_multiplier: float | None,
    time_limit: float | None,
    headers: dict[str, str],
    follow: bool,
) -> int:
    """Go on, perhaps with more agents, tasks or trials.

    Stopped trials run again, what a crash interrupted goes on, and what was added begins; what has ended
    is never run again. Everything left out stays as it was.
    """
    change = JobChange(
        agents=with_models(agents),
        scenarios=tuple(dict.fromkeys(scenarios)),
        trials=trials,
        concurrency=concurrency,
        agent_timeout=agent_timeout,
        timeout_multiplier=timeout_multiplier,
        time_limit=time_limit,
        headers=headers,
    )
    with tracker(to_start=True) as opened:
        return _go_on(opened, opened.resume_job(ref, change), follow, output)


@verb("retry", examples="valk job retry 3f2a\nvalk job retry 3f2a --category infrastructure --connect")
@job_argument
@click.option("--category", type=click.Choice(CATEGORIES), help="Only errors of this category.")
@concurrency_option(None, "Trials at once from now on.")
@header_option
@follow_option
@output_option
def retry(
    output: Output,
    *,
    ref: str,
    follow: bool,
    **same: Any,
) -> int:
    """Run errored (and stopped) trials again.

    Ends by the agent's own doing count as the worst score and stay, unless --category agent is given. Earlier
    attempts and their logs are kept; what was graded is not run again.
    """
    with tracker(to_start=True) as opened:
        started = opened.retry_job(ref, JobRetry(**same))
        return _go_on(opened, started, follow, output)


@verb("delete", examples="valk job delete 3f2a --yes")
@job_argument
@yes_option
@output_option
def delete(output: Output, *, ref: str, yes: bool) -> int:
    """Forget an ended job, its runs and all that was kept.

    Results, logs and kept files are deleted for good. A job in progress is refused: stop it first.
    """
    with tracker() as opened:
        job = opened.fetch_job(ref)
        what = f"job {safe(job.name)} ({job.id}) and its {plural(len(job.runs), 'run')}"
        confirm(output, f"Delete {what} for good?", yes=yes)
        opened.delete_job(job.id)
    output.emit("job_deleted", job_id=job.id)
    output.line(f"Deleted {what}.")
    return 0


def _go_on(opened: Tracker, started: StartedJob, follow: bool, output: Output) -> int:
    job = started.job
    show_started(started, "Nothing to do" if job.ended else "Job goes on", output, follow=follow or job.ended)
    if not follow or job.ended:
        return 0
    from valkyrie.cli.job_status import watch_job

    return watch_job(opened, job.id, output)
