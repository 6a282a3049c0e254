"""`benchmark-job fetch`, `wait` and `watch`: who won, and how it goes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from benchmark_runner.terminal import FullScreen, safe, wrapped
from valkyrie.cli.job import follow_option, job_argument, output_option
from valkyrie.cli.job_control import show_state
from valkyrie.cli.options import Number, tracker, verb
from valkyrie.cli.output import Output
from valkyrie.cli.run_watch import line_text, shortcomings
from valkyrie.compare.job_documents import failure_reason, job_document
from valkyrie.compare.job_sides import ACTIVE, decision_lines, run_names, seconds
from valkyrie.compare.job_tables import (
    HINT,
    JobSnapshot,
    about,
    change_line,
    end_line,
    job_frame,
    job_state,
    next_commands,
    snapshot,
)
from valkyrie.compare.pairs import ScoredTrials
from valkyrie.compare.summary import sentence, to_json
from valkyrie.compare.tables import repeats_table, summarised, summary_notes, summary_table, task_tables
from valkyrie.report.formats import duration, score_sentence, short_id
from valkyrie.report.tables import ended, trial_notes, trial_table
from valkyrie.tracker.protocol import each_trial
from valkyrie.views import TrialFilter

if TYPE_CHECKING:
    from valkyrie.compare.job_sides import Trials
    from valkyrie.compare.views import Summary
    from valkyrie.tracker.protocol import Tracker
    from valkyrie.views.jobs import JobView


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
            return watch_job(opened, ref, output)
        job = opened.fetch_job(ref)
        if not output.json:
            show_summary(opened, job, output, extended=extended)
            return 0
        _emit(job, trials_of(opened, job), output)
    return 0


def trials_of(opened: Tracker, job: JobView) -> Trials:
    """Every trial of a job, by run."""
    return {run.id: list(each_trial(opened, run.id)) for run in job.runs}


def _emit(job: JobView, trials: Trials, output: Output) -> None:
    numbers = to_json(summarised(job, trials))
    output.emit(
        "job",
        **job_document(job, trials),
        statistics=numbers["agents"],
        comparisons=numbers["comparisons"],
    )


def show_summary(opened: Tracker, job: JobView, output: Output, *, extended: bool = False) -> None:
    """The tables, the comparisons in words, and what one may do next."""
    now = time.time()
    trials = {run.id: ScoredTrials(each_trial(opened, run.id, detail="scores")) for run in job.runs}
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
    if found.comparisons:
        output.line()
    for one in found.comparisons[:_MOST_COMPARISONS]:
        output.lines(wrapped(sentence(one), output.width))
    if len(found.comparisons) > _MOST_COMPARISONS:
        output.note(f"{_MOST_COMPARISONS} of {len(found.comparisons)} comparisons; -o json has all.")


def _show_tasks(job: JobView, found: Summary, output: Output) -> None:
    """Who did better on which task, as `compare --tasks` has it; of a few tasks only."""
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


# `benchmark-job wait` and `watch`: the screen on a terminal, a line per change in a pipe, JSON Lines.

DETACHED = 130
TIMED_OUT = 124
_MOST_ACTIVE = 100
_MOST_FAILED = 5
_SECONDS_BETWEEN_LINES = 1.0


@verb(
    "wait",
    examples="valk job wait 3f2a --timeout 3600 && ./publish\n"
    "valk job wait nightly --connect\n"
    "valk job wait nightly --json | jq .reasons",
)
@job_argument
@click.option("--timeout", type=Number(min=0), metavar="SECONDS", help="Give up after this long: exit 124.")
@click.option("--connect", "-f", is_flag=True, help="Watch it live meanwhile; Ctrl+C detaches.")
@output_option
def wait(output: Output, *, ref: str, timeout: float | None, connect: bool) -> int:
    """Block until a job ended; the exit code says how.

    \b
    0    completed, every planned trial of every run graded
    1    failed, cancelled or timeout, or errors still open
    2    no such job, or a wrong flag
    124  --timeout passed before the end
    130  interrupted; the job goes on

    With --connect on a terminal it takes the whole screen and gives it back: progress and running score of
    each agent, scenarios under way, latest failures, and at the end the table of `job fetch`. In a pipe it
    prints a line per change. JOB is a job's id, a unique beginning of it, or its name.
    """
    if connect and timeout is not None:
        raise click.UsageError("--timeout and --connect exclude each other.")
    with tracker() as opened:
        return _wait(opened, ref, timeout, output, connect=connect)


@verb("watch", examples="valk job watch 3f2a\nvalk job watch nightly --json | jq .state")
@job_argument
@output_option
def watch(output: Output, *, ref: str) -> int:
    """Same as `job wait --connect`."""
    with tracker() as opened:
        return _wait(opened, ref, None, output, connect=True)


def _wait(opened: Tracker, ref: str, timeout: float | None, output: Output, *, connect: bool) -> int:
    if connect:
        code = watch_job(opened, ref, output)
        if code == DETACHED:
            return code
        job = opened.fetch_job(ref)
    else:
        try:
            job = _ended(opened, ref, timeout)
        except TimeoutError:
            output.note(f"Not passed: the job did not end within {timeout:g} s.")
            return TIMED_OUT
        show_state(job, output)
    reasons = _shortcomings(job)
    if not connect:
        output.emit("job_wait", passed=not reasons, reasons=reasons, **job_document(job))
    if reasons and not output.json:
        output.note(f"Not passed: {'; '.join(reasons)}.")
    return 1 if reasons else 0


def _ended(opened: Tracker, ref: str, timeout: float | None) -> JobView:
    """The job once all of its runs ended; TimeoutError when that takes longer."""
    until = None if timeout is None else time.monotonic() + timeout
    job = opened.fetch_job(ref)
    while not job.ended:
        for run in job.runs:
            opened.wait(run.id, timeout=None if until is None else max(0.0, until - time.monotonic()))
        job = opened.fetch_job(job.id)
    return job


def _shortcomings(job: JobView) -> list[str]:
    """Why an ended job is not a pass, run by run."""
    names = run_names(job)
    found = [f"the job ended {job.state}"] if job.state != "completed" else []
    return found + [f"{names[run.id]}: {reason}" for run in job.runs for reason in shortcomings(run)]


def watch_job(opened: Tracker, ref: str, output: Output) -> int:
    """Show a job until it ended, then its table; Ctrl+C detaches with exit code 130."""
    job = opened.fetch_job(ref)
    if output.json or not output.redraws:
        opened.on_line(lambda lost: output.note(line_text(lost)))
    try:
        if output.json:
            job = _watch_json(opened, job, output)
        elif output.redraws:
            job = _watch_screen(opened, job, output)
        else:
            job = _watch_lines(opened, job, output)
    except KeyboardInterrupt:
        return _detach(opened, job, output)
    if output.json:
        output.emit("job", event="complete", **job_document(job, trials_of(opened, job)))
    else:
        show_summary(opened, job, output)
    return 0 if job.state == "completed" else 1


def _detach(opened: Tracker, job: JobView, output: Output) -> int:
    job = opened.fetch_job(job.id)
    output.emit("job", event="interrupted", **job_document(job))
    output.line(f"Detached; job {safe(job.name)} ({short_id(job.id)}) goes on without this window.")
    output.panel("Next", next_commands(job))
    return DETACHED


def _watch_screen(opened: Tracker, first: JobView, output: Output) -> JobView:
    job, shot = first, snapshot(first)
    lost: str | None = None

    def render(now: float, rows: int) -> list[str]:
        hint = line_text(lost) if lost else HINT
        return job_frame(shot, output.ink, now=now, rows=rows, hint=hint)

    def tell(why: str | None) -> None:
        nonlocal lost
        lost = why
        screen.refresh()

    with FullScreen(render) as screen:
        opened.on_line(tell)
        for job in opened.follow_job(first.id):
            shot = _detailed(opened, job)
            screen.refresh()
    return job


def _detailed(opened: Tracker, job: JobView) -> JobSnapshot:
    """The job with what is under way and what failed last, of every run."""
    under_way = TrialFilter(states=ACTIVE, sort="started_at", limit=_MOST_ACTIVE)
    newest = TrialFilter(states=("ERROR",), sort="started_at", descending=True, limit=_MOST_FAILED)
    active, failed = [], []
    for run in job.runs:
        if not ended(run):
            active += [(run.id, trial) for trial in opened.trials(run.id, under_way)[0]]
        if run.counts.get("ERROR"):
            failed += [(run.id, trial) for trial in opened.trials(run.id, newest)[0]]
    return snapshot(job, active, failed)


def _watch_lines(opened: Tracker, first: JobView, output: Output) -> JobView:
    """A line for each run that changed, at most one a second of each; none is left out at its end."""
    job = first
    printed: dict[str, str] = {}
    printed_at: dict[str, float] = {}
    for job in opened.follow_job(first.id):
        names = run_names(job)
        for run in job.runs:
            line, now = change_line(names[run.id], run, time.time()), time.monotonic()
            fresh = line[8:] != printed.get(run.id)
            early = now - printed_at.get(run.id, -1e9) < _SECONDS_BETWEEN_LINES
            if fresh and (not early or ended(run)):
                printed[run.id], printed_at[run.id] = line[8:], now
                output.line(line)
    output.line(end_line(job, time.time()))
    return job


def _watch_json(opened: Tracker, first: JobView, output: Output) -> JobView:
    job = first
    event = "snapshot"
    for job in opened.follow_job(first.id):
        output.emit("job", event=event, **job_document(job))
        event = "update"
    return job
