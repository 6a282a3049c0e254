"""`run results`, `run outputs`, `run logs`."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from benchmark_runner.terminal import no_command, printable, printable_json, safe
from valkyrie.cli.options import (
    WholeNumber,
    chosen_tasks,
    header_option,
    pinned,
    run_argument,
    task_options,
    tracker,
    verb,
)
from valkyrie.cli.output import Output
from valkyrie.errors import UserError
from valkyrie.report.formats import plural, short_id, trial_name
from valkyrie.views import LogQuery, OutputsWanted, ResultsWanted

if TYPE_CHECKING:
    from valkyrie.tracker.protocol import Tracker
    from valkyrie.views import LogLine


_PHASE = re.compile(r"── \d\d:\d\d:\d\d \w+")
_AGENT = re.compile(r"── \d\d:\d\d:\d\d agent")
NOT_HERE = (
    "Nothing of it is kept here. Where executors run on other machines, S3_BUCKET or "
    "VALKYRIE_ARTIFACTS_FOLDER gives them and the tracker one place for logs and outputs."
)


@verb(
    "logs",
    examples="valk run logs 3f2a fix-the-bug --follow\n"
    "valk run logs 3f2a fix-the-bug --attempt 1\n"
    "valk run logs 3f2a --query 'rate limit'\n"
    "valk run logs 3f2a --task-id fix-the-bug --task-id parse-dates --follow",
)
@run_argument
@click.argument("task_id", metavar="[TASK]", required=False)
@click.option("--task-id", "task_ids", multiple=True, metavar="ID", help="Only this task. Repeatable.")
@click.option("--query", metavar="TEXT", help="Only lines that contain this, in upper or lower case.")
@click.option("--attempt", type=WholeNumber(min=1), metavar="N", help="Which attempt [default: the last].")
@click.option(
    "--trial",
    "-k",
    "k",
    type=WholeNumber(min=0),
    metavar="N",
    help="Repetition of the task [default: 0 with TASK, else all].",
)
@click.option("--follow", "-f", is_flag=True, help="Go on until the attempt, or the run, ended.")
def logs(
    output: Output,
    *,
    ref: str,
    task_id: str | None,
    task_ids: tuple[str, ...],
    query: str | None,
    attempt: int | None,
    k: int | None,
    follow: bool,
) -> int:
    """Print logs: of one trial's attempt, or of a whole run.

    Everything the phases and the agent printed. With TASK it is one attempt's log as it was written;
    without, the log of every trial's last attempt, each line after its task (`task │ line`). With --follow
    new lines and new attempts are shown until the trials asked for, or the run, ended. Control characters
    other than tabs and line breaks are left out, and no line is a command to a CI system; --json has the
    text as it is.
    """
    if task_id is not None and not task_ids and query is None:
        return _print_attempt(output, ref, task_id, k or 0, attempt, follow=follow)
    alone = task_id is not None and not task_ids
    chosen = list(dict.fromkeys([*([task_id] if task_id is not None else []), *task_ids])) or None
    wanted = LogQuery(chosen, 0 if alone and k is None else k, attempt, query, follow)
    return _print_lines(output, ref, wanted, named=not alone)


def _print_attempt(
    output: Output, ref: str, task_id: str, k: int, attempt: int | None, *, follow: bool
) -> int:
    some = False
    begun = ""
    silent = _AgentSilence()
    with tracker() as opened:
        ref = pinned(opened, ref)
        for piece in opened.logs(ref, task_id, k=k, attempt=attempt, follow=follow):
            some = True
            if output.json:
                output.emit("log", task_id=task_id, k=k, text=piece)
                continue
            # Whole lines only: half an escape sequence, or half a command, looks harmless.
            whole, newline, begun = (begun + piece).rpartition("\n")
            silent.read(whole)
            sys.stdout.write(printable(whole + newline, colors=False))
            if follow:
                sys.stdout.flush()
        if begun:
            sys.stdout.write(printable(begun, colors=False))
        if not some:
            output.note(_why_none(opened, ref, [task_id], k, attempt))
        elif silent.found and not begun:
            output.note("The agent printed nothing.")
    return 0


class _AgentSilence:
    """Whether an attempt went from the agent to what comes after it without a line in between."""

    def __init__(self) -> None:
        self.found = False
        self._before = ""

    def read(self, lines: str) -> None:
        for line in lines.split("\n") if lines else ():
            self.found = self.found or bool(_AGENT.fullmatch(self._before) and _PHASE.fullmatch(line))
            self._before = line


def _print_lines(output: Output, ref: str, wanted: LogQuery, *, named: bool) -> int:
    some = False
    with tracker() as opened:
        ref = pinned(opened, ref)
        for line in opened.run_logs(ref, wanted):
            some = True
            if output.json:
                output.emit("log", task_id=line.task_id, k=line.k, attempt=line.attempt, text=line.text)
                continue
            name = _name(line, output) if named else ""
            sys.stdout.write(no_command(f"{name}{printable(line.text, colors=False)}\n"))
            if wanted.follow:
                sys.stdout.flush()
        if not some and (wanted.search or wanted.attempt):
            output.note("No such lines.")
        elif not some:
            output.note(_why_none(opened, ref, wanted.task_ids, wanted.k))
    return 0


def _why_none(
    opened: Tracker, ref: str, task_ids: Sequence[str] | None, k: int | None, attempt: int | None = None
) -> str:
    """Of an attempt that ended, a log that is not here was never begun, or is elsewhere or gone."""
    if task_ids is None:
        ended = opened.fetch(ref).done > 0
    else:
        found = [one for task_id in task_ids for one in opened.attempts(ref, task_id, k or 0)]
        ended = any(one.finished_at for one in found if attempt in (None, one.number))
    if not ended:
        return "No lines yet."
    folder = opened.fetch(ref).folder
    return "Nothing was printed." if folder and Path(folder).is_dir() else NOT_HERE


def _name(line: LogLine, output: Output) -> str:
    return output.ink.paint(f"{trial_name(line)} │", "dim") + " "


# `run results`, `run outputs`.


@verb(
    "results",
    examples="valk run results 3f2a --path ./results.json\n"
    "valk run results 3f2a --path - | jq .\n"
    "valk run results 3f2a --s3",
)
@run_argument
@click.option(
    "--path", metavar="FILE", help="File or folder to write to; - is stdout [default: ./<benchmark>.json]."
)
@click.option("--s3", is_flag=True, help="Upload it to where the run's artifacts are kept instead.")
@click.option("--force", is_flag=True, help="Overwrite the file without asking.")
@task_options
@header_option
def results(
    output: Output,
    *,
    ref: str,
    path: str | None,
    s3: bool,
    force: bool,
    task_ids: str | None,
    task_ids_file: str | None,
    headers: dict[str, str],
) -> int:
    """Write a run's results file.

    Final evaluation, results per task, errors and timing as JSON. With --task-ids the file holds a score
    over those tasks only, computed now (by the benchmark's service, with -H as the run was started with);
    the run's own score is left as it is. An existing file is overwritten only after
    a yes on a terminal, or with --force; else the command exits 1 with reason target_exists.

    --s3 prints the object's address; on a terminal also a link with which anyone can download it for a
    day, which is never part of other output. The file of some tasks never takes the whole one's place.
    """
    chosen = chosen_tasks(task_ids, task_ids_file)
    if headers and chosen is None:
        raise click.UsageError("-H goes to the service that scores --task-ids; the run's own score is known.")
    if s3:
        if path is not None:
            raise click.UsageError("--s3 and --path exclude each other.")
        return _upload(output, ref, chosen, headers)
    with tracker() as opened:
        ref = pinned(opened, ref)
        name = f"{_file_name(opened.fetch(ref).benchmark)}.json"
        target = target_file(path, name, output, force=force)
        pieces = opened.results_text(ref, ResultsWanted(chosen, headers))
        return _write_text(pieces, target, output)


def target_file(path: str | None, name: str, output: Output, *, force: bool) -> str:
    """Return where results go, a file or `-`; in a folder it has this name. Asks before one is replaced."""
    if path == "-":
        return path
    target = Path(path or ".")
    target = target / name if path is None or target.is_dir() else target
    _check_target(target, output, force=force)
    return str(target)


def write_results(document: dict[str, Any], target: str, output: Output) -> int:
    """Write a document to a file and say so, or to stdout."""
    return _write_text((json.dumps(document, indent=2, ensure_ascii=False) + "\n",), target, output)


def _write_text(pieces: Iterable[str], target: str, output: Output) -> int:
    """The same of the text of a document as it comes; it may be larger than memory."""
    if target == "-":
        for piece in pieces:
            click.echo(printable_json(piece), nl=False)
        return 0
    write_pieces(Path(target), map(printable_json, pieces))
    output.emit("results", status="completed", path=str(Path(target).absolute()))
    output.line(f"Wrote {safe(target)}")
    return 0


def _upload(output: Output, ref: str, chosen: list[str] | None, headers: dict[str, str]) -> int:
    with tracker() as opened:
        link = opened.upload_results(ref, ResultsWanted(chosen, headers))
    output.emit("results", status="completed", url=link.url, console_url=link.console_url)
    output.line(f"Uploaded to {safe(link.url)}")
    if link.console_url:
        output.line(f"Browse   {safe(link.console_url)}")
    if link.download_url and output.terminal:
        output.line(f"Download {safe(link.download_url)}")
        output.note("Anyone who has the download link can use it for a day.")
    return 0


def _file_name(benchmark: str) -> str:
    """A benchmark's name as a file name; one given as a folder is known by the folder's."""
    return Path(benchmark).name or "results"


def _check_target(target: Path, output: Output, *, force: bool) -> None:
    if force or not target.exists():
        return
    if output.interactive:
        if click.confirm(f"{target} exists. Overwrite it?", err=True):
            return
        raise click.ClickException(f"{target} was left as it is.")
    raise UserError(
        f"{target} exists. Add --force to overwrite it, or --path for another file.", cause="target_exists"
    )


def write_file(target: Path, text: str) -> None:
    """Whole or not at all: written beside, then renamed."""
    write_pieces(target, (text,))


def write_pieces(target: Path, pieces: Iterable[str]) -> None:
    """The same of a text that comes in pieces."""
    beside = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with beside.open("w", encoding="utf-8", errors="backslashreplace") as file:
            file.writelines(pieces)
        beside.replace(target)
    except OSError as error:
        raise UserError(f"{target} cannot be written: {error.strerror}.", cause="os") from error
    finally:
        with contextlib.suppress(OSError):
            beside.unlink()


@verb("outputs", examples="valk run outputs 3f2a --output-dir ./outputs")
@run_argument
@click.option(
    "--output-dir",
    "-o",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where to [default: ./<benchmark>_<agent>_<run>].",
)
@task_options
def outputs(
    output: Output, *, ref: str, output_dir: Path | None, task_ids: str | None, task_ids_file: str | None
) -> int:
    """Copy what agents left behind to a folder.

    One folder per task, with what was kept of the trial's last attempt, archives unpacked.
    """
    return take_outputs(output, ref, output_dir, chosen_tasks(task_ids, task_ids_file))


def take_outputs(output: Output, ref: str, output_dir: Path | None, tasks: list[str] | None) -> int:
    """What `run outputs` and `agent outputs` do."""
    with tracker() as opened:
        ref = pinned(opened, ref)
        if output_dir is None:
            run = opened.fetch(ref)
            output_dir = Path(f"{_file_name(run.benchmark)}_{_file_name(run.agent)}_{short_id(run.id)}")
        paths = opened.outputs(ref, output_dir, OutputsWanted(tasks))
        none = "" if paths else NOT_HERE if opened.fetch(ref).done else "No outputs yet."
    output.emit("outputs", folder=str(output_dir.absolute()), paths=[str(path) for path in paths])
    output.line(none or f"{plural(len(paths), 'trial folder')} in {output_dir}")
    return 0
