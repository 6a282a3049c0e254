"""`run errors`, `tasks`, `debug`, `show`."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Literal, cast

import click

from benchmark_runner.terminal import panel, safe
from valkyrie.cli.options import Capitals, WholeNumber, header_option, run_argument, tracker, verb
from valkyrie.cli.output import Output
from valkyrie.cli.run_watch import show_lines, show_table
from valkyrie.errors import UnknownError
from valkyrie.report.formats import INGESTED_NOTE, plural, score_sentence, short_id
from valkyrie.report.run_details import advice, disposition_totals, error_rows, error_totals
from valkyrie.report.tables import TrialNotes, needs_a_look, next_commands, run_rows, trial_notes, trial_table
from valkyrie.report.trial_details import (
    attempt_table,
    evidence_tables,
    story_lines,
    tail_lines,
    trial_commands,
    trial_rows,
)
from valkyrie.store.layout import encode_task_id
from valkyrie.tracker.protocol import each_trial
from valkyrie.trajectory.records import FILES, GRADING_FOLDER, read_accounts
from valkyrie.views import OutputsWanted, TrialFilter, to_json

if TYPE_CHECKING:
    from valkyrie.tracker.protocol import Tracker
    from valkyrie.trajectory.records import AgentAccount
    from valkyrie.views import AttemptView, ErrorGroup, RunView, TrialView


TRIAL_STATES = ["PENDING", "BUILDING", "IN_PROGRESS", "EVALUATING", "FINISHED", "ERROR", "STOPPED", "SKIPPED"]
SORTS = ["position", "task_id", "started_at", "duration", "status", "score"]
Sort = Literal["position", "task_id", "started_at", "duration", "status", "score"]
_MOST_GROUPS = 50


@verb("errors", examples="valk run errors 3f2a\nvalk run errors 3f2a --json | jq .totals")
@run_argument
def errors(output: Output, *, ref: str) -> int:
    """Show a run's open errors, grouped.

    Alike errors stand together, with who must act, what can be done (retryable, chronic over passes, or
    fix first), and up to five task ids. Trials that failed and are tried again by themselves come last.
    """
    with tracker() as opened:
        run = opened.fetch(ref)
        groups = opened.errors(run.id)
    output.emit(
        "run_errors",
        run_id=run.id,
        error=run.error,
        groups=[to_json(group) for group in groups],
        totals=error_totals(groups),
        dispositions=disposition_totals(groups),
    )
    if run.error:
        output.line(f"{output.ink.paint('Run error', 'red')}: {safe(run.error)}")
    for group in groups[:_MOST_GROUPS]:
        output.panel(f"{safe(group.category)}/{safe(group.cause)}", error_rows(group, output.ink))
    if len(groups) > _MOST_GROUPS:
        output.note(f"{_MOST_GROUPS} of {len(groups)} groups; --json shows all.")
    said = advice(run.id, groups)
    if not said and not run.error:
        output.line("No open errors.")
    output.lines(said)
    if said:
        output.panel("Next", _next_steps(run.id, groups))
    return 0


def _next_steps(run_id: str, groups: Sequence[ErrorGroup]) -> list[tuple[str, str]]:
    """The first group's log, and a retry where one may help."""
    steps = []
    if groups[0].task_ids:
        steps.append(("Log", f"valk run logs {short_id(run_id)} {_word(groups[0].task_ids[0])}"))
    if disposition_totals(groups)["retryable"]:
        steps.append(("Retry", f"valk run retry {short_id(run_id)}"))
    return steps


def _word(task_id: str) -> str:
    return shlex.quote(safe(task_id))


