"""What many commands share: the frame of a verb, the run argument, task ids, limits, notifications."""

from __future__ import annotations

import errno
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

import valkyrie.tracker
from benchmark_runner.terminal import safe
from valkyrie import views
from valkyrie.cli.commands import HELP_NAMES
from valkyrie.cli.output import Output, reader_left
from valkyrie.cli.vocabulary import Pairs, VocabularyCommand, WordsOption, mapping
from valkyrie.config.permissions import outside
from valkyrie.config.schema import allowed_names
from valkyrie.config.values import effective
from valkyrie.domain import may_be_id
from valkyrie.errors import UsageError, ValkyrieError
from valkyrie.text import read_regular

if TYPE_CHECKING:
    from valkyrie.tracker.protocol import Tracker


TIMEOUT_SECONDS = 30.0
LARGEST_BYTES = 50 * 1024**2


def read_task_ids(source: str) -> str:
    """What `source` holds; UsageError says why it cannot be had."""
    try:
        if source.lower().startswith(("http://", "https://")):
            return _download(source).decode("utf-8")
        return _read(source).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file (UTF-8)"
        hint = " A pipe is read as stdin: --task-ids-file -" if _is_special(error) else ""
        raise click.UsageError(f"--task-ids-file {_shown(source)}: {reason}.{hint}") from error


def _read(source: str) -> bytes:
    if source != "-":
        return read_regular(source, LARGEST_BYTES)
    read = sys.stdin.buffer.read(LARGEST_BYTES + 1)
    if len(read) > LARGEST_BYTES:
        raise _refused(source, f"more than {LARGEST_BYTES // 1024**2} MB")
    return read


def _download(url: str) -> bytes:
    import httpx

    received = bytearray()
    deadline = time.monotonic() + TIMEOUT_SECONDS
    try:
        with httpx.stream("GET", url, follow_redirects=True, timeout=TIMEOUT_SECONDS) as response:
            if response.status_code != httpx.codes.OK:
                raise _refused(url, f"the server answered {response.status_code} {response.reason_phrase}")
            if response.headers.get("content-type", "").startswith("text/html"):
                raise _refused(url, "the server sent a web page, not a list of ids")
            for piece in response.iter_bytes():
                received += piece
                if len(received) > LARGEST_BYTES:
                    raise _refused(url, f"more than {LARGEST_BYTES // 1024**2} MB")
                if time.monotonic() > deadline:
                    raise _refused(url, f"not read within {TIMEOUT_SECONDS:g} s")
    except httpx.TimeoutException:
        raise _refused(url, f"no answer within {TIMEOUT_SECONDS:g} s") from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise _refused(url, str(error) or type(error).__name__) from None
    return bytes(received)


