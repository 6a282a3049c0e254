"""`run regrade`: grade kept work again, switch between gradings, compare them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from valkyrie.cli.options import WholeNumber, run_argument, tracker, verb
from valkyrie.cli.output import Output
from valkyrie.nouns import RunState
from valkyrie.report.formats import moment_short, number, plural, safe, trial_name
from valkyrie.report.layout import Column, Table

if TYPE_CHECKING:
    from valkyrie.tracker.protocol import Tracker
    from valkyrie.views import GradingChange, GradingComparison, GradingView, RegradeView, TrialLeftOut

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
        from valkyrie.views import RegradeRequest

        request = RegradeRequest(tests, judge, list(task_ids) or None, dry_run)
        return _show(opened, opened.regrade(ref, request), output, connect=connect)


def _show(opened: Tracker, found: RegradeView, output: Output, *, connect: bool) -> int:
    from valkyrie.views import to_json

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
    from valkyrie.cli.watch import connect as watch_run

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
    from valkyrie.views import to_json

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
    from valkyrie.views import to_json

    run = opened.use_grading(ref, wanted)
    output.emit("run", event="update", run=to_json(run))
    score = number(run.score.final_score, fraction=run.score.fraction)
    output.line(f"Run {run.id} shows grading {wanted} now: final score {score}.")
    return 0


def compare_gradings(output: Output, ref: str, a: int, b: int) -> int:
    """Say which verdicts differ between two gradings of a run."""
    from valkyrie.views import to_json

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
