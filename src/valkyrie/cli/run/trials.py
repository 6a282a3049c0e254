"""`run errors`, `tasks`, `debug`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, cast

import click

from valkyrie.cli.options import Capitals, WholeNumber, header_option, run_argument, tracker, verb
from valkyrie.cli.output import Output
from valkyrie.report.errors import advice, disposition_totals, error_rows, error_totals
from valkyrie.report.formats import INGESTED_NOTE, plural, safe, score_sentence, short_id
from valkyrie.report.tables import trial_notes, trial_table

if TYPE_CHECKING:
    from valkyrie.tracker.protocol import Tracker
    from valkyrie.views import ErrorGroup

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
    from valkyrie.views import to_json

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
    import shlex

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
    from valkyrie.cli.pager import show_table
    from valkyrie.views import TrialFilter, to_json

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
    from valkyrie.tracker.record import request_again

    run = opened.fetch(ref)
    opened.attempts(run.id, task_id)  # an error where there is no such task
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
