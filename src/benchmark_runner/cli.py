"""The command line of a runner: `run`, `evaluate`, `score`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from benchmark_runner.base import BenchmarkRunner
from benchmark_runner.cli_options import (
    Commands,
    Common,
    OptionDecorator,
    dataset_file_option,
    eval_concurrency_option,
    finite,
    load_dotenv,
    model_options,
    named,
    run_options,
    with_options,
)


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

    @click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
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
        context.exit(commands.run(runner_cls, Common.out_of(given), sources, own, **given))

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
        context.exit(commands.evaluate(runner_cls, Common.out_of(given), **given))

    @cli.command(short_help="Have the service score a run.")
    @with_options(common)
    @dataset_file_option()
    @click.option("--force", is_flag=True, help="Score a run that is not complete, or was scored before.")
    @click.pass_context
    def score(context: click.Context, /, **given: Any) -> None:
        """Have the service score a run. A run that is not complete exits with 1, unless forced."""
        context.exit(commands.score(runner_cls, Common.out_of(given), **given))

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