def _is_special(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno == errno.EINVAL


def _refused(url: str, reason: str) -> click.UsageError:
    return click.UsageError(f"--task-ids-file {_shown(url)}: {reason}")


def _shown(source: str) -> str:
    """The source without what may be secret in an address: user, password and query."""
    if "://" not in source:
        return source
    scheme, _, rest = source.partition("://")
    host, slash, path = rest.partition("?")[0].partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


# What many commands share: the frame of a verb, the run argument, task ids, the tracker.

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
    opened = valkyrie.tracker.open_tracker(to_start=to_start)
    try:
        yield opened
    finally:
        opened.close()


def _complete_run(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    try:
        with tracker() as opened:
            runs, jobs = opened.list(views.RunFilter()).runs, opened.list_jobs(views.JobFilter()).jobs
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
        cls=WordsOption,
        callback=_joined,
        metavar="A,B,…",
        help="Only these tasks, by id, with commas or spaces between them.",
    )(function)


def _joined(_ctx: click.Context, _param: click.Parameter, value: tuple[str, ...]) -> str | None:
    return ",".join(value) if value else None


def _headers(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> dict[str, str]:
    """Headers as a mapping; upper or lower case is the same name."""
    from valkyrie.benchmarks.service.address import header_problem

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
    configured = effective("pass_env").value
    return tuple(sorted(allowed_names(value, str(configured) if configured else None)))


def start_asking(
    output: Output, start: Callable[[Sequence[str]], Started], allowed: Sequence[str]
) -> Started:
    """Start something with the variables in `allowed`; ask once, on a terminal, for those tasks name besides.

    Where nobody can be asked, the refusal stands and names the flag.
    """
    from valkyrie.benchmarks.protocol import MissingVariablesError

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
    from valkyrie.benchmarks.protocol import parse_ids, parse_ids_file

    chosen = parse_ids(task_ids or "")
    if task_ids_file is not None:
        chosen += parse_ids_file(read_task_ids(task_ids_file))
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
    folder = Path(name)
    if (real := outside(folder, Path.cwd())) is not None:
        raise UsageError(
            f"{folder} leads to {real}, outside this folder; name it yourself if you want results there: "
            f"--output-dir {shlex.quote(str(real))}."
        )
    return folder


# Limits of a run on the command line: what it may cost, and how many trials may fail.


class Dollars(Number):
    """A sum above nothing, `$` or not; there is no endless one."""

    name = "US dollars"

    def __init__(self) -> None:
        super().__init__(min=0, min_open=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        amount = super().convert(value.removeprefix("$") if isinstance(value, str) else value, param, ctx)
        if amount == float("inf"):
            self.fail("leave --max-cost out for no limit.", param, ctx)
        return amount


def max_cost_option(function: Decorated) -> Decorated:
    """`--max-cost USD`."""
    return click.option(
        "--max-cost",
        type=Dollars(),
        metavar="USD",
        help="Begin no further trial once agents have reported this much, in US dollars.",
    )(function)


def abort_option(default: int | None) -> Callable[[Decorated], Decorated]:
    """`--abort-after N`."""
    return click.option(
        "--abort-after",
        type=WholeNumber(0, 1_000_000),
        metavar="N",
        default=default,
        show_default=default is not None,
        help="Stop by itself when N trials (or 5 % of them, if that is more) ended, all in errors that "
        "trying again does not mend; 0 is never.",
    )


# Whom a run tells how it goes: the flags of `run start`, and what the config file says instead.


def notify_options(function: Decorated) -> Decorated:
    """`--interval`, `--webhook`, `--webhook-url`, `--webhook-key`, `--lambda`."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


_OPTIONS = (
    click.option(
        "--interval",
        "-i",
        "intervals",
        type=click.INT,
        multiple=True,
        metavar="N",
        help="Send a message at this percentage of ended trials: 5 to 100 in steps of 5, up to 3 times "
        "[default: 100].",
    ),
    click.option(
        "--webhook",
        metavar="SECRET",
        help="Send messages to Slack: name of the secret that holds its webhook URL "
        "[default: config webhook].",
    ),
    click.option(
        "--webhook-url",
        metavar="URL",
        help="Send signed JSON messages there [default: config webhook_url].",
    ),
    click.option(
        "--webhook-key",
        metavar="SECRET",
        help="Name of the secret those are signed with [default: config webhook_key].",
    ),
    click.option(
        "--lambda",
        "lambda_function",
        metavar="NAME",
        help="AWS Lambda function to call when the run has ended.",
    ),
)


def with_configured(
    *, intervals: tuple[int, ...], webhook: str | None, webhook_url: str | None, webhook_key: str | None
) -> dict[str, Any]:
    """What was given, and what the config file says where nothing was."""

    def configured(name: str) -> str | None:
        value = effective(name).value
        return None if value is None else str(value)

    url = webhook_url or configured("webhook_url")
    return {
        "intervals": intervals,
        "webhook": webhook or configured("webhook"),
        "webhook_url": url,
        # A key alone signs nothing: configured without an address it is left for later.
        "webhook_key": webhook_key or (configured("webhook_key") if url else None),
    }
