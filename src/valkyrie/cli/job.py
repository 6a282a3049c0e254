"""`benchmark-job list`, and the arguments and options that all commands about jobs share."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from valkyrie.agents.catalog import CATALOG
from valkyrie.cli.options import Decorated, Number, WholeNumber, tracker, verb
from valkyrie.cli.output import Output, write_json
from valkyrie.cli.vocabulary import WordsOption, between_commas, parse_agent
from valkyrie.compare.job_documents import job_document
from valkyrie.compare.job_tables import job_table
from valkyrie.domain import JobState
from valkyrie.errors import ValkyrieError
from valkyrie.text import did_you_mean
from valkyrie.views.jobs import DEFAULT_ERROR_RATE, JobAgent, JobFilter

if TYPE_CHECKING:
    from valkyrie.tracker.protocol import Tracker
    from valkyrie.views.jobs import JobView


# What the commands about jobs share: the job argument, `-o`, `--agent agent[:model]`.

CATEGORIES = ["agent", "benchmark", "infrastructure", "user", "internal"]


def _complete_job(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    try:
        with tracker() as opened:
            jobs: list[JobView] = list(opened.list_jobs(JobFilter()).jobs)
    except (ValkyrieError, OSError):
        return []
    known = dict.fromkeys([*(job.id for job in jobs), *(job.name for job in jobs)])
    return [word for word in known if word.startswith(incomplete)]


def job_argument(function: Decorated) -> Decorated:
    """The job, by id, a unique beginning of it, or its name."""
    return click.argument("ref", metavar="JOB", shell_complete=_complete_job)(function)


_COMMANDS = re.compile(r"##(?=\w*\[)")
_INVISIBLE = (*range(0x200B, 0x2010), *range(0x2028, 0x202F), *range(0x2060, 0x206A))
_ESCAPES = {code: f"\\u{code:04x}" for code in _INVISIBLE}


class YamlOutput(Output):
    """As under --json, each document as YAML."""

    def __init__(self) -> None:
        super().__init__(json=True)

    def emit(self, kind: str, **fields: Any) -> None:
        sys.stdout.write(write_yaml(json.loads(write_json(kind, **fields))))
        sys.stdout.flush()


def write_yaml(document: Any) -> str:
    """Return YAML no line of which a terminal or a CI system obeys: a text with such a thing is one line.

    It stands in double quotes, escaped and never folded, for a folded line may begin anywhere in the text.
    """
    import yaml

    class Dumper(yaml.SafeDumper):
        pass

    def dump_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
        odd = not text.isprintable() or "::" in text or "##" in text
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"' if odd else None)

    Dumper.add_representer(str, dump_text)
    text = yaml.dump(
        document,
        Dumper=Dumper,
        explicit_start=True,
        sort_keys=False,
        allow_unicode=True,
        width=float("inf"),
    )
    return _COMMANDS.sub(r"#\\x23", text.translate(_ESCAPES))


def output_option(function: Callable[..., int]) -> Callable[..., int]:
    """`-o text|json|yaml`; the function's `Output` writes that."""

    @wraps(function)
    def call(output: Output, *, output_format: str | None, **given: Any) -> int:
        if output.json and output_format not in (None, "json"):
            raise click.UsageError(f"--json and -o {output_format} exclude each other.")
        if output_format == "yaml":
            output = YamlOutput()
        elif output_format == "json":
            output = Output(json=True)
        return function(output, **given)

    return click.option(
        "-o",
        "--output",
        "output_format",
        type=click.Choice(["text", "json", "yaml"]),
        help="What to print [default: text]; --json is -o json.",
    )(call)


follow_option = click.option(
    "--connect",
    "-f",
    "follow",
    is_flag=True,
    help="Watch it live to its end; Ctrl+C detaches with exit code 130.",
)


def agent_option(*, required: bool, help: str) -> Callable[[Decorated], Decorated]:
    """`--agent agent[:model]`, as the list `agents` of JobAgent."""
    return click.option(
        "--agent",
        "agents",
        multiple=True,
        required=required,
        metavar="AGENT[:MODEL]",
        callback=_agents,
        shell_complete=_complete_agent,
        help=help,
    )


def _complete_agent(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in CATALOG if name.startswith(incomplete)]


