"""The command line of a runner: `run`, `evaluate`, `score`, and the options commands share."""

from __future__ import annotations

import copy
import functools
import json
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import click

from benchmark_runner.artifacts import checked_run_id
from benchmark_runner.base import BenchmarkRunner
from benchmark_runner.llm import without_logins
from benchmark_runner.tracker_report import ReportError, checked_tracker
from benchmark_service.client_http import checked_url
from benchmark_service.environment import parse_dotenv, redirection

Command = TypeVar("Command", bound=Callable[..., Any])
OptionDecorator = Callable[[Any], Any]

SAMPLING: tuple[tuple[str, type, str], ...] = (
    ("--max-tokens", int, "Most tokens of an answer."),
    ("--temperature", float, "Sampling temperature."),
    ("--top-p", float, "Nucleus sampling."),
    ("--top-k", int, "Sample from the k likeliest tokens."),
    ("--reasoning-effort", str, "How much the model is to think, such as low, medium or high."),
)
_WANTS_JSON = "benchmark_runner.json"
_SECRET = re.compile(r"key|token|secret|password|credential", re.IGNORECASE)


ALIASES: Mapping[str, tuple[str, ...]] = {
    "--parallelism": ("--concurrency", "--workers", "--n-concurrent-trials"),
    "--dataset-name": ("--dataset",),
}
"""What options are called elsewhere: these work too, and are not in the help."""


class OnceCommand(click.Command):
    """A command that takes the other names of its options, and refuses one given twice that counts once."""

    def make_parser(self, ctx: click.Context) -> Any:
        """Add the names; a runner's own options of such a name go first."""
        parser: Any = super().make_parser(ctx)
        options = [one for one in self.params if isinstance(one, click.Option)]
        own = {word for one in options for word in (*one.opts, *one.secondary_opts)}
        for option in options:
            others = [word for known in option.opts for word in ALIASES.get(known, ()) if word not in own]
            if others:
                twin = copy.copy(option)
                twin.opts, twin.secondary_opts = others, []
                twin.add_to_parser(parser, ctx)
        parse = parser.parse_args

        def parse_once(args: list[str]) -> Any:
            values, rest, order = parse(args)
            if not ctx.resilient_parsing:
                _refuse_twice(self, order, ctx)
            return values, rest, order

        parser.parse_args = parse_once
        return parser


def _refuse_twice(command: click.Command, order: Sequence[click.Parameter], ctx: click.Context) -> None:
    """Refuse a value that would take another one's place unseen. A plain flag says the same twice."""
    times = Counter(one.name for one in order)
    for one in command.params:
        if not isinstance(one, click.Option) or times[one.name] < 2:
            continue
        if not (one.multiple or one.count or (one.is_flag and not one.secondary_opts)):
            word = next((name for name in one.opts if name.startswith("--")), one.opts[0])
            raise click.UsageError(f"{word} is given twice; it can be taken once.", ctx)


class OrderedGroup(click.Group):
    """Commands in the order they are used in. With `--json`, a refusal is a document too."""

    command_class = OnceCommand

    def list_commands(self, _ctx: click.Context) -> list[str]:
        """Not sorted."""
        return list(self.commands)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Also what is wrong with the options of a command is to be told, before those can be read."""
        ctx.meta[_WANTS_JSON] = "--json" in args
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            if ctx.meta[_WANTS_JSON]:
                refused = {"exit_code": error.exit_code, "error": error.format_message()}
                click.echo(json.dumps(refused, ensure_ascii=False))
            raise


@dataclass(frozen=True, slots=True)
class CommonOptions:
    """What every command is told by `run_options`."""

    run_id: str
    results_dir: Path
    service_url: str | None
    report_to: str | None
    as_json: bool

    @classmethod
    def out_of(cls, given: dict[str, Any]) -> CommonOptions:
        """Those among a command's options, which are taken out."""
        return cls(**{name: given.pop(name) for name in cls.__slots__})


