"""`run start`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from benchmark_runner.terminal import safe
from sandboxes.registry import PROVIDERS
from valkyrie.cli.options import (
    Number,
    WholeNumber,
    abort_option,
    allow_path_option,
    chosen_tasks,
    header_option,
    ignore_custom_option,
    max_cost_option,
    notify_options,
    pass_env_option,
    start_asking,
    task_options,
    tracker,
    verb,
    with_configured,
)
from valkyrie.cli.output import Output
from valkyrie.cli.vocabulary import Pairs, split_agent
from valkyrie.config.values import config_path, effective
from valkyrie.domain import ABORT_AFTER, DEFAULT_PRIORITY
from valkyrie.errors import InfrastructureError, UserError
from valkyrie.report.formats import NONE, plural, short_id
from valkyrie.report.tables import next_commands, shows_rows, started_rows
from valkyrie.views import RunRequest, to_json

if TYPE_CHECKING:
    from valkyrie.tracker.protocol import Tracker
    from valkyrie.views import PlanView, StartedRun


MOST_RUNS = 10


def start_repeatedly(opened: Tracker, request: RunRequest, count: int, output: Output) -> int:
    """Start one after another; the first that fails ends it, and what was started is told and goes on."""
    started: list[StartedRun] = []
    try:
        while len(started) < count:
            started.append(opened.start(request))
    except BaseException as error:
        if started:
            # A broken connection does not tell whether the last one was taken.
            sure = isinstance(error, Exception) and not isinstance(error, InfrastructureError)
            _show(started, count, "partial" if sure else "uncertain", output)
        raise
    _show(started, count, "in_progress", output)
    return 0


def _show(started: Sequence[StartedRun], requested: int, outcome: str, output: Output) -> None:
    notices = list(dict.fromkeys(notice for one in started for notice in one.notices))
    runs = [one.run for one in started]
    output.notices(notices)
    output.emit(
        "runs",
        event="launch",
        outcome=outcome,
        requested=requested,
        attempted=len(runs) if outcome == "in_progress" else len(runs) + 1,
        confirmed=len(runs),
        runs=[to_json(run) for run in runs],
        notices=notices,
    )
    ids = [(f"Run {number}", output.ink.paint(run.id, "bold")) for number, run in enumerate(runs, 1)]
    shared = [row for row in started_rows(runs[0], output.ink) if row[0] not in ("Run", "Folder", "Note")]
    title = (
        f"{plural(requested, 'run')} started"
        if len(runs) == requested
        else f"{len(runs)} of {requested} started"
    )
    output.panel(title, [*ids, *shared])
    track = [("Track", f"valk run fetch {short_id(run.id)} --connect") for run in runs]
    output.panel("Next", [*track, ("All", f"valk run list --limit {len(runs)}")])


# `run start`.

EXAMPLES = """
valk run start --agent oracle --benchmark quickstart --connect
valk run start --agent ./my-agent --benchmark ./my-tasks --model openai/gpt-4o -s OPENAI_API_KEY my-key
valk run start --agent my-agent --benchmark quickstart --slice :3 --dry-run
valk run start --agent my-agent --benchmark my-service --dataset lite -H X-Team blue
valk run start --agent my-agent --benchmark quickstart --max-cost 25 -i 50 --webhook slack-hook --count 3
"""


def _complete_provider(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in PROVIDERS if name.startswith(incomplete)]


@verb("start", examples=EXAMPLES)
@click.option(
    "--agent",
    required=True,
    metavar="NAME|FOLDER[:MODEL]",
    help="Agent: pushed, built in, or a folder; its model may follow.",
)
@click.option(
    "--benchmark",
    required=True,
    metavar="NAME|FOLDER|URL",
    help="Benchmark: by name (shipped, added, or a service), a folder of tasks, or a service's URL.",
)
@click.option("--model", metavar="MODEL", help="Model key given to the agent, e.g. openai/gpt-4o.")
@click.option(
    "--model-url", metavar="URL", help="Where the model is served, if not at its vendor's; no key is needed."
)
@click.option(
    "--dataset", metavar="NAME", default="default", show_default=True, help="Dataset of the benchmark."
)
@click.option(
    "--concurrency",
    type=WholeNumber(min=1),
    metavar="N",
    help="Trials at once [default: default_concurrency, else 5].",
)
@click.option(
    "--secret",
    "-s",
    "secrets",
    cls=Pairs,
    metavar="ENV=NAME",
    help="Fill environment variable ENV from the secret NAME; over the contract's own. Repeatable.",
)
@click.option(
    "--kwarg",
    "-k",
    "kwargs",
    cls=Pairs,
    metavar="KEY=VALUE",
    help="A parameter the agent's contract declares. Repeatable.",
)
@click.option(
    "--env",
    "-e",
    "env_vars",
    cls=Pairs,
    metavar="NAME=VALUE",
    help="An environment variable of the agent's commands; for secrets use -s. Repeatable.",
)
@pass_env_option
@allow_path_option
@task_options
@click.option(
    "--slice",
    "slice_",
    metavar="START:STOP:STEP",
    help="A slice of the task list, or of --task-ids, as in Python; `5` is `5:`.",
)
@click.option("--label", "-l", metavar="LABEL", help="A word of yours to find the run again.")
@click.option(
    "--provider",
    metavar="NAME",
    shell_complete=_complete_provider,
    help="Where trials run: local, process, daytona, docker, null [default: default_provider, else local].",
)
@header_option
@ignore_custom_option
@click.option(
    "--host-image", is_flag=True, help="Run tasks that name an image on the host's file system anyway."
)
@click.option(
    "--on-agent-failure",
    type=click.Choice(["grade", "error"]),
    default="grade",
    show_default=True,
    help="When the agent exits non-zero: grade what it left, or end the trial as an error.",
)
@click.option(
    "--verify",
    type=click.Choice(["fresh", "shared", "both"]),
    help="Where tests run: in a fresh sandbox the agent's work is carried to, in the one the agent left, or "
    "in both [default: as each task or the benchmark's lock file says, else both].",
)
@click.option(
    "--family",
    metavar="KEY",
    help="Key of the tasks' metadata that says which tasks resemble each other (a repository, a template): "
    "intervals and tests then go over families [default: family].",
)
@click.option("--keep-sandbox", is_flag=True, help="Keep each sandbox after its trial, for `run debug`.")
@click.option(
    "--trials",
    type=WholeNumber(min=1),
    metavar="N",
    default=1,
    show_default=True,
    help="Repetitions of each task.",
)
@click.option(
    "--timeout",
    "agent_timeout",
    type=Number(min=0, min_open=True),
    metavar="SECONDS",
    help="How long the agent may take, whatever the tasks say.",
)
@click.option(
    "--timeout-multiplier",
    type=Number(min=0, min_open=True),
    metavar="X",
    default=1.0,
    show_default=True,
    help="Stretch every time limit of the tasks by this factor.",
)
@click.option(
    "--max-attempts",
    type=WholeNumber(min=1),
    metavar="N",
    help="Attempts per trial where retries are allowed.",
)
@click.option(
    "--priority",
    type=WholeNumber(0, 4),
    metavar="0..4",
    default=DEFAULT_PRIORITY,
    show_default=True,
    help="Share of the slots: 0 is the largest, each step halves it.",
)
@max_cost_option
@abort_option(ABORT_AFTER)
@notify_options
@click.option(
    "--count",
    "-n",
    type=WholeNumber(1, MOST_RUNS),
    metavar="N",
    default=1,
    show_default=True,
    help=f"Start so many independent runs of it, one after another; at most {MOST_RUNS}.",
)
@click.option(
    "--no-store-secrets",
    is_flag=True,
    help="Refuse rather than let a tracker keep, encrypted, what only this machine's environment has.",
)
@click.option(
    "--dry-run", is_flag=True, help="Plan and check everything, start nothing; exit 1 if it would not start."
)
@click.option("--connect", "-f", is_flag=True, help="Watch it live; Ctrl+C detaches with exit code 130.")
def start(output: Output, *, dry_run: bool, connect: bool, count: int, **given: Any) -> int:
    """Start a run: one agent on one benchmark.

    Returns at once with the run's id and the commands one needs next; an executor works it off in the
    background. Everything is checked first: when a check fails, nothing is started. With --count the first
    run that is refused ends it; the ones before it go on.
    """
    if count > 1 and (dry_run or connect):
        raise click.UsageError(f"--count and {'--dry-run' if dry_run else '--connect'} exclude each other.")
    given["agent"], given["model"] = split_agent(given["agent"], given["model"])
    request = _request(**given)
    with tracker(to_start=not dry_run) as opened:
        if dry_run:
            return _show_plan(opened, request, output)
        if count > 1:
            return start_repeatedly(opened, request, count, output)
        started = start_asking(
            output, lambda names: opened.start(replace(request, pass_env=names)), request.pass_env
        )
        show_started(started, "Run started", output, connect=connect)
        if not connect:
            return 0
        from valkyrie.cli.run_watch import watch_until_end as watch_run

        return watch_run(opened, started.run.id, output)


def _request(
    *,
    slice_: str | None,
    task_ids: str | None,
    task_ids_file: str | None,
    concurrency: int | None,
    provider: str | None,
    intervals: tuple[int, ...],
    webhook: str | None,
    webhook_url: str | None,
    webhook_key: str | None,
    no_store_secrets: bool,
    **given: Any,
) -> RunRequest:
    return RunRequest(
        slice=slice_,
        task_ids=chosen_tasks(task_ids, task_ids_file),
        concurrency=concurrency or int(effective("default_concurrency").value or 5),
        provider=provider or default_provider(),
        store_secrets=not no_store_secrets,
        benchmark_options=spec_options(given),
        **with_configured(
            intervals=intervals, webhook=webhook, webhook_url=webhook_url, webhook_key=webhook_key
        ),
        **given,
    )


def spec_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an eval spec is read with, where the benchmark is one."""
    if not given["benchmark"].endswith((".yaml", ".yml")):
        return {}
    return {name: list(given[name]) for name in ("pass_env", "allow_paths") if given[name]}


