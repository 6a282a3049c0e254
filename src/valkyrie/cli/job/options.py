"""What the commands about jobs share: the job argument, `-o`, `--agent agent[:model]`."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from valkyrie.cli.options import Decorated, Number, WholeNumber, tracker
from valkyrie.cli.output import Output, write_json
from valkyrie.cli.vocabulary import Words, between_commas
from valkyrie.job_views import DEFAULT_ERROR_RATE, JobAgent

if TYPE_CHECKING:
    from valkyrie.job_views import JobView

CATEGORIES = ["agent", "benchmark", "infrastructure", "user", "internal"]


def _complete_job(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    from valkyrie.errors import ValkyrieError
    from valkyrie.job_views import JobFilter

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
        import json

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
    from valkyrie.agents.catalog import CATALOG

    return [name for name in CATALOG if name.startswith(incomplete)]


def _agents(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> list[JobAgent]:
    from valkyrie.cli.agent_model import parse_agent

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
        word, "scenarios", cls=Words, callback=between_commas, metavar="TASK…", hidden=hidden, help=help
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