@verb(
    "tasks",
    examples="valk run tasks latest --failed\n"
    "valk run tasks nightly/claude-code --sort score\n"
    "valk run tasks 3f2a --status ERROR --status STOPPED\n"
    "valk run tasks 3f2a --sort duration --order-by DESC",
)
@run_argument
@click.option(
    "--status",
    "states",
    multiple=True,
    type=Capitals(TRIAL_STATES),
    help="Only trials in this state. Repeatable.",
)
@click.option("--failed", is_flag=True, help="Only trials that ended without a pass, errors among them.")
@click.option("--search", metavar="TEXT", help="Only task ids that contain this.")
@click.option(
    "--sort", type=click.Choice(SORTS), default="position", show_default=True, help="What to order by."
)
@click.option(
    "--order-by",
    type=Capitals(["ASC", "DESC"]),
    default="ASC",
    show_default=True,
    help="Least or most first.",
)
@click.option(
    "--limit",
    type=WholeNumber(1, 500),
    metavar="N",
    default=50,
    show_default=True,
    help="At most this many.",
)
@click.option(
    "--offset", type=WholeNumber(min=0), metavar="N", default=0, show_default=True, help="Skip this many."
)
def tasks(
    output: Output,
    *,
    ref: str,
    states: tuple[str, ...],
    failed: bool,
    search: str | None,
    sort: str,
    order_by: str,
    limit: int,
    offset: int,
) -> int:
    """List a run's trials.

    State, score, attempts and time of each, and why it has no full score: its error, or the last line of
    what its grader said. Numbers are those of its last attempt. On a terminal
    long lists are paged: h previous, l next, q quit.
    """
    query = TrialFilter(
        states=tuple(state.upper() for state in states),
        search=search,
        sort=cast(Sort, sort),
        descending=order_by.upper() == "DESC",
        limit=limit,
        offset=offset,
        failed=failed,
    )
    with tracker() as opened:
        run = opened.fetch(ref)
        trials, total = opened.trials(run.id, query)
    output.emit(
        "run_tasks", run_id=run.id, trials=[to_json(trial) for trial in trials], total=total, offset=offset
    )
    if output.json:
        return 0
    if not trials:
        output.line("No trial matches.")
        return 0
    show_table(trial_table(trials, output.ink, fraction=run.score.fraction), output)
    marks = [INGESTED_NOTE] if run.ingested else []
    output.lines(output.ink.paint(note, "dim") for note in [*marks, *trial_notes(trials)])
    if len(trials) < total:
        output.note(
            f"{plural(len(trials), 'trial')} of {total}, from {offset}; --offset and --limit show others."
        )
    return 0


def _run_again(opened: Tracker, ref: str, task_id: str, headers: dict[str, str], output: Output) -> str:
    """Run the task of a run once more to its end; the id of the run that did."""
    run = opened.fetch(ref)
    opened.attempts(run.id, task_id)  # an error where there is no such task
    from valkyrie.tracker.runs import request_again

    started = opened.start(request_again(run, task_id, headers))
    output.notices(started.notices)
    new = started.run.arguments.get("agent_digest")
    if new != run.arguments.get("agent_digest"):
        output.note(f"The agent is not as it was: run {short_id(run.id)} had another {safe(run.agent)}.")
    output.note(f"Run {started.run.id} runs {safe(task_id)} once more; its sandbox is kept.")
    ended = opened.wait(started.run.id)
    said = f"{ended.state}: {score_sentence(ended.score, ended=True)}"
    output.note(f"{said}. `valk run delete {short_id(ended.id)}` ends its sandbox.")
    return ended.id


@verb(
    "debug",
    examples="valk run start --agent ./my-agent --benchmark quickstart --keep-sandbox\n"
    "valk run debug 3f2a fix-the-bug\n"
    "valk run debug latest fix-the-bug --again",
)
@run_argument
@click.argument("task_id", metavar="TASK")
@click.option(
    "--trial",
    "-k",
    "k",
    type=WholeNumber(min=0),
    metavar="N",
    default=0,
    show_default=True,
    help="Repetition of the task.",
)
@click.option("--again", is_flag=True, help="Run the task once more first, and keep that sandbox.")
@header_option
def debug(output: Output, *, ref: str, task_id: str, k: int, again: bool, headers: dict[str, str]) -> None:
    """Open a shell in a kept sandbox.

    The run must have been started with --keep-sandbox. With --again it need not: the same agent gets the
    task once more, in a run of its own whose sandbox is kept; the run you name keeps its verdict. With
    --json the command that would open the shell is printed instead. The exit code is the shell's.
    """
    if headers and not again:
        raise click.UsageError("-H is for --again: it goes to the service of the benchmark.")
    with tracker(to_start=again) as opened:
        if again:
            ref, k = _run_again(opened, ref, task_id, headers, output), 0
        argv = [*opened.shell(ref, task_id, k)]
    if output.json:
        output.emit("shell", argv=argv)
        return
    output.note(f"A shell in the world of {safe(task_id)}; leave it with exit.")
    sys.stdout.flush()
    os.execvp(argv[0], argv)  # noqa: S606 - the whole point


# `run show`: a run, or one of its trials with the evidence behind its score.

TESTS_OUTPUT = "test-stdout.txt"


