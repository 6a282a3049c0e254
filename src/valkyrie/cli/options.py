"""What many commands share: the frame of a verb, the run argument, task ids, the tracker."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from valkyrie.cli.lazy import HELP_NAMES
from valkyrie.cli.output import Output, reader_left
from valkyrie.cli.vocabulary import Pairs, VocabularyCommand, Words, mapping
from valkyrie.nouns import may_be_id

if TYPE_CHECKING:
    from valkyrie.tracker.protocol import Tracker

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
Started = TypeVar("Started")


class WholeNumber(click.IntRange):
    """A range of whole numbers, called so when a word is none."""

    name = "whole number"


class Number(click.FloatRange):
    """A range of numbers; `nan` is in none, and `inf` only where there is no end."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if number != number:
            self.fail(f"{value!r} is not a number.", param, ctx)
        return number


class Capitals(click.Choice):  # type: ignore[type-arg]  # older clicks have none
    """One of some words in capitals; taken in any case, shown as they are."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return super().convert(str(value).upper(), param, ctx)


def verb(name: str, *, examples: str = "") -> Callable[[Callable[..., int | None]], click.Command]:
    """A command that gets an `Output` first and returns its exit code, with the flags every command has."""

    def decorate(function: Callable[..., int | None]) -> click.Command:
        @wraps(function)
        def call(*, as_json: bool, no_color: bool, **given: Any) -> int | None:
            try:
                return function(Output(json=as_json, no_color=no_color), **given)
            except BrokenPipeError:
                return 0 if reader_left() else 1

        epilog = "\b\nExamples:\n" + "\n".join(f"  {line}" for line in examples.strip().splitlines())
        command = click.command(
            name, cls=VocabularyCommand, context_settings=HELP_NAMES, epilog=epilog if examples else None
        )(call)
        command.params += [
            click.Option(
                ["--json", "as_json"], is_flag=True, help="Print JSON on stdout, one document a line."
            ),
            click.Option(["--no-color"], is_flag=True, help="No colours (so does NO_COLOR=1)."),
        ]
        return command

    return decorate


@contextmanager
def tracker(*, to_start: bool = False) -> Iterator[Tracker]:
    """The platform's verbs, let go of at the end; `to_start` warms an executor up meanwhile."""
    from valkyrie.tracker import open_tracker

    opened = open_tracker(to_start=to_start)
    try:
        yield opened
    finally:
        opened.close()


