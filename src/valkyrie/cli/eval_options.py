"""Options that commands about evals share, and the request they make."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from valkyrie.agents.loader import is_known_executor
from valkyrie.cli.eval_session import tracker_here
from valkyrie.cli.options import (
    Decorated,
    Number,
    WholeNumber,
    allow_path_option,
    pass_env_option,
    trust_option,
)
from valkyrie.cli.vocabulary import Pairs, WordsOption, split_agent
from valkyrie.errors import UsageError
from valkyrie.evals.plan import EvalRequest, check_run_id
from valkyrie.specs.model import parse_duration

if TYPE_CHECKING:
    from valkyrie.evals.plan import EvalItem


LAST = "last"
"""`--resume` without a word."""


class Duration(click.ParamType[Any]):
    """A number with its unit, as seconds: 500ms, 30s, 5m, 2h."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
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
    cls=WordsOption,
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


# What the command line of an eval or experiment asks for, as a request, and as words to type again.

_WITH_RESUME = frozenset(
    {"resume", "verbose", "output_format", "as_json", "no_color", "shutdown_timeout", "trust"}
)


def request_of(given: Mapping[str, Any], items: Sequence[EvalItem], output_dir: Path) -> EvalRequest:
    """Everything the options say that evals and experiments share."""
    return EvalRequest(
        items=items,
        executor=given["executor"],
        executor_plugins=placed_plugins(given["executor_plugins"]),
        grader_plugins=placed_plugins(given["grader_plugins"]),
        params=given["params"],
        work_dir=Path(given["work_dir"] or ".").resolve(),
        skill_dir=_resolved(given["skill_dir"]),
        timeout=given["timeout"],
        threshold=given["threshold"],
        enforce_constraints=given["enforce_constraints"],
        judge_model=given["judge_model"],
        judge_url=given["judge_url"],
        judge_effort=given["judge_effort"],
        runs=given["runs"],
        max_retries=given["max_retries"],
        skip_validate=given["skip_validate"],
        parallel_trials=given["parallel_trials"],
        workspace=_resolved(given["workspace"]),
        shutdown_timeout=given["shutdown_timeout"],
        provider=given["provider"],
        network=given["network"],
        model_url=given["model_url"],
        verify=given["verify"],
        family=given["family"],
        secrets=dict(given["secrets"]),
        kwargs=given["kwargs"],
        pass_env=given["pass_env"],
        allow_paths=given["allow_paths"],
        output_dir=output_dir.resolve(),
        run_id=given["run_id"],
        reporter_plugins=placed_plugins(given["reporter_plugins"]),
        otlp_endpoint=given["otlp_endpoint"],
        command=tuple(_words(click.get_current_context())),
    )


def named_agent(given: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Return the executor and the model that `--agent NAME|FOLDER[:MODEL]` and `--model` name."""
    said, model = given["executor"], given.get("model")
    if said is None or (is_known_executor(said, given["executor_plugins"], Path.cwd()) and ":" not in said):
        return said, model
    prefix, word = ("agent:", said[6:]) if said.startswith("agent:") else ("", said)
    agent, model = split_agent(word, model)
    if "/" in agent or agent in (".", "..") or agent.startswith("~"):
        # By its whole path: --resume may be typed in another folder.
        return f"agent:{(Path.cwd() / Path(agent).expanduser()).resolve()}", model
    if prefix or is_known_executor(agent, given["executor_plugins"], Path.cwd()):
        return f"{prefix}{agent}", model
    with tracker_here() as tracker:
        pushed = any(one.name == agent for one in tracker.agents())
    return f"agent:{agent}" if pushed else agent, model


def _resolved(said: str | None) -> Path | None:
    return Path(said).resolve() if said else None


def placed_plugins(said: Sequence[str]) -> tuple[str, ...]:
    """Return the plugins of the command line; what is a file of theirs by its whole path."""
    return tuple(placed(one, Path.cwd()) for one in said)


def placed(plugin: str, folder: Path) -> str:
    """A plugin's file by a path that means the same from everywhere; what is not there may be elsewhere."""
    name, py, rest = plugin.partition(".py")
    path = folder / f"{name}.py"
    return f"{path.resolve()}{rest}" if py and path.is_file() else plugin


def _words(context: click.Context) -> Iterator[str]:
    """The command as someone could type it again: what was said, not what goes without saying."""
    yield from ("valk", *context.command_path.split()[1:])
    for parameter in context.command.params:
        if _was_said(context, parameter.name):
            yield from _said(parameter, context.params[parameter.name or ""])


def _said(parameter: click.Parameter, value: Any) -> Iterator[str]:
    if isinstance(parameter, click.Argument):
        yield from map(str, value) if isinstance(value, tuple) else [str(value)]
        return
    option = next(word for word in parameter.opts if word.startswith("--"))
    if isinstance(value, bool):
        yield option if value else parameter.secondary_opts[0]
    elif isinstance(value, Mapping):
        for key, content in value.items():
            yield from (option, f"{key}={content}")
    elif isinstance(value, tuple):
        for one in value:
            yield from (option, *(one if isinstance(one, tuple) else (one,)))
    else:
        yield from (option, f"{value:g}s" if isinstance(parameter.type, Duration) else str(value))


def _was_said(context: click.Context, name: str | None) -> bool:
    return context.get_parameter_source(name or "") is click.core.ParameterSource.COMMANDLINE


def said_shutdown(given: Mapping[str, Any]) -> float | None:
    """`--shutdown-timeout` of the command line, not its default."""
    said = _was_said(click.get_current_context(), "shutdown_timeout")
    return given["shutdown_timeout"] if said else None


def refuse_with_resume(what: str, *also: str) -> None:
    """What an eval is was said when it began; `also` are further options that --resume goes with."""
    context = click.get_current_context()
    for parameter in context.command.params:
        if parameter.name not in _WITH_RESUME.union(also) and _was_said(context, parameter.name):
            is_option = isinstance(parameter, click.Option)
            word = parameter.opts[0] if is_option else parameter.human_readable_name
            raise UsageError(
                f"--resume goes on with the {what} as it was asked for; leave out {word}, or start a new one."
            )
