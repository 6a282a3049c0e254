"""`run show`: a run, or one of its trials with the evidence behind its score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import click

from valkyrie.cli.options import WholeNumber, run_argument, tracker, verb
from valkyrie.cli.output import Output

if TYPE_CHECKING:
    from valkyrie.tracker.protocol import Tracker
    from valkyrie.trajectory.kept import Account
    from valkyrie.views import AttemptView, RunView, TrialView

TESTS_OUTPUT = "test-stdout.txt"


@dataclass(frozen=True, slots=True)
class KeptTrial:
    """What was kept that tells of a trial."""

    accounts: Sequence[Account]
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
    from valkyrie.errors import UnknownError
    from valkyrie.report.formats import short_id
    from valkyrie.tracker.trial_pages import each_trial

    for trial in each_trial(opened, run.id, search=task_id):
        if (trial.task_id, trial.k) == (task_id, k):
            return trial
    raise UnknownError(
        f"Run {short_id(run.id)} has no trial {k} of task {task_id!r}. "
        f"`valk run tasks {short_id(run.id)}` lists them."
    )


def _kept_of(opened: Tracker, run: RunView, trial: TrialView, folder: Path) -> KeptTrial:
    """Fetch what tells of the trial: the agent's account, and what its tests printed."""
    from valkyrie.store.layout import encode_task_id
    from valkyrie.trajectory.kept import FILES, GRADING_FOLDER, read_accounts
    from valkyrie.views import OutputsWanted

    tests = f"{GRADING_FOLDER}/*{TESTS_OUTPUT}"
    opened.outputs(run.id, folder, OutputsWanted([trial.task_id], [*FILES, tests]))
    own = folder / encode_task_id(trial.task_id) / (str(trial.k) if trial.k else "")
    printed = [one.read_text("utf-8", "replace") for one in sorted(own.glob(f"{GRADING_FOLDER}/**/*.txt"))]
    return KeptTrial(read_accounts(own), "\n".join(printed))


def _show_trial(
    run: RunView, trial: TrialView, attempts: list[AttemptView], kept: KeptTrial, output: Output
) -> int:
    from valkyrie.cli.pager import show_lines
    from valkyrie.report.layout import panel
    from valkyrie.report.trial_details import attempt_table, evidence_tables, trial_commands, trial_rows
    from valkyrie.report.trial_story import story_lines, tail_lines
    from valkyrie.views import to_json

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
    from valkyrie.report.tables import (
        TrialNotes,
        needs_a_look,
        next_commands,
        run_rows,
        trial_table,
    )
    from valkyrie.tracker.trial_pages import each_trial
    from valkyrie.views import to_json

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