def _complete_run(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    from valkyrie.errors import ValkyrieError
    from valkyrie.job_views import JobFilter
    from valkyrie.views import RunFilter

    try:
        with tracker() as opened:
            runs, jobs = opened.list(RunFilter()).runs, opened.list_jobs(JobFilter()).jobs
    except (ValkyrieError, OSError):
        return []
    named = [f"{job.name}/{run.agent}" if len(job.runs) > 1 else job.name for job in jobs for run in job.runs]
    known = dict.fromkeys(["latest", *(run.id for run in runs), *named])
    return [word for word in known if word.startswith(incomplete)]


def run_argument(function: Decorated) -> Decorated:
    """The run: its id or a unique prefix of it, `latest`, the name of a job of one run, or JOB/AGENT."""
    return click.argument("ref", metavar="RUN", shell_complete=_complete_run)(function)


def optional_run_argument(function: Decorated) -> Decorated:
    """The same where options may choose runs instead."""
    return click.argument("ref", metavar="[RUN]", required=False, shell_complete=_complete_run)(function)


class Age(click.ParamType[Any]):
    """How long ago, as seconds: 30d, 12h, 2w; or a date, 2026-01-31."""

    name = "age"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        import re
        import time
        from datetime import datetime

        if isinstance(value, float):
            return value
        if (match := re.fullmatch(r"\s*(\d{1,6}(?:\.\d{1,3})?)\s*([mhdw])\s*", str(value))) is not None:
            return float(match[1]) * {"m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}[match[2]]
        try:
            return max(0.0, time.time() - datetime.fromisoformat(str(value).strip()).timestamp())
        except (ValueError, OverflowError):
            self.fail(
                f"{str(value)[:80]!r} is no age; write 30d, 12h, 2w, or a date such as 2026-01-31.",
                param,
                ctx,
            )


def pinned(opened: Tracker, ref: str) -> str:
    """Return what means the same run in the whole command: of `latest` and of names, the id."""
    return ref if may_be_id(ref.strip()) else opened.fetch(ref).id


def task_options(function: Decorated) -> Decorated:
    """`--task-ids` and `--task-ids-file`."""
    function = click.option(
        "--task-ids-file",
        metavar="FILE|URL",
        help="File or http(s) URL with one task id per line; - reads stdin.",
    )(function)
    return click.option(
        "--task-ids",
        cls=Words,
        callback=_joined,
        metavar="A,B,…",
        help="Only these tasks, by id, with commas or spaces between them.",
    )(function)


def _joined(_ctx: click.Context, _param: click.Parameter, value: tuple[str, ...]) -> str | None:
    return ",".join(value) if value else None


def _headers(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> dict[str, str]:
    """Headers as a mapping; upper or lower case is the same name."""
    from valkyrie.benchmarks.service.headers import header_problem

    headers = mapping(ctx, param, value)
    for name, content in headers.items():
        if problem := header_problem(name, content):
            raise click.BadParameter(problem, ctx=ctx, param=param)
    mapping(ctx, param, [f"{name.lower()}={content}" for name, content in headers.items()])
    return headers


def header_option(function: Decorated) -> Decorated:
    """`-H NAME VALUE`, as the mapping `headers`."""
    return click.option(
        "--header",
        "-H",
        "headers",
        cls=Pairs,
        callback=_headers,
        metavar="NAME=VALUE",
        help="A header for every request to the benchmark's service; over `config auth`. Repeatable.",
    )(function)


def ignore_custom_option(function: Decorated) -> Decorated:
    """`--ignore-custom-services`."""
    return click.option(
        "--ignore-custom-services",
        "--ics",
        is_flag=True,
        help="Pass over the services of `config service`.",
    )(function)


def pass_env_option(function: Decorated) -> Decorated:
    """`--pass-env NAME`, with the names of the config file, as the sorted tuple `pass_env`."""
    return click.option(
        "--pass-env",
        "pass_env",
        multiple=True,
        callback=_allowed_names,
        metavar="NAME",
        help="A variable of yours that may be given to what asks for it by name: ${NAME} of a spec or task, "
        "the contract of a spec's own agent. Repeatable; `pass_env` of the config file adds to it.",
    )(function)


def _allowed_names(_ctx: click.Context, _param: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    from valkyrie.config import effective
    from valkyrie.permissions import allowed_names

    configured = effective("pass_env").value
    return tuple(sorted(allowed_names(value, str(configured) if configured else None)))


def start_asking(
    output: Output, start: Callable[[Sequence[str]], Started], allowed: Sequence[str]
) -> Started:
    """Start something with the variables in `allowed`; ask once, on a terminal, for those tasks name besides.

    Where nobody can be asked, the refusal stands and names the flag.
    """
    from valkyrie.benchmarks.variables import MissingVariablesError
    from valkyrie.report.formats import safe

    try:
        return start(allowed)
    except MissingVariablesError as error:
        if not output.interactive:
            raise
        names = ", ".join(error.names)
        asked = f"{safe(error.where)} asks for {names} from your environment; the agent may see it."
        if not click.confirm(f"{asked} Give it?", err=True):
            raise
        return start([*allowed, *error.names])


def allow_path_option(function: Decorated) -> Decorated:
    """`--allow-path PATH`, as the tuple `allow_paths` of resolved paths."""
    return click.option(
        "--allow-path",
        "allow_paths",
        multiple=True,
        callback=_resolved_paths,
        metavar="PATH",
        help="A file or folder outside the project that its specs and tasks may read. Repeatable.",
    )(function)


def _resolved_paths(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    for word in value:
        if not Path(word).exists():
            raise click.BadParameter(f"there is no {word}.", ctx=ctx, param=param)
    return tuple(str(Path(word).resolve()) for word in value)


def trust_option(function: Decorated) -> Decorated:
    """`--trust`: what `valk trust` records, for this command only."""
    return click.option(
        "--trust",
        is_flag=True,
        help="Load the plugins of this project for this once, as after `valk trust`; for CI.",
    )(function)


def yes_option(function: Decorated) -> Decorated:
    """`--yes`: do not ask."""
    return click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")(function)


def chosen_tasks(task_ids: str | None, task_ids_file: str | None) -> list[str] | None:
    """Ids from both options, in order, each once; None when neither was given."""
    if task_ids is None and task_ids_file is None:
        return None
    from valkyrie.benchmarks.selection import parse_ids, parse_ids_file

    chosen = parse_ids(task_ids or "")
    if task_ids_file is not None:
        from valkyrie.cli.task_ids import read_text

        chosen += parse_ids_file(read_text(task_ids_file))
    chosen = list(dict.fromkeys(chosen))
    if not chosen:
        raise click.UsageError(
            "No task id was given; leave --task-ids and --task-ids-file out for all tasks."
        )
    return chosen


def confirm(output: Output, question: str, *, yes: bool) -> None:
    """Ask on a terminal; elsewhere `--yes` must have been given."""
    if yes:
        return
    if not output.interactive:
        raise click.UsageError(f"{question} Nobody can be asked here: add --yes.")
    if not click.confirm(question, err=True):
        raise click.ClickException("Nothing was changed.")


def own_folder(name: str | Path) -> Path:
    """Return a folder below the current one that nobody named; UsageError where it is a link that leads out.

    It may have come with the repository, and what is written to it would land anywhere.
    """
    from valkyrie.errors import UsageError
    from valkyrie.permissions import outside

    folder = Path(name)
    if (real := outside(folder, Path.cwd())) is not None:
        raise UsageError(
            f"{folder} leads to {real}, outside this folder; name it yourself if you want results there: "
            f"--output-dir {shlex.quote(str(real))}."
        )
    return folder
