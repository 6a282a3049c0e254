"""`benchmark`: run an agent's bundle on a benchmark's tasks, each in a sandbox."""

from __future__ import annotations

import asyncio
import difflib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from benchmark_runner import commands
from benchmark_runner.artifacts import RunArtifacts
from benchmark_runner.cli import (
    CommonOptions,
    OrderedGroup,
    eval_concurrency_option,
    finite,
    load_dotenv,
    named,
    run_options,
    with_options,
)
from benchmark_runner.console import CommandOutput, in_words, redactor
from benchmark_runner.errors import ValkyrieError
from benchmark_runner.sandbox import manifest as store
from benchmark_runner.sandbox.manifest import load_manifest, write_manifest
from benchmark_runner.sandbox.orchestrator import SandboxRunner, open_sandbox_run, runner_of, tasks_of
from benchmark_runner.sandbox.setup import Setup, checked_agent, load_agent
from benchmark_runner.schemas import Task
from benchmark_runner.task_loop import LoopSettings
from benchmark_runner.terminal import printable
from benchmark_service.client_http import checked_url
from benchmark_service.errors import BenchmarkServiceError
from sandboxes.errors import SandboxError
from sandboxes.types import HostSource, ImageSource

if TYPE_CHECKING:
    from benchmark_runner.base import BenchmarkRunner
    from benchmark_runner.sandbox.manifest import Manifest

PROVIDERS = ("local", "docker", "daytona", "process")


@click.group(cls=OrderedGroup, context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """Run an agent on a benchmark's tasks, each in a sandbox of its own, and have the answers graded.

    Benchmarks are installed with `add`, or put together from a service and an agent's contract.
    Variables in ./.env are taken, before those of the environment.
    """
    load_dotenv()


def main() -> None:
    """Run the command under the name it was called by: in a runner's project that is `benchmark`."""
    cli(prog_name=Path(sys.argv[0]).name)


def _program() -> str:
    return click.get_current_context().find_root().info_name or "benchmark-runner"


@cli.command()
@click.option("--model", required=True, callback=named, help="The model the agent is to ask.")
@with_options(run_options("results"))
@click.argument("args", nargs=-1, metavar="[BENCHMARK] [TASK_IDS]...")
@click.option(
    "--contract",
    type=click.Path(exists=True, path_type=Path),
    help="An agent's contract.yaml, or its folder, which is sent as the bundle. All ARGS are task ids then.",
)
@click.option(
    "--agent-bundle", type=click.Path(exists=True, path_type=Path), help="The agent's folder or zip."
)
@click.option("--dataset", help="The service's dataset.")
@click.option("--provider", type=click.Choice(PROVIDERS), default="local", show_default=True)
@click.option("--network", type=click.Choice(("public", "none")), default="public", show_default=True)
@click.option("--image", help="Make every sandbox from this image.")
@click.option("--host-image", is_flag=True, help="Make every sandbox from this machine's own system files.")
@click.option(
    "-k", "parameters", nargs=2, multiple=True, metavar="NAME VALUE", help="A contract's parameter."
)
@click.option("--parallelism", type=click.IntRange(min=1), default=10, show_default=True)
@eval_concurrency_option()
@click.option(
    "--timeout",
    type=float,
    default=1800,
    show_default=True,
    callback=finite,
    help="Seconds of an agent, where its task says nothing. 0: no limit.",
)
@click.option("--skip-eval", is_flag=True, help="Generate, and leave grading for `eval`.")
@click.option("--force-resume", is_flag=True, help="Go on with a run although it was started otherwise.")
@click.pass_context
def run(context: click.Context, /, **given: Any) -> None:
    """Generate, evaluate and score all tasks of an installed BENCHMARK, or those named.

    With --contract no benchmark is named: the tasks are those of --service-url and --dataset.
    Give the same command again to go on after an interruption.
    """
    with _in_words():
        context.exit(_run(context, **given))


@cli.command(name="eval")
@with_options(run_options("results"))
@click.argument("args", nargs=-1, metavar="[BENCHMARK] [TASK_IDS]...")
@click.option("--direct", is_flag=True, help="The run was made with --contract; all ARGS are task ids.")
@eval_concurrency_option()
@click.option("--force", is_flag=True, help="Grade again what is graded already.")
@click.pass_context
def evaluate(context: click.Context, /, args: Sequence[str], direct: bool, **given: Any) -> None:
    """Grade the answers a run has, without generating any, and score it when that completes it."""
    with _in_words():
        said = {**given, **_place(context, args, direct, given)}
        common = CommonOptions.out_of(said)
        context.exit(commands.evaluate(SandboxRunner, common, dataset_file=None, **said))


@cli.command()
@with_options(run_options("results"))
@click.argument("args", nargs=-1, metavar="[BENCHMARK]")
@click.option("--direct", is_flag=True, help="The run was made with --contract.")
@click.option("--force", is_flag=True, help="Score a run that is not complete, and score anew.")
@click.pass_context
def score(context: click.Context, /, args: Sequence[str], direct: bool, **given: Any) -> None:
    """Have the service score a run: all tasks of the benchmark, or all that were run with --contract."""
    with _in_words():
        place = _place(context, args, direct, given)
        if place.pop("task_ids"):
            raise click.UsageError("A run is scored as a whole; name no tasks.")
        said = {**given, **place}
        common = CommonOptions.out_of(said)
        context.exit(commands.score(SandboxRunner, common, dataset_file=None, **said))


@cli.command()
@click.option("--service-url", envvar="SERVICE_URL", show_envvar=True, required=True, help="Who grades.")
@click.option("--dataset", required=True, help="The service's dataset.")
@click.option("--contract", type=click.Path(exists=True, path_type=Path), required=True)
@click.option("--benchmark", required=True, help="What to call it.")
@click.option("--required-env", multiple=True, metavar="NAME", help="A variable the agent needs. Repeatable.")
@click.option(
    "--agent-bundle", type=click.Path(exists=True, path_type=Path), help="The agent's folder or zip."
)
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), required=True)
def manifest(output: Path, **given: Any) -> None:
    """Write a service's dataset and an agent into one file that `add` installs elsewhere."""
    with _in_words():
        made = asyncio.run(write_manifest(output, **given))
    _say(f"Wrote {output}: {made.benchmark}, {len(made.tasks)} tasks.")
    if made.agent.bundle:
        _say(f"Wrote {output.parent / made.agent.bundle.file}, which belongs to it.")
    _say(f"Install it with `{_program()} add {output}`.")


