"""`benchmark-job fetch`: who won."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from valkyrie.cli.compare import scored_trials
from valkyrie.cli.job.options import follow_option, job_argument, output_option
from valkyrie.cli.options import tracker, verb
from valkyrie.cli.output import Output
from valkyrie.report.formats import duration, safe, score_sentence
from valkyrie.report.jobs.decided import decision_lines
from valkyrie.report.jobs.documents import failure_reason, job_document
from valkyrie.report.jobs.panels import about, job_state, next_commands
from valkyrie.report.jobs.sides import run_names, seconds
from valkyrie.report.layout import wrapped
from valkyrie.report.tables import ended, trial_notes, trial_table

if TYPE_CHECKING:
    from valkyrie.job_views import JobView
    from valkyrie.report.comparison_views import Summary
    from valkyrie.report.jobs.sides import Trials
    from valkyrie.tracker.protocol import Tracker

_AT_ONCE = 500
_MOST_COMPARISONS = 15
_MOST_TASKS = 40


@verb("fetch", examples="valk job fetch 3f2a\nvalk job fetch nightly -e\nvalk job fetch 3f2a -o json")
@job_argument
@follow_option
@click.option("--extended", "-e", is_flag=True, help="Also show every scenario of every agent.")
@output_option
def fetch(output: Output, *, ref: str, extended: bool, follow: bool) -> int:
    """Show who won: the table, intervals, comparisons.

    Passed is a full score; partial credit has its own column; Errors are trials without a grade. The score
    is the mean over tasks with its 95 % interval, and agents are compared on the tasks they have in common.
    A job that goes on is shown as far as it came. JSON and YAML always hold every scenario. The exit code
    says whether it could be shown; `job wait` says how it ended.
    """
    with tracker() as opened:
        if follow:
            from valkyrie.cli.job.watch import watch_job

            return watch_job(opened, ref, output)
        job = opened.fetch_job(ref)
        if not output.json:
            show_summary(opened, job, output, extended=extended)
            return 0
        _emit(job, trials_of(opened, job), output)
    return 0


def trials_of(opened: Tracker, job: JobView) -> Trials:
    """Every trial of a job, by run."""
    from valkyrie.tracker.trial_pages import each_trial

    return {run.id: list(each_trial(opened, run.id)) for run in job.runs}


def _emit(job: JobView, trials: Trials, output: Output) -> None:
    from valkyrie.report.comparing import to_json
    from valkyrie.report.jobs.summing import summarised

    numbers = to_json(summarised(job, trials))
    output.emit(
        "job",
        **job_document(job, trials),
        statistics=numbers["agents"],
        comparisons=numbers["comparisons"],
    )


def show_summary(opened: Tracker, job: JobView, output: Output, *, extended: bool = False) -> None:
    """The tables, the comparisons in words, and what one may do next."""
    from valkyrie.report.jobs.summing import repeats_table, summarised, summary_notes, summary_table

    now = time.time()
    trials = {run.id: scored_trials(opened, run) for run in job.runs}
    found = summarised(job, trials)
    ink = output.ink
    took = duration(seconds(job.runs, now))
    output.line(f"{ink.paint(safe(job.name), 'bold')}  on {about(job)}  {ink.paint(job.id, 'dim')}")
    output.line(f"{job_state(job.state, ink)}  ·  {took}")
    if reason := failure_reason(job):
        output.line(ink.paint(safe(reason), "red"))
    for line in decision_lines(job):
        output.lines(wrapped(line, output.width))
    output.line()
    output.table(summary_table(job, trials, found, ink, now))
    for note in summary_notes(job, found):
        output.line(ink.paint(note, "dim"))
    if (repeats := repeats_table(found)) is not None:
        output.line()
        output.table(repeats)
    _show_comparisons(found, output)
    _show_tasks(job, found, output)
    if extended:
        _show_scenarios(job, trials_of(opened, job), output)
    output.panel("Next", next_commands(job, summary=False))


def _show_comparisons(found: Summary, output: Output) -> None:
    from valkyrie.report.comparing import sentence

    if found.comparisons:
        output.line()
    for one in found.comparisons[:_MOST_COMPARISONS]:
        output.lines(wrapped(sentence(one), output.width))
    if len(found.comparisons) > _MOST_COMPARISONS:
        output.note(f"{_MOST_COMPARISONS} of {len(found.comparisons)} comparisons; -o json has all.")


def _show_tasks(job: JobView, found: Summary, output: Output) -> None:
    """Who did better on which task, as `compare --tasks` has it; of a few tasks only."""
    from valkyrie.report.comparison_tables import task_tables

    for table in task_tables(found, output.ink):
        if len(table.rows) <= _MOST_TASKS:
            output.line()
            output.table(table)
        else:
            output.note(f"{len(table.rows)} tasks; `valk compare {job.id[:8]} --tasks` shows each.")


def _show_scenarios(job: JobView, trials: Trials, output: Output) -> None:
    """Every trial of every run."""
    names = run_names(job)
    for run in job.runs:
        output.line()
        score = score_sentence(run.score, ended=ended(run))
        output.line(f"{output.ink.paint(names[run.id], 'bold')}  {score}")
        ordered = sorted(trials[run.id], key=lambda trial: (trial.task_id, trial.k))
        output.table(trial_table(ordered, output.ink, fraction=run.score.fraction))
        output.lines(output.ink.paint(note, "dim") for note in trial_notes(ordered))