def default_provider() -> str:
    """The provider of environment or config file, refused in the name of the place it comes from."""
    found = effective("default_provider")
    name = str(found.value or "local")
    if name not in PROVIDERS:
        variable = found.source == "environment"
        place = f"Environment variable {found.key.env}" if variable else f"Config file {config_path()}"
        raise UserError(
            f"{place}: no sandbox provider is called {name!r}; there are {', '.join(PROVIDERS)}.",
            cause="config",
        )
    return name


def show_started(started: StartedRun, title: str, output: Output, *, connect: bool) -> None:
    """The panel of a run that was handed to an executor, and what one may do next."""
    output.notices(started.notices)
    output.emit("run", event="launch", run=to_json(started.run), notices=list(started.notices))
    output.panel(title, started_rows(started.run, output.ink))
    if not connect:
        output.panel("Next", next_commands(started.run, everything=True))


def _show_plan(opened: Tracker, request: RunRequest, output: Output) -> int:
    plan = opened.plan(request)
    output.emit("plan", plan=to_json(plan), would_start=not plan.problems)
    if not output.json:
        output.panel("Plan", _plan_rows(plan))
        output.notices(plan.notices)
        for problem in plan.problems:
            output.line(f"{output.ink.paint('✗', 'red')} {safe(problem, keep_lines=True)}")
        ready = "Everything is in order; nothing was started." if not plan.problems else "It would not start."
        output.line(ready)
    return 1 if plan.problems else 0


def _plan_rows(plan: PlanView) -> list[tuple[str, str]]:
    """What would run, for a panel."""
    tasks = len({task for task, _, _ in plan.trials})
    return [
        ("Agent", f"{safe(plan.agent)}  {plan.agent_digest[:12]}"),
        ("Model", safe(plan.model) if plan.model else NONE),
        ("Benchmark", f"{safe(plan.benchmark)} ({safe(plan.dataset)})"),
        ("Trials", f"{len(plan.trials)} ({plural(tasks, 'task')})"),
        *shows_rows(plan.shows),
        ("Sandbox", safe(plan.provider)),
        ("Isolation", safe(plan.isolation)),
        ("Limits", " · ".join(f"{safe(k)}: {safe(v)}" for k, v in plan.enforcement.items()) or NONE),
        ("Secrets", ", ".join(safe(name) for name in plan.secrets) or "none"),
        *([("Given to tasks", ", ".join(map(safe, plan.variables)))] if plan.variables else []),
        *(("Key goes to", f"{safe(name)} → {safe(place)}") for name, place in plan.destinations.items()),
    ]
