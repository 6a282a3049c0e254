"""`run show`: a run, or one of its trials with the evidence behind its score."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from valkyrie.cli.options import WholeNumber, run_argument, tracker, verb
from valkyrie.cli.output import Output

if TYPE_CHECKING:
    from valkyrie.tracker.protocol import Tracker
    from valkyrie.views import AttemptView, RunView, TrialView

_AT_ONCE = 500


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
    """Show a trial's verdict and the evidence behind it.

    With TASK: its score, where that was verified, which system files the agent changed, which of its work
    was not carried to the fresh sandbox, what a control found, every attempt and its log. Without: the run,
    and the trials whose scores a reader should look at twice: unconfirmed, open to tampering, counted as 0
    for what the agent did, or with changed system files.
    """
    with tracker() as opened:
        run = opened.fetch(ref)
        if task_id is not None:
            trial = _trial(opened, run, task_id, k)
            return _show_trial(run, trial, [*opened.attempts(run.id, task_id, k)], output)
        return _show_run(run, _all_trials(opened, run), output)


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


def _show_trial(run: RunView, trial: TrialView, attempts: list[AttemptView], output: Output) -> int:
    from valkyrie.report.trial_details import attempt_table, evidence_tables, trial_commands, trial_rows
    from valkyrie.views import to_json

    output.emit("run_show", run_id=run.id, trial=to_json(trial), attempts=[to_json(one) for one in attempts])
    if output.json:
        return 0
    output.panel("Trial", trial_rows(run, trial, output.ink))
    for title, table in evidence_tables(trial.evidence):
        output.line(output.ink.paint(title, "bold"))
        output.table(table)
        output.line()
    if attempts:
        output.table(attempt_table(attempts, fraction=run.score.fraction))
    output.panel("Next", trial_commands(run, trial))
    return 0


def _all_trials(opened: Tracker, run: RunView) -> list[TrialView]:
    from valkyrie.cli.compare import all_trials

    return all_trials(opened, run)


def _show_run(run: RunView, trials: list[TrialView], output: Output) -> int:
    from valkyrie.report.tables import (
        needs_a_look,
        next_commands,
        run_rows,
        trial_notes,
        trial_table,
    )
    from valkyrie.views import to_json

    noted = [trial for trial in trials if needs_a_look(trial)]
    output.emit("run_show", run=to_json(run), trials=[to_json(trial) for trial in noted])
    if output.json:
        return 0
    output.panel("Run Details", run_rows(run, output.ink))
    if noted:
        output.table(trial_table(noted, output.ink, fraction=run.score.fraction))
        output.lines(output.ink.paint(note, "dim") for note in trial_notes(trials))
    output.panel("Next", next_commands(run))
    return 0
