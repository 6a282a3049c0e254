"""`run stop`, `resume`, `retry`, `regrade`, `update`, `delete`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from benchmark_runner.terminal import Column, Table, safe
from valkyrie.cli.options import (
    Age,
    Capitals,
    WholeNumber,
    abort_option,
    chosen_tasks,
    confirm,
    header_option,
    max_cost_option,
    optional_run_argument,
    run_argument,
    task_options,
    tracker,
    verb,
    yes_option,
)
from valkyrie.cli.output import Output
from valkyrie.cli.run import collect_runs
from valkyrie.cli.run_start import show_started
from valkyrie.cli.run_watch import watch_until_end as watch_run
from valkyrie.domain import DEFAULT_PRIORITY, RunState
from valkyrie.report.formats import counts_line, moment_short, number, plural, trial_name
from valkyrie.report.run_details import cost_text
from valkyrie.report.tables import next_commands
from valkyrie.views import (
    RegradeRequest,
    ResumeRequest,
    RetryRequest,
    RunFilter,
    StopRequest,
    UpdateRequest,
    to_json,
)

if TYPE_CHECKING:
    from valkyrie.tracker.protocol import Tracker
    from valkyrie.views import (
        GradingChange,
        GradingComparison,
        GradingView,
        RegradeView,
        RunView,
        StartedRun,
        TrialLeftOut,
    )


ENDED = ["FINISHED", "STOPPED", "ERROR"]
_MANY_TRIALS = 5000
"""Deleting so many takes long enough for people to wonder."""
CATEGORIES = ["agent", "benchmark", "infrastructure", "user", "internal"]
_concurrency = click.option(
    "--concurrency", type=WholeNumber(min=1), metavar="N", help="Trials at once from now on."
)
_connect = click.option(
    "--connect", "-f", is_flag=True, help="Watch it live; Ctrl+C detaches with exit code 130."
)


@verb(
    "stop",
    examples="valk run stop 3f2a\n"
    "valk run stop 3f2a --force --yes\n"
    "valk run stop 3f2a --task-ids slow-one,stuck-one --force",
)
@run_argument
@click.option("--force", is_flag=True, help="Kill trials under way instead of letting them finish.")
@task_options
@yes_option
def stop(
    output: Output, *, ref: str, force: bool, yes: bool, task_ids: str | None, task_ids_file: str | None
) -> int:
    """Stop a run; trials under way finish unless forced.

    Pending trials become STOPPED. `run resume` goes on with them. With --task-ids only trials of those
    tasks are stopped and the run goes on with the others. --force asks first on a terminal; where nobody
    can be asked it needs --yes.
    """
    chosen = chosen_tasks(task_ids, task_ids_file)
    with tracker() as opened:
        if force:
            run = opened.fetch(ref)
            ref = run.id
            confirm(output, _kill_question(run, chosen), yes=yes)
        run = opened.stop(ref, StopRequest(force, chosen))
    return _show_changed(run, output)


def _kill_question(run: RunView, chosen: list[str] | None) -> str:
    if chosen is not None:
        return f"Kill what is under way of {plural(len(chosen), 'task')} of run {run.id}?"
    under_way = sum(run.counts.get(state, 0) for state in ("BUILDING", "IN_PROGRESS", "EVALUATING"))
    return f"Kill {plural(under_way, 'trial')} of run {run.id} under way?"


@verb("resume", examples="valk run resume 3f2a --concurrency 20 --connect")
@run_argument
@_concurrency
@task_options
@header_option
@_connect
def resume(
    output: Output,
    *,
    ref: str,
    connect: bool,
    task_ids: str | None,
    task_ids_file: str | None,
    **same: Any,
) -> int:
    """Go on with what was stopped or interrupted.

    STOPPED trials run again and what a crash interrupted goes on; trials already graded are not run again.
    With --task-ids only those, also where they ended in an error.
    """
    with tracker() as opened:
        started = opened.resume(ref, ResumeRequest(task_ids=chosen_tasks(task_ids, task_ids_file), **same))
        return _go_on(opened, started, connect, output)


@verb(
    "retry",
    examples="valk run retry 3f2a\n"
    "valk run retry 3f2a --category infrastructure --connect\n"
    "valk run retry 3f2a --from-scratch",
)
@run_argument
@_concurrency
@task_options
@click.option("--category", type=click.Choice(CATEGORIES), help="Only errors of this category.")
@header_option
@click.option("--from-scratch", is_flag=True, help="Drop saved evaluation state: the agent runs again.")
@_connect
def retry(
    output: Output,
    *,
    ref: str,
    connect: bool,
    task_ids: str | None,
    task_ids_file: str | None,
    **same: Any,
) -> int:
    """Run errored (and stopped) trials again.

    Ends by the agent's own doing count as the worst score and stay, unless --category agent or their tasks
    are named. Earlier attempts and their logs are kept. `run errors` says which errors a retry can help.
    Where a benchmark service saved how far grading came, grading goes on from there without running the agent
    again, unless --from-scratch is given. Where nothing is left to run, the score is computed again, the
    results are uploaded and whoever is to hear of the end (--lambda, Slack) hears of it again.
    """
    with tracker() as opened:
        started = opened.retry(ref, RetryRequest(task_ids=chosen_tasks(task_ids, task_ids_file), **same))
        return _go_on(opened, started, connect, output)


@verb(
    "update",
    examples="valk run update 3f2a --concurrency 40\nvalk run update 3f2a --priority 0 --max-cost 50",
)
@run_argument
@_concurrency
@click.option("--label", "-l", metavar="LABEL", help="A word of yours to find the run again.")
@click.option(
    "--priority",
    type=WholeNumber(0, 4),
    metavar="0..4",
    help="Share of the slots: 0 is the largest, each step halves it.",
)
@max_cost_option
@abort_option(None)
def update(output: Output, *, ref: str, **changes: Any) -> int:
    """Change a run's concurrency, label, priority or limits.

    A lower concurrency lets trials under way finish, and so does a lower --max-cost. A run that its
    --max-cost ended goes on with `run resume` after a higher one is set.
    """
    if all(value is None for value in changes.values()):
        raise click.UsageError(
            "Nothing to change: give --concurrency, --label, --priority, --max-cost or --abort-after."
        )
    with tracker() as opened:
        run = opened.update(ref, UpdateRequest(**changes))
    return _show_changed(run, output)


@verb(
    "delete",
    examples="valk run delete 3f2a --yes\n"
    "valk run delete --before 30d --keep-last 20 --dry-run\n"
    "valk run delete --before 30d --status STOPPED --status ERROR --yes",
)
@optional_run_argument
@click.option(
    "--before", type=Age(), metavar="AGE", help="Runs that ended so long ago: 30d, 12h, 2026-01-31."
)
@click.option(
    "--status", "states", multiple=True, type=Capitals(ENDED), help="Runs that ended so. Repeatable."
)
@click.option("--keep-last", type=WholeNumber(min=0), metavar="N", help="Leave the newest N runs alone.")
@click.option("--agent", metavar="NAME", help="Only runs of this agent.")
@click.option("--benchmark", metavar="NAME", help="Only runs on this benchmark.")
@click.option("--label", "-l", metavar="LABEL", help="Only runs with this label.")
@click.option("--dry-run", is_flag=True, help="Only say which runs would be deleted.")
@yes_option
def delete(output: Output, *, ref: str | None, yes: bool, dry_run: bool, **chosen: Any) -> int:
    """Forget an ended run, or all that are old, and all that was kept of them.

    Results, logs and artifacts are deleted for good. A run in progress is refused: stop it first. Without
    RUN, --before, --status and --keep-last choose among ended runs; --keep-last counts from the newest of
    those that --agent, --benchmark and --label leave, ended or not.
    """
    given = any(value not in (None, ()) for value in chosen.values())
    if ref is None:
        if chosen["before"] is None and not chosen["states"] and chosen["keep_last"] is None:
            raise click.UsageError(
                "Name a RUN, or choose some: --before 30d, --status STOPPED, --keep-last 20."
            )
        return _delete_chosen(output, RetentionRule(**chosen), yes=yes, dry_run=dry_run)
    if given:
        raise click.UsageError(f"RUN names the run to delete ({ref!r}); the other options choose among all.")
    with tracker() as opened:
        run = opened.fetch(ref)
        if dry_run:
            return _show_retained(output, [run])
        confirm(output, f"Delete run {run.id} ({run.agent} on {run.benchmark}) for good?", yes=yes)
        if run.total >= _MANY_TRIALS:
            output.note(f"Deleting {run.total} trials …")
        opened.delete(run.id)
    output.emit("run_deleted", run_id=run.id)
    output.line(f"Deleted run {run.id}.")
    return 0


@dataclass(frozen=True, slots=True)
class RetentionRule:
    """Which ended runs are deleted."""

    before: float | None = None
    """Seconds since they ended."""
    states: Sequence[str] = ()
    keep_last: int | None = None
    agent: str | None = None
    benchmark: str | None = None
    label: str | None = None

    def choose(self, opened: Tracker) -> list[RunView]:
        """Return the runs to delete, oldest first."""
        query = RunFilter(agent=self.agent, benchmark=self.benchmark, label=self.label)
        newest_first = collect_runs(opened, query, None).runs
        return [run for run in newest_first[self.keep_last or 0 :] if self._matches(run)][::-1]

    def _matches(self, run: RunView) -> bool:
        if not RunState(run.state).terminal or (self.states and run.state not in self.states):
            return False
        ended_at = run.finished_at or run.created_at
        return self.before is None or ended_at < time.time() - self.before


def _delete_chosen(output: Output, rule: RetentionRule, *, yes: bool, dry_run: bool) -> int:
    with tracker() as opened:
        runs = rule.choose(opened)
        if dry_run or not runs:
            return _show_retained(output, runs)
        total = sum(run.total for run in runs)
        question = f"Delete {plural(len(runs), 'run')} with {plural(total, 'trial')} for good?"
        confirm(output, question, yes=yes)
        for number, run in enumerate(runs, 1):
            opened.delete(run.id)
            output.line(f"Deleted run {run.id} ({plural(run.total, 'trial')}), {number} of {len(runs)}.")
    output.emit("runs_deleted", run_ids=[run.id for run in runs], trials=total, dry_run=False)
    return 0


def _show_retained(output: Output, runs: Sequence[RunView]) -> int:
    """Say which runs would go; nothing is deleted."""
    output.emit(
        "runs_deleted", run_ids=[run.id for run in runs], trials=sum(run.total for run in runs), dry_run=True
    )
    if not runs:
        output.line("No ended run matches.")
    for run in runs:
        output.line(
            f"Would delete run {run.id} ({safe(run.agent)} on {safe(run.benchmark)}, {run.state}, "
            f"{plural(run.total, 'trial')})."
        )
    return 0


def _show_changed(run: RunView, output: Output) -> int:
    output.emit("run", event="update", run=to_json(run))
    said = [run.id, output.ink.state(run.state), counts_line(run.counts), f"concurrency {run.concurrency}"]
    if run.label:
        said.append(f"label {safe(run.label)}")
    if run.priority != DEFAULT_PRIORITY:
        said.append(f"priority {run.priority}")
    if run.cost:
        said.append(f"cost {cost_text(run.cost)}")
    output.line("  ".join(said))
    output.panel("Next", next_commands(run))
    return 0


def _go_on(opened: Tracker, started: StartedRun, connect: bool, output: Output) -> int:
    ended = RunState(started.run.state).terminal
    show_started(started, "Nothing to do" if ended else "Run goes on", output, connect=connect or ended)
    if not connect or ended:
        return 0
    return watch_run(opened, started.run.id, output)


# `run regrade`: grade kept work again, switch between gradings, compare them.

SHOWN_REASONS = 20


@verb(
    "regrade",
    examples="valk run regrade 3f2a --tests ./fixed-tasks\n"
    "valk run regrade 3f2a --judge claude-sonnet-4-5 --connect\n"
    "valk run regrade 3f2a --tests ./fixed-tasks --task parse-log --dry-run\n"
    "valk run regrade 3f2a --list\n"
    "valk run regrade 3f2a --diff 0 1\n"
    "valk run regrade 3f2a --use 0",
)
@run_argument
@click.option(
    "--tests",
    metavar="PATH",
    help="A folder of task directories, or a benchmark, whose tests are used for tasks of the same id.",
)
@click.option("--judge", metavar="MODEL", help="The model that judges the trials of an eval instead.")
@click.option(
    "--task", "task_ids", multiple=True, metavar="ID", help="Grade only this task's trials again. Repeatable."
)
@click.option("--dry-run", is_flag=True, help="Say what would be graded again, and change nothing.")
@click.option("--connect", "-f", is_flag=True, help="Watch it live; Ctrl+C detaches with exit code 130.")
@click.option("--list", "listed", is_flag=True, help="Show the run's gradings; 0 is the original.")
@click.option("--use", type=WholeNumber(min=0), metavar="N", help="Make grading N the run's own.")
@click.option(
    "--diff", type=WholeNumber(min=0), nargs=2, metavar="A B", help="Say which verdicts changed from A to B."
)
def regrade(
    output: Output,
    *,
    ref: str,
    tests: str | None,
    judge: str | None,
    task_ids: tuple[str, ...],
    dry_run: bool,
    connect: bool,
    listed: bool,
    use: int | None,
    diff: tuple[int, int] | None,
) -> int:
    """Grade kept work again, with other tests or another judge.

    No agent runs: each trial's kept work goes into a fresh sandbox and is graded there, with the task's own
    tests or with those of --tests. With --judge the judges of an eval are asked again. Earlier verdicts are
    kept, and --use N goes back to them; 0 is the original grading. Trials whose work was not kept keep their
    verdict and are named with the reason. Exit 1 when there is none that can be graded again.
    """
    chosen = (("--list", listed), ("--use", use is not None), ("--diff", diff is not None))
    asked = [flag for flag, given in chosen if given]
    started = [
        flag for flag, given in (("--tests", tests), ("--judge", judge), ("--task", task_ids)) if given
    ]
    if len(asked) > 1 or (asked and (started or dry_run or connect)):
        raise click.UsageError(f"{' and '.join([*asked, *started][:2])} exclude each other.")
    if diff is not None:
        return compare_gradings(output, ref, *diff)
    with tracker() as opened:
        if listed:
            return _list(opened, ref, output)
        if use is not None:
            return _use(opened, ref, use, output)
        request = RegradeRequest(tests, judge, list(task_ids) or None, dry_run)
        return _show(opened, opened.regrade(ref, request), output, connect=connect)


def _show(opened: Tracker, found: RegradeView, output: Output, *, connect: bool) -> int:
    output.emit("regrade", **to_json(found))
    output.notices(found.notices)
    run = found.run
    are = "is" if len(found.trials) == 1 else "are"
    did = f"{are} graded again" if found.started else "would be graded again"
    output.line(f"Grading {found.number} of run {run.id}: {plural(len(found.trials), 'trial')} {did}.")
    _say_left_out(found.left_out, output)
    if not found.started:
        return 0
    short, before = run.id[:8], found.base
    output.panel(
        "Next",
        [
            ("watch", f"valk run fetch {short} --connect"),
            ("what changed", f"valk run regrade {short} --diff {before} {found.number}"),
            ("go back", f"valk run regrade {short} --use {before}"),
        ],
    )
    if not connect or RunState(run.state).terminal:
        return 0
    return watch_run(opened, run.id, output)


def _say_left_out(left_out: Sequence[TrialLeftOut], output: Output) -> None:
    if not left_out:
        return
    output.line(f"{plural(len(left_out), 'trial')} keep{'s' * (len(left_out) == 1)} the verdict:")
    for one in left_out[:SHOWN_REASONS]:
        output.line(f"  {trial_name(one)}: {safe(one.reason)}")
    if len(left_out) > SHOWN_REASONS:
        output.line(f"  … and {len(left_out) - SHOWN_REASONS} more (--json names all)")


def _list(opened: Tracker, ref: str, output: Output) -> int:
    run = opened.fetch(ref)
    found = opened.gradings(run.id)
    output.emit("gradings", run_id=run.id, gradings=[to_json(one) for one in found])
    names = ("Grading", "State", "Begun", "Graded with", "Trials", "Final score", "Graded", "Confirmed")
    table = Table([Column(name) for name in names], [_row(one, fraction=run.score.fraction) for one in found])
    output.table(table)
    return 0


def _row(one: GradingView, *, fraction: bool) -> Sequence[str]:
    used = "the run's own" if one.number == 0 else "the same tests"
    used = f"tests {one.tests}" if one.tests else f"judge {one.judge}" if one.judge else used
    return [
        f"{one.number}{' (in use)' if one.in_use else ''}",
        one.state,
        moment_short(one.created_at),
        safe(used),
        "all" if one.trials is None else str(one.trials),
        *(
            number(score, fraction=fraction)
            for score in (one.final_score, one.score_graded, one.score_confirmed)
        ),
    ]


def _use(opened: Tracker, ref: str, wanted: int, output: Output) -> int:
    run = opened.use_grading(ref, wanted)
    output.emit("run", event="update", run=to_json(run))
    score = number(run.score.final_score, fraction=run.score.fraction)
    output.line(f"Run {run.id} shows grading {wanted} now: final score {score}.")
    return 0


def compare_gradings(output: Output, ref: str, a: int, b: int) -> int:
    """Say which verdicts differ between two gradings of a run."""
    with tracker() as opened:
        found = opened.compare_gradings(ref, a, b)
    output.emit("grading_comparison", **to_json(found))
    if not output.json:
        _show_comparison(found, output)
    return 0


def _show_comparison(found: GradingComparison, output: Output) -> None:
    before, after = (number(one.final_score, fraction=found.fraction) for one in (found.a, found.b))
    output.line(
        f"Run {found.run_id}: final score {before} in grading {found.a.number}, "
        f"{after} in grading {found.b.number}."
    )
    counts = {kind: sum(1 for one in found.changes if one.kind == kind) for kind in _KINDS}
    said = ", ".join(f"{many} {_KINDS[kind][many == 1]}" for kind, many in counts.items() if many)
    has = "has" if found.trials == 1 else "have"
    output.line(
        f"{found.same} of {plural(found.trials, 'trial')} {has} the same verdict; {said or 'none changed'}."
    )
    if found.changes:
        output.line()
        columns = ("Task", "Verdict", f"Grading {found.a.number}", f"Grading {found.b.number}")
        rows = [_change_row(one, found.fraction) for one in found.changes]
        output.table(Table([Column(name) for name in columns], rows))


_KINDS = {
    "now passes": ("now pass", "now passes"),
    "now fails": ("now fail", "now fails"),
    "score": ("have another score", "has another score"),
    "now graded": ("are now graded", "is now graded"),
    "no longer graded": ("are no longer graded", "is no longer graded"),
}
"""Of several trials, and of one."""


def _change_row(one: GradingChange, fraction: bool) -> Sequence[str]:
    scores = [number(score, fraction=fraction) for score in (one.score_a, one.score_b)]
    return [trial_name(one), one.kind, *scores]