def _run_id(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    try:
        return checked_run_id(value)
    except ValueError as error:
        raise click.BadParameter(f"{error}.") from None


def _service_url(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    if not value:
        return None
    try:
        return checked_url(value)
    except ValueError as error:
        raise click.BadParameter(f"{error}.") from None


def _endpoint(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    try:
        parts = urlsplit(value or "http://none")
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise click.BadParameter("a model server's address begins with http:// or https://.")
    return value or None


def _tracker(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    try:
        return None if value is None else checked_tracker(value)
    except ReportError as error:
        raise click.BadParameter(f"{error}.") from None


def named(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    """Refuse a name that is empty, as a script makes it of a variable nobody set."""
    if not value.strip():
        raise click.BadParameter("it is empty.")
    return value


def finite(_context: click.Context, _parameter: click.Parameter, value: float) -> float:
    """Refuse what is a float and no number of seconds."""
    if not math.isfinite(value):
        raise click.BadParameter("it is a number of seconds; 0 for no limit.")
    return value


def run_options(default_results_dir: str) -> list[OptionDecorator]:
    """Return which run, where it is kept, who grades it, and how it is told: options of every command."""
    return [
        click.option(
            "--run-id", metavar="NAME", required=True, callback=_run_id, help="Names the run and its folder."
        ),
        click.option(
            "--results-dir",
            type=click.Path(file_okay=False, path_type=Path),
            default=Path(default_results_dir),
            show_default=True,
            help="Folder with all runs.",
        ),
        click.option(
            "--service-url",
            metavar="URL",
            envvar="SERVICE_URL",
            show_envvar=True,
            callback=_service_url,
            help="The benchmark service that grades.",
        ),
        click.option(
            "--report-to",
            metavar="URL",
            callback=_tracker,
            help="Bring the scored run to the tracker at URL, to show beside other runs. "
            "Its key is read from VALKYRIE_API_KEY.",
        ),
        click.option(
            "--json",
            "as_json",
            is_flag=True,
            help="Print one JSON document; all else goes to standard error.",
        ),
    ]


def dataset_file_option(default: str | None = None) -> OptionDecorator:
    """Another file than the one that would be read."""
    return click.option(
        "--dataset-file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        show_default=default or False,
        help="Read tasks from this file.",
    )


def eval_concurrency_option() -> OptionDecorator:
    """Return how many answers are graded at once."""
    return click.option(
        "--eval-concurrency",
        type=click.IntRange(min=1),
        help="Answers graded at once; 10, unless the runner says otherwise.",
    )


def model_options() -> list[OptionDecorator]:
    """Return how the model is asked."""
    sampling = [click.option(name, type=kind, help=text) for name, kind, text in SAMPLING]
    return [
        *sampling,
        click.option(
            "--custom-endpoint",
            metavar="URL",
            envvar="CUSTOM_ENDPOINT",
            show_envvar=True,
            callback=_endpoint,
            help="URL of the model's server, in place of the vendor's.",
        ),
        click.option(
            "--custom-api-key", envvar="CUSTOM_API_KEY", show_envvar=True, help="Key for that server."
        ),
        click.option("--chat-completions", is_flag=True, help="Speak Chat Completions to the model."),
        click.option(
            "--disable-streaming", is_flag=True, help="Take answers whole. Needs --chat-completions."
        ),
    ]


def with_options(options: Sequence[OptionDecorator]) -> Callable[[Command], Command]:
    """Return all of them on a command, in this order."""

    def add(command: Command) -> Command:
        return functools.reduce(lambda made, option: option(made), reversed(options), command)

    return add


def recorded_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """A runner's own options as a run's configuration keeps them: what sounds secret is left out."""
    return {name: _plain(value) for name, value in options.items() if not _SECRET.search(name)}


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(one) for one in value]
    if value is None or isinstance(value, int | float | bool):
        return value
    return without_logins(str(value))


def load_dotenv() -> None:
    """Take the variables of `./.env`, which go before those of the environment.

    An address is taken only with the key that goes there; proxies, loaders and interpreters are not.
    """
    file = Path(".env")
    try:
        text = file.read_text(encoding="utf-8")
    except (FileNotFoundError, IsADirectoryError):
        return
    except (OSError, UnicodeDecodeError) as error:
        raise click.ClickException(f".env cannot be read: {error}") from None
    found = parse_dotenv(text)
    for name in (refused := _redirecting(found.values)):
        click.echo(
            f"Warning: .env: {name} is left out, it would redirect keys or code; `export {name}=…` takes it.",
            err=True,
        )
    try:
        os.environ.update({name: value for name, value in found.values.items() if name not in refused})
    except ValueError as error:
        raise click.ClickException(f".env cannot be used: {error}.") from None
    for number in found.bad_lines:
        click.echo(f"Warning: .env, line {number}: not NAME=value; it is left out.", err=True)


def _redirecting(values: Mapping[str, str]) -> list[str]:
    """Return the names that say where keys go without the key itself, or which code is loaded."""
    kinds = {name: kind for name in values if (kind := redirection(name)) not in (None, "setting")}
    return [
        name
        for name, kind in kinds.items()
        if kind != "model address" or not _has_key(name.partition("_")[0], values)
    ]


def _has_key(vendor: str, values: Mapping[str, str]) -> bool:
    return any(
        name.startswith(f"{vendor}_") and name.endswith(("_KEY", "_TOKEN")) and value
        for name, value in values.items()
    )


# The command line of a runner: `run`, `evaluate`, `score`.


def make_cli(
    runner_cls: type[BenchmarkRunner],
    *,
    default_dataset_file: Path | str | None = None,
    default_results_dir: Path | str = "results",
    default_parallelism: int = 10,
    default_timeout: float = 1800,
    extra_run_options: Sequence[OptionDecorator | click.Parameter] | None = None,
) -> click.Group:
    """The commands of one runner.

    `extra_run_options` are `click.option(...)`s for `run`; their values are in `runner.options` before tasks
    are loaded, and kept with the run, so that resuming with others is refused.
    """
    from benchmark_runner import commands

    bundled = Path(default_dataset_file) if default_dataset_file else None
    common = run_options(str(default_results_dir))
    added = _parameters(extra_run_options or ())

    @click.group(cls=OrderedGroup, context_settings={"help_option_names": ["-h", "--help"]})
    def cli() -> None:
        load_dotenv()

    cli.help = (
        f"Run the {runner_cls.NAME} benchmark: answer its tasks, have them graded, get the score.\n\n"
        "Variables in ./.env go before those of the environment. The service's key is read from "
        "VALS_AUTH_KEY (or VALS_API_KEY), else from BENCHMARK_API_KEY."
    )

    @cli.command(short_help="Answer tasks, have the answers graded, get the score.")
    @click.option("--model", required=True, callback=named, help="The model to ask.")
    @with_options(common)
    @click.argument("task_ids", nargs=-1)
    @click.option("--skip-eval", is_flag=True, help="Generate, and leave grading for `evaluate`.")
    @click.option(
        "--problem",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="A file with the question of the one TASK_ID.",
    )
    @dataset_file_option("the bundled one" if bundled else None)
    @click.option(
        "--dataset-name", metavar="NAME", help="Take tasks from the service's dataset of this name."
    )
    @click.option(
        "--parallelism",
        type=click.IntRange(min=1),
        default=default_parallelism,
        show_default=True,
        help="Tasks generated at once.",
    )
    @eval_concurrency_option()
    @click.option(
        "--timeout",
        type=float,
        default=default_timeout,
        show_default=True,
        callback=finite,
        help="Seconds a generation may take, where its task says nothing else. 0: no limit.",
    )
    @with_options(model_options())
    @click.option("--force-resume", is_flag=True, help="Go on with a run although it was started otherwise.")
    @click.pass_context
    def run(context: click.Context, /, **given: Any) -> None:
        """Generate and evaluate all tasks, or those named by TASK_IDS, and score the run.

        Give the same command again to go on after an interruption: what has an answer is not generated
        again, what is graded is not graded again; errors are tried once more. Ctrl+C finishes what is in
        flight, a second one leaves it.

        Exits with 1 when a task ended in an error or was not graded. Running out of time or turns is no
        error.
        """
        own = {str(option.name): given.pop(str(option.name)) for option in added if option.expose_value}
        sources = commands.Sources(bundled, *(given.pop(name) for name in commands.SOURCES))
        context.exit(commands.run(runner_cls, CommonOptions.out_of(given), sources, own, **given))

    _add(run, added)

    @cli.command(short_help="Grade the answers a run has, without generating any.")
    @with_options(common)
    @click.argument("task_ids", nargs=-1)
    @dataset_file_option()
    @eval_concurrency_option()
    @click.option("--force", is_flag=True, help="Grade again what is graded already.")
    @click.pass_context
    def evaluate(context: click.Context, /, **given: Any) -> None:
        """Grade the answers a run has, without generating any, and score it when that completes it."""
        context.exit(commands.evaluate(runner_cls, CommonOptions.out_of(given), **given))

    @cli.command(short_help="Have the service score a run.")
    @with_options(common)
    @dataset_file_option()
    @click.option("--force", is_flag=True, help="Score a run that is not complete, or was scored before.")
    @click.pass_context
    def score(context: click.Context, /, **given: Any) -> None:
        """Have the service score a run. A run that is not complete exits with 1, unless forced."""
        context.exit(commands.score(runner_cls, CommonOptions.out_of(given), **given))

    return cli


def _parameters(options: Sequence[OptionDecorator | click.Parameter]) -> list[click.Parameter]:
    """Options as click has them, whether they were made as decorators or as objects."""

    def probe() -> None:
        pass

    for option in options:
        if not isinstance(option, click.Parameter):
            option(probe)
    decorated: list[click.Parameter] = getattr(probe, "__click_params__", [])
    return [*decorated, *(option for option in options if isinstance(option, click.Parameter))]


def _add(command: click.Command, added: Sequence[click.Parameter]) -> None:
    """Give a command more parameters; ValueError when it has one of that name."""
    taken = {name for known in command.params for name in (known.name, *known.opts)}
    for option in added:
        if clash := taken & {option.name, *option.opts}:
            raise ValueError(f"extra_run_options: `run` has {', '.join(sorted(map(str, clash)))} already")
    command.params.extend(added)
