"""Options that commands about evals share, each written once: the same words mean the same everywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from valkyrie.cli.options import (
    Decorated,
    Number,
    WholeNumber,
    allow_path_option,
    pass_env_option,
    trust_option,
)
from valkyrie.cli.vocabulary import Pairs, Words

LAST = "last"
"""`--resume` without a word."""


class Duration(click.ParamType[Any]):
    """A number with its unit, as seconds: 500ms, 30s, 5m, 2h."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        from valkyrie.errors import UsageError
        from valkyrie.specs.durations import parse_duration

        if isinstance(value, float):
            return value
        try:
            return parse_duration(str(value))
        except UsageError as error:
            self.fail(str(error), param, ctx)

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        _ = param, ctx
        return "DURATION"


def together(*options: Callable[[Decorated], Decorated]) -> Callable[[Decorated], Decorated]:
    """Several options as one decorator, shown in this order."""

    def decorate(function: Decorated) -> Decorated:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


PARAM = click.option(
    "--param",
    "-p",
    "params",
    cls=Pairs,
    metavar="KEY=VALUE",
    help="Fill ${KEY} in specs. Repeatable; --pass-env fills it from a variable of yours.",
)
TAG = click.option(
    "--tag",
    "tags",
    multiple=True,
    metavar="KEY=VALUES",
    help="Only stimuli with one of these values (cost=free,low); KEY=!VALUE leaves out. Repeatable.",
)
STIMULI = click.option(
    "--task-ids",
    "stimuli",
    cls=Words,
    metavar="NAME…",
    help="Only these stimuli, by name; --stimulus is the same.",
)
EXECUTOR_PLUGIN = click.option(
    "--executor-plugin",
    "executor_plugins",
    multiple=True,
    metavar="SPEC",
    help="A plugin with agents: entry point, module:Class or a .py file. Repeatable.",
)
GRADER_PLUGIN = click.option(
    "--grader-plugin",
    "grader_plugins",
    multiple=True,
    metavar="SPEC",
    help="A plugin with graders: entry point, module:Class or a .py file. Repeatable.",
)
REPORTERS = together(
    click.option(
        "--reporter-plugin",
        "reporter_plugins",
        multiple=True,
        metavar="SPEC",
        help="A plugin that is told of trials and of the end: entry point, module:Class or a .py file. "
        "Repeatable.",
    ),
    click.option(
        "--otlp-endpoint",
        metavar="URL",
        help="Send a trace of every trial to this OpenTelemetry collector (OTLP over HTTP). Without it they "
        "are in otel-spans.jsonl beside the results.",
    ),
)
AGENT = together(
    click.option(
        "--agent",
        "executor",
        metavar="NAME|FOLDER[:MODEL]",
        help="The agent to run, over the specs' own; mock needs nothing.",
    ),
    EXECUTOR_PLUGIN,
)
MODEL_URL = click.option(
    "--model-url", metavar="URL", help="Where the agent's model is served, if not at its vendor's."
)
STARTS_FROM = together(
    click.option(
        "--skill-dir", metavar="PATH", help="Load the skills of this folder where a spec declares none."
    ),
    click.option(
        "--work-dir", metavar="PATH", help="What stimuli without an environment start from, never written."
    ),
)
TIMEOUT = click.option(
    "--timeout", type=Duration(), help="How long an agent may take (5m, 300s). Default: the spec's, then 2m."
)
RUNS = click.option(
    "--trials",
    "runs",
    type=WholeNumber(min=0),
    metavar="N",
    help="Trials of each stimulus; 0 only checks. Default: the spec's.",
)
THRESHOLD = click.option(
    "--threshold",
    type=Number(min=0, max=1),
    help="The mean score an eval must reach; 0 lets all verdicts pass. Default: the spec's.",
)
ENFORCE_CONSTRAINTS = click.option(
    "--enforce-constraints",
    is_flag=True,
    help="A trial that breaks one of its constraints fails; without it they are only reported.",
)
JUDGE = together(
    click.option("--judge-model", metavar="MODEL", help="The model of judges, over the specs' own."),
    click.option("--judge-url", metavar="URL", help="Where judges' models are served."),
    click.option(
        "--judge-reasoning-effort",
        "judge_effort",
        metavar="LEVEL",
        help="How hard judges think (low, medium, high, …), over the specs' own.",
    ),
)
OUTPUT = click.option(
    "--output",
    "output_format",
    type=click.Choice(["jsonl"]),
    help="jsonl: one JSON object per trial on stdout, what is for people on stderr.",
)
WORKSPACE = click.option(
    "--workspace", metavar="PATH", help="Keep agents' final workspaces below this folder."
)
PARALLEL_TRIALS = click.option(
    "--parallel-trials", is_flag=True, help="Trials of one stimulus may run at the same time."
)
MAX_RETRIES = click.option(
    "--max-retries",
    type=WholeNumber(min=0),
    default=2,
    show_default=True,
    help="Further attempts after rate limits and lost connections.",
)
SKIP_VALIDATE = click.option("--skip-validate", is_flag=True, help="Do not lint specs first.")
SHUTDOWN_TIMEOUT = click.option(
    "--shutdown-timeout",
    type=Duration(),
    default="5s",
    show_default=True,
    help="How long what is under way may take to end after Ctrl+C.",
)
SANDBOX = together(
    click.option(
        "--provider", metavar="NAME", help="Where trials run. Default: local; null where nothing has to run."
    ),
    click.option("--network", type=click.Choice(["none", "public"]), help="Default: public; none with mock."),
    click.option(
        "--verify",
        type=click.Choice(["fresh", "shared", "both"]),
        help="Where graders' programs run: in a fresh sandbox that the workspace is carried to (default), in "
        "the agent's own, or in both.",
    ),
    click.option(
        "--family",
        metavar="KEY",
        help="Tag that says which stimuli resemble each other: intervals and tests then go over families "
        "[default: family].",
    ),
)
GIVEN_TO_AGENT = together(
    click.option(
        "--secret",
        "-s",
        "secrets",
        cls=Pairs,
        metavar="ENV=NAME",
        help="A secret for the agent, by environment variable and name. Repeatable.",
    ),
    click.option(
        "--kwarg",
        "-k",
        "kwargs",
        cls=Pairs,
        metavar="KEY=VALUE",
        help="A parameter of the agent. Repeatable.",
    ),
)
READABLE = together(pass_env_option, allow_path_option)
ALLOWED = together(READABLE, trust_option)
REQUIRE_PASS = click.option(
    "--require-pass/--no-require-pass",
    default=True,
    show_default=True,
    help="Exit 1 when a verdict fails; errors exit 1 either way.",
)
NO_REQUIRE_PASS = click.option(
    "--require-pass/--no-require-pass", default=False, show_default=True, help="Exit 1 when a trial failed."
)


class RunId(click.ParamType[str]):
    """A name for a run that can be the name of a folder."""

    name = "run id"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from valkyrie.errors import UsageError
        from valkyrie.evals.shards import check_run_id

        try:
            return check_run_id(str(value))
        except UsageError as error:
            self.fail(str(error), param, ctx)


RUN_ID = click.option(
    "--run-id",
    type=RunId(),
    metavar="ID",
    help="`runId` of its records and the name of its folder [default: made up].",
)
RESUME = click.option(
    "--resume",
    is_flag=False,
    flag_value=LAST,
    metavar="[REF]",
    help="Go on with what was interrupted: its id, name or output folder; the last one without.",
)
VERBOSE = click.option(
    "--verbose", is_flag=True, help="Show whole answers, every grader, and what is doubtful."
)