def _agents(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> list[JobAgent]:
    found: list[JobAgent] = []
    for word in value:
        try:
            agent = parse_agent(word)
        except ValueError as error:
            raise click.BadParameter(str(error), ctx=ctx, param=param) from None
        if agent in found:
            raise click.BadParameter(
                f"{agent.said} is given twice; --trials N runs each task N times.", ctx=ctx, param=param
            )
        found.append(agent)
    return found


def scenarios_option(
    help: str, word: str = "--scenarios", *, hidden: bool = False
) -> Callable[[Decorated], Decorated]:
    """`--scenarios a b c`, or `--task-ids a b c` where a command has no other option of that name."""
    return click.option(
        word, "scenarios", cls=WordsOption, callback=between_commas, metavar="TASK…", hidden=hidden, help=help
    )


def attempts_option(default: int | None, help: str) -> Callable[[Decorated], Decorated]:
    """`--trials`."""
    return click.option(
        "--trials",
        type=WholeNumber(min=1),
        metavar="N",
        default=default,
        show_default=default is not None,
        help=help,
    )


def concurrency_option(default: int | None, help: str) -> Callable[[Decorated], Decorated]:
    """`--concurrency`."""
    return click.option(
        "--concurrency",
        type=WholeNumber(min=1),
        metavar="N",
        default=default,
        show_default=default is not None,
        help=help,
    )


def timeout_option(help: str) -> Callable[[Decorated], Decorated]:
    """`--timeout`: seconds for an agent."""
    return click.option(
        "--timeout",
        "agent_timeout",
        type=Number(min=0, min_open=True),
        metavar="SECONDS",
        help=help,
    )


def multiplier_option(default: float | None) -> Callable[[Decorated], Decorated]:
    """`--timeout-multiplier`."""
    return click.option(
        "--timeout-multiplier",
        type=Number(min=0, min_open=True),
        metavar="X",
        default=default,
        show_default=default is not None,
        help="Stretch every time limit of the tasks by this factor.",
    )


def time_limit_option(function: Decorated) -> Decorated:
    """`--time-limit`: of the whole job."""
    return click.option(
        "--time-limit",
        type=Number(min=0, min_open=True),
        metavar="SECONDS",
        help="Begin nothing more of the job after this long; it ends as timeout.",
    )(function)


def stop_option(function: Decorated) -> Decorated:
    """`--stop-when-decided`."""
    return click.option(
        "--stop-when-decided",
        is_flag=True,
        help="Skip the trials that are left once it is decided who is ahead, by a test that holds whenever "
        "one looks. Tasks come in a shuffled order, and the same ones count on both sides.",
    )(function)


def margin_option(function: Decorated) -> Decorated:
    """`--margin`, in points."""
    return click.option(
        "--margin",
        type=Number(min=0, max=100, min_open=True, max_open=True),
        metavar="POINTS",
        help="With --stop-when-decided: stop as well once agents are known to be no further apart than this.",
    )(function)


def error_rate_option(function: Decorated) -> Decorated:
    """`--error-rate`."""
    return click.option(
        "--error-rate",
        type=Number(min=0, max=0.2, min_open=True),
        metavar="P",
        help=f"With --stop-when-decided: how often an answer may be wrong, over all looks and pairs together "
        f"[default: {DEFAULT_ERROR_RATE:g}].",
    )(function)


# `benchmark-job list`.

_SPELLINGS = {"canceled": "cancelled"}
_DAY_S = 86400.0
_AT_ONCE = 200


@verb(
    "list",
    examples="valk job list\nvalk job list --days 7 --status failed,timeout\nvalk job list --all -o json",
)
@click.option(
    "--days",
    type=Number(min=0, min_open=True),
    metavar="N",
    help="Jobs of the last N days [default: 1].",
)
@click.option("--all", "everything", is_flag=True, help="All jobs, however old.")
@click.option("--status", metavar="A,B,…", help=f"Only these: {', '.join(JobState)}; comma-separated.")
@click.option("--job-name", "-n", "name", metavar="NAME", help="Only jobs of this name.")
@click.option("--limit", type=WholeNumber(min=1), metavar="N", help="At most this many.")
@output_option
def list_jobs(
    output: Output,
    *,
    days: float | None,
    everything: bool,
    status: str | None,
    name: str | None,
    limit: int | None,
) -> int:
    """List jobs, newest first.

    Without --days or --all those of the last day. Progress counts trials that came to an
    end, of all agents; stopped ones did not.
    """
    if everything and days is not None:
        raise click.UsageError("--days and --all exclude each other.")
    since = None if everything else time.time() - (1.0 if days is None else days) * _DAY_S
    query = JobFilter(since=since, states=_states(status), name=name)
    with tracker() as opened:
        jobs, more = _collect(opened, query, limit)
    output.emit("job_list", jobs=[job_document(job) for job in jobs], truncated=more)
    if output.json:
        return 0
    if not jobs:
        output.line(_nothing(query, days))
        return 0
    output.table(job_table(jobs, output.ink, whole_ids=not output.terminal))
    if more:
        output.note(f"The newest {len(jobs)} jobs; a higher --limit shows more.")
    return 0


def _states(said: str | None) -> tuple[str, ...]:
    """States between commas, each known."""
    if said is None:
        return ()
    words = [word.strip().lower() for word in said.split(",") if word.strip()]
    if not words:
        raise click.UsageError("--status names no state; leave it out for all.")
    states = tuple(dict.fromkeys(_SPELLINGS.get(word, word) for word in words))
    known = [state.value for state in JobState]
    if unknown := next((state for state in states if state not in known), None):
        hint = did_you_mean(unknown, known) or f" There are: {', '.join(known)}."
        raise click.UsageError(f"--status: no job state is called {unknown!r}.{hint}")
    return states


def _collect(opened: Tracker, query: JobFilter, limit: int | None) -> tuple[Sequence[JobView], bool]:
    """Pages of the tracker, put together; whether there is more than `limit`."""
    jobs: list[JobView] = []
    cursor: str | None = None
    while limit is None or len(jobs) < limit:
        room = _AT_ONCE if limit is None else min(_AT_ONCE, limit - len(jobs))
        page = opened.list_jobs(replace(query, limit=room, cursor=cursor))
        jobs += page.jobs
        cursor = page.cursor
        if cursor is None:
            break
    return jobs, cursor is not None


def _nothing(query: JobFilter, days: float | None) -> str:
    if query.states or query.name:
        return "No job matches." + ("" if query.since is None else " --all also looks at older ones.")
    if query.since is None:
        return "No jobs yet. Start one: valk job start --agent oracle --agent nop --benchmark quickstart"
    span = "day" if days in (None, 1) else f"{days:g} days"
    return f"No jobs in the last {span}. --all shows older ones."