@dataclass(frozen=True, slots=True)
class KeptTrial:
    """What was kept that tells of a trial."""

    accounts: Sequence[AgentAccount]
    tests_output: str


@verb(
    "show",
    examples="valk run show 3f2a\n"
    "valk run show 3f2a fix-the-bug\n"
    "valk run show 3f2a fix-the-bug -k 2 --json | jq .trial.evidence",
)
@run_argument
@click.argument("task_id", metavar="[TASK]", required=False)
@click.option(
    "--trial",
    "-k",
    "k",
    type=WholeNumber(min=0),
    metavar="N",
    default=0,
    show_default=True,
    help="Repetition of the task.",
)
def show(output: Output, *, ref: str, task_id: str | None, k: int) -> int:
    """Show a trial to read: instruction, steps, verdict and evidence.

    With TASK: its score and the reason of it, what the agent was told, what it did step by step, what its
    tests printed, where the score was verified, which system files the agent changed, which of its work was
    not carried to the fresh sandbox, what a control found, every attempt and its log; on a terminal in
    pages: h previous, l next, q quit. Without: the run,
    and the trials whose scores a reader should look at twice: unconfirmed, open to tampering, counted as 0
    for what the agent did, or with changed system files.
    """
    with tracker() as opened:
        run = opened.fetch(ref)
        if task_id is not None:
            trial = _trial(opened, run, task_id, k)
            attempts = [*opened.attempts(run.id, task_id, k)]
            with TemporaryDirectory(prefix="valkyrie-show-") as folder:
                kept = _kept_of(opened, run, trial, Path(folder))
                return _show_trial(run, trial, attempts, kept, output)
        return _show_run(opened, run, output)


def _trial(opened: Tracker, run: RunView, task_id: str, k: int) -> TrialView:
    for trial in each_trial(opened, run.id, search=task_id):
        if (trial.task_id, trial.k) == (task_id, k):
            return trial
    raise UnknownError(
        f"Run {short_id(run.id)} has no trial {k} of task {task_id!r}. "
        f"`valk run tasks {short_id(run.id)}` lists them."
    )


def _kept_of(opened: Tracker, run: RunView, trial: TrialView, folder: Path) -> KeptTrial:
    """Fetch what tells of the trial: the agent's account, and what its tests printed."""
    tests = f"{GRADING_FOLDER}/*{TESTS_OUTPUT}"
    opened.outputs(run.id, folder, OutputsWanted([trial.task_id], [*FILES, tests]))
    own = folder / encode_task_id(trial.task_id) / (str(trial.k) if trial.k else "")
    printed = [one.read_text("utf-8", "replace") for one in sorted(own.glob(f"{GRADING_FOLDER}/**/*.txt"))]
    return KeptTrial(read_accounts(own), "\n".join(printed))


def _show_trial(
    run: RunView, trial: TrialView, attempts: list[AttemptView], kept: KeptTrial, output: Output
) -> int:
    output.emit(
        "run_show",
        run_id=run.id,
        trial=to_json(trial),
        attempts=[to_json(one) for one in attempts],
        accounts=[one.to_json() for one in kept.accounts],
        tests_output=kept.tests_output or None,
    )
    if output.json:
        return 0
    ink = output.ink
    lines = [*panel("Trial", trial_rows(run, trial, ink), ink, output.width), ""]
    lines += story_lines(kept.accounts, ink, output.width)
    if kept.tests_output.strip():
        lines += [ink.paint("What its tests printed", "bold"), *tail_lines(kept.tests_output), ""]
    for title, table in evidence_tables(trial.evidence):
        lines += [ink.paint(title, "bold"), *table.lines(ink, output.width), ""]
    if attempts:
        lines += attempt_table(attempts, fraction=run.score.fraction).lines(ink, output.width)
    lines += panel("Next", trial_commands(run, trial), ink, output.width)
    show_lines(lines, output)
    return 0


def _show_run(opened: Tracker, run: RunView, output: Output) -> int:
    notes = TrialNotes()
    noted = [trial for trial in notes.watch(each_trial(opened, run.id)) if needs_a_look(trial)]
    output.emit("run_show", run=to_json(run), trials=[to_json(trial) for trial in noted])
    if output.json:
        return 0
    output.panel("Run Details", run_rows(run, output.ink))
    if noted:
        output.table(trial_table(noted, output.ink, fraction=run.score.fraction))
        output.lines(output.ink.paint(note, "dim") for note in notes.lines())
    output.panel("Next", next_commands(run))
    return 0
