"""`run logs`: of one attempt as it was written, or of many trials line by line."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from valkyrie.cli.options import WholeNumber, pinned, run_argument, tracker, verb
from valkyrie.cli.output import Output
from valkyrie.report.formats import no_command, printable, trial_name

if TYPE_CHECKING:
    from valkyrie.tracker.protocol import Tracker
    from valkyrie.views import LogLine, LogQuery

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
    from valkyrie.views import LogQuery

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