@cli.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def add(file: Path) -> None:
    """Install a benchmark from its manifest FILE into ./benchmarks."""
    with _in_words():
        made = load_manifest(file)
        try:
            before = store.load_installed(made.benchmark)
        except ValueError:
            before = None
            _say(f"The installed {made.benchmark} cannot be read; it is replaced.", err=True)
        path = store.install_manifest(made, file.parent)
    if before is not None:
        changes = store.pin_diff(before, made)
        _say(f"Replaced {made.benchmark}: {'' if changes else 'no pin changes'}".rstrip(": "))
        for line in changes:
            _say(f"  {line}")
    _say(f"Installed {made.benchmark} as {path}")
    _say(f"  dataset {made.dataset.name}, {len(made.tasks)} tasks, {store.image_summary(made)}")
    _say(f"  answers and your service key go to {made.service.url}")
    if made.agent.required_env:
        _say(f"  the agent is given {', '.join(made.agent.required_env)}")


@cli.command(name="list")
def list_installed() -> None:
    """List the installed benchmarks."""
    names = store.installed_names()
    if not names:
        _say(f"No benchmarks are installed; install one with `{_program()} add FILE`.")
    for name in names:
        try:
            one = store.load_installed(name)
        except ValueError as error:
            _say(f"{name}: {error}", err=True)
            continue
        if one is not None:
            tasks = f"dataset {one.dataset.name}, {len(one.tasks)} tasks"
            _say(f"{name}: {tasks}, {store.image_summary(one)}, service {one.versions.service or '?'}")


def _run(
    context: click.Context,
    *,
    args: Sequence[str],
    contract: Path | None,
    agent_bundle: Path | None,
    dataset: str | None,
    image: str | None,
    host_image: bool,
    parameters: Sequence[tuple[str, str]],
    provider: str,
    network: str,
    timeout: float,
    **given: Any,
) -> int:
    if image and host_image:
        raise click.UsageError("--image and --host-image are mutually exclusive.")
    options: dict[str, Any] = {
        "provider": provider,
        "network": network,
        "timeout": timeout,
        "parameters": dict(parameters),
        "source_override": ImageSource(image=image) if image else HostSource() if host_image else None,
    }
    place = _place(context, args, contract is not None, given)
    installed = place.pop("manifest", None)
    if installed is not None:
        if agent_bundle is not None:
            raise click.UsageError("--agent-bundle belongs to --contract; a benchmark brings its own.")
        setup = installed.setup(store.STORE, **options)
        dataset = dataset or installed.dataset.name
    else:
        assert contract is not None
        loaded, bundle = load_agent(contract, agent_bundle)
        setup = Setup(loaded, bundle, benchmark=loaded.name, **options)
        if not (place.get("service_url") or given["service_url"]):
            raise click.UsageError("Whose tasks these are is not known: give --service-url (or SERVICE_URL).")
    checked_agent(setup, given["model"])
    said = {**given, **place}
    return _generated(setup, installed, dataset, CommonOptions.out_of(said), **said)


def _generated(
    setup: Setup,
    installed: Manifest | None,
    dataset: str | None,
    common: CommonOptions,
    *,
    model: str,
    task_ids: Sequence[str],
    parallelism: int,
    eval_concurrency: int | None,
    skip_eval: bool,
    force_resume: bool,
) -> int:
    artifacts = RunArtifacts(common.results_dir, common.run_id)
    telling = CommandOutput(common.as_json)

    async def work(runner: BenchmarkRunner) -> int:
        assert isinstance(runner, SandboxRunner)
        if installed is not None:
            tasks = [Task(id=task.id, question=task.question) for task in installed.tasks]
        else:
            tasks = await tasks_of(runner._service(), dataset, task_ids)
        opened = await open_sandbox_run(
            runner,
            setup,
            artifacts,
            model,
            tasks,
            list(task_ids) or [task.id for task in tasks],
            force_resume=force_resume,
        )
        verb = "Resuming" if opened.resumed else "Starting"
        telling.line(f"{verb} {common.run_id}: {len(opened.config.tasks)} tasks")
        telling.lines(opened.notices)
        how = LoopSettings(model, parallelism=parallelism, timeout=0, evaluate=not skip_eval)
        return await commands.worked(runner, artifacts, opened, how, telling, common.report_to)

    with telling.alone():
        return commands.in_run(
            runner_of(setup.benchmark), artifacts, common.service_url, dataset, eval_concurrency, work
        )


def _place(
    context: click.Context, args: Sequence[str], direct: bool, given: dict[str, Any]
) -> dict[str, Any]:
    """Return which tasks, which service, and where the run is kept."""
    if direct:
        return {"task_ids": list(args)}
    if not args:
        raise click.UsageError(
            f"Name an installed BENCHMARK (`{_program()} list`), or say how the run was made."
        )
    found = _installed(args[0])
    said = context.get_parameter_source("service_url")
    # SERVICE_URL is about services without a manifest; one that was named wins over the manifest's.
    url = given["service_url"] if said is ParameterSource.COMMANDLINE else _checked_url(found.service.url)
    place: dict[str, Any] = {
        "task_ids": list(args[1:]),
        "service_url": url,
        "results_dir": given["results_dir"] / found.benchmark,
    }
    return {**place, "manifest": found} if context.command is run else place


def _installed(name: str) -> Manifest:
    found = store.load_installed(name)
    if found is None:
        names = store.installed_names()
        close = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(names) or 'none'}."
        raise click.ClickException(
            f"No benchmark {name} is installed; {hint} `{_program()} add FILE` installs one. "
            "A run of a contract is meant by --contract (run) or --direct (eval, score)."
        )
    return found


def _checked_url(url: str) -> str:
    return checked_url(url)


@contextmanager
def _in_words() -> Iterator[None]:
    """Tell people what they can mend, without a traceback."""
    try:
        with in_words():
            yield
    except* (ValueError, ValkyrieError, SandboxError, BenchmarkServiceError) as group:
        first: BaseException = group
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise click.ClickException(printable(redactor()(str(first)), colors=False)) from None


def _say(text: str, *, err: bool = False) -> None:
    """Print text of which a manifest may have written a part."""
    click.echo(printable(text, colors=False), err=err)
