"""`compare`: agents beside each other, and which differences are more than chance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import click

from valkyrie.cli.options import Number, tracker, verb
from valkyrie.cli.output import Output

if TYPE_CHECKING:
    from valkyrie.report.comparing import Comparison, Metric, Summary
    from valkyrie.tracker.protocol import Tracker
    from valkyrie.views import RunView, TrialView


class Points(Number):
    """A number of points, said so when a run or job follows the flag instead."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            self.fail(f"{error.message} Put it last, or write --fail-if-worse=POINTS.", param, ctx)


FORMATS = ("text", "json", "yaml")


@verb(
    "compare",
    examples="valk compare 3f2a 9c1e\n"
    "valk compare nightly-job --tasks\n"
    "valk compare last-week this-week --metric pass -o json\n"
    "valk compare 3f2a 9c1e --fail-if-worse 2\n"
    "valk compare 3f2a@0 3f2a@1\n"
    "valk compare results/before results/after --judge-model claude-sonnet-4-5",
)
@click.argument("refs", metavar="A [B…]", nargs=-1)
@click.option("--baseline", "--run-a", "baseline", metavar="RESULTS", help="The same as A.")
@click.option("--treatment", "--run-b", "treatment", metavar="RESULTS", help="The same as B.")
@click.option(
    "--metric",
    type=click.Choice(["score", "pass"]),
    default="score",
    show_default=True,
    help="Compare scores, partial credit included, or only whether trials passed.",
)
@click.option("--tasks", "by_task", is_flag=True, help="Also show who did better on which task.")
@click.option(
    "--fail-if-worse",
    "most",
    type=Points(min=0),
    is_flag=False,
    flag_value=0.0,
    default=None,
    metavar="[POINTS]",
    help="Exit 1 when a later one is significantly worse than the first, by at least this many points "
    "[without a number: by any]. Put it last, or write --fail-if-worse=2.",
)
@click.option(
    "-e",
    "--eval-spec",
    "eval_specs",
    multiple=True,
    metavar="FILE",
    help="Result folders: the spec whose prompt and pairwise graders judge both answers. Repeatable.",
)
@click.option("--judge-model", metavar="MODEL", help="Result folders: a model that judges both answers.")
@click.option("--judge-url", metavar="URL", help="Where the judge's model is served.")
@click.option(
    "--judge-reasoning-effort",
    "judge_effort",
    type=click.Choice(["low", "medium", "high", "xhigh"]),
    help="How hard the judge thinks.",
)
@click.option(
    "--grader-plugin",
    "plugins",
    multiple=True,
    metavar="PLUGIN",
    help="Graders the spec names: an entry point, module:Class or a .py file. Repeatable.",
)
@click.option("--verbose", is_flag=True, help="Result folders: also show every pair with its evidence.")
@click.option(
    "-o",
    "--output",
    "destination",
    metavar="text|json|yaml|FILE|-",
    help="What to print [default: text]; --json is -o json. Result folders: also a FILE that gets the "
    "comparison as a line of JSON, or - for stdout.",
)
def compare(
    output: Output,
    *,
    refs: tuple[str, ...],
    baseline: str | None,
    treatment: str | None,
    metric: str,
    by_task: bool,
    most: float | None,
    destination: str | None,
    **folder_flags: Any,
) -> int:
    """Compare agents on the tasks they have in common.

    A, B, … are runs (an id or the beginning of one) or jobs (the same, or a name). One job: all its agents
    are compared. Two jobs: agents of the same name, or their only runs. Runs must be on the same
    benchmark and dataset; tasks are matched by id, and several trials of a task are averaged first.

    A and B may also be two result folders of `valk eval`, or their results.jsonl: trials are matched by
    stimulus and number, and with --judge-model or --eval-spec a model judges both answers, in both orders.

    RUN@0 RUN@1 compares two gradings of one run (see `run regrade`): which verdicts changed.
    """
    from valkyrie.cli.compare_folders import FolderWish, Shown, compare_results, folders_among

    words = _words(refs, baseline, treatment)
    if found := gradings_among(words):
        from valkyrie.cli.run.regrade import compare_gradings

        return compare_gradings(_destination(output, destination)[0], *found)
    output, file = _destination(output, destination)
    wish = FolderWish(file=file, **folder_flags)
    if folders_among(words):
        return compare_results(output, words[0], words[1], wish, Shown(metric, by_task, most))
    if file is not None:
        raise click.BadParameter(
            f"{file!r} is not one of {', '.join(map(repr, FORMATS))}.", param_hint="'-o' / '--output'"
        )
    if wish.given():
        raise click.UsageError(f"{wish.given()[0]} is for result folders; {words[0]!r} is none.")
    return compare_runs(output, words, metric=metric, by_task=by_task, most=most)


def _words(refs: tuple[str, ...], baseline: str | None, treatment: str | None) -> tuple[str, ...]:
    if baseline is None and treatment is None:
        if not refs:
            raise click.UsageError("Missing argument 'A [B…]'.")
        return refs
    if baseline is None or treatment is None:
        raise click.UsageError("--baseline and --treatment go together.")
    if refs:
        raise click.UsageError(f"{refs[0]!r} is one too many beside --baseline and --treatment.")
    return baseline, treatment


def gradings_among(words: Sequence[str]) -> tuple[str, int, int] | None:
    """Return the run and the two gradings of it that are named as RUN@N; None where none is."""
    parts = [word.strip().rpartition("@") for word in words]
    numbered = [bool(ref) and number.isdigit() for ref, _, number in parts]
    if not any(numbered) or any("/" in word for word in words):
        return None
    if len(words) != 2 or not all(numbered) or parts[0][0] != parts[1][0]:
        raise click.UsageError("RUN@N compares two gradings of one run: valk compare RUN@0 RUN@1")
    return parts[0][0], int(parts[0][2]), int(parts[1][2])


def _destination(output: Output, destination: str | None) -> tuple[Output, str | None]:
    """What prints, and the file the record goes to."""
    from valkyrie.cli.job.options import YamlOutput

    if destination is None:
        return output, None
    if destination not in FORMATS:
        return output, destination
    if output.json and destination != "json":
        raise click.UsageError(f"--json and -o {destination} exclude each other.")
    if destination == "text":
        return output, None
    return (YamlOutput() if destination == "yaml" else Output(json=True)), None


def compare_runs(
    output: Output, refs: Sequence[str], *, metric: str, by_task: bool, most: float | None
) -> int:
    """Compare runs and jobs of the store."""
    from valkyrie.cli.compare_refs import groups_of, pairs_of
    from valkyrie.report.comparing import summarise, to_json

    with tracker() as opened:
        groups = groups_of(opened, refs)
        pairs = pairs_of(groups)
        runs = [(run, all_trials(opened, run)) for group in groups for run in group.runs]
    names = [group.name_of(run, several=len(groups) > 1) for group in groups for run in group.runs]
    summary = summarise(runs, metric=cast("Metric", metric), names=names, pairs=pairs)
    first = groups[0].runs if len(groups) > 1 else groups[0].runs[:1]
    failures = [] if most is None else worse(summary, [run.id for run in first], most)
    gate: dict[str, Any] = {} if most is None else {"gate": {"points": most, "failures": failures}}
    output.emit("comparison", **to_json(summary, tasks=by_task), **gate)
    if not output.json:
        _show(summary, output, by_task=by_task)
        output.lines(output.ink.paint(f"Gate: {reason}", "red") for reason in failures)
    return 1 if failures else 0


def all_trials(opened: Tracker, run: RunView) -> list[TrialView]:
    """Every trial of a run, page by page."""
    from valkyrie.views import TrialFilter

    trials: list[TrialView] = []
    while True:
        page, total = opened.trials(run.id, TrialFilter(limit=1000, offset=len(trials)))
        trials += page
        if not page or len(trials) >= total:
            return trials


def worse(summary: Summary, baseline: Sequence[str], most: float) -> list[str]:
    """Why the gate is shut: what is significantly worse than the baseline, or could not be compared."""
    from valkyrie.report.comparing import sentence

    reasons = []
    for one in summary.comparisons:
        if one.a_run not in baseline:
            continue
        if one.verdict == "nothing" or (one.seen == "better" and one.drop >= most - 1e-9):
            reasons.append(sentence(one))
        elif _could_be_worse(one, most):
            reasons.append(
                f"{one.b} could be worse than {one.a}, depending on trials that one of them lacks; "
                "`valk run retry` runs them again."
            )
        elif not one.ended:
            reasons.append(f"{one.a} and {one.b} have not both ended; wait for them (valk run wait).")
    return reasons


def _could_be_worse(one: Comparison, most: float) -> bool:
    """Whether B would be significantly worse had the trials that one side lacks ended that way."""
    end = one.highest
    return end is not None and end.verdict == "better" and 100 * end.difference >= most - 1e-9


def _show(summary: Summary, output: Output, *, by_task: bool) -> None:
    from valkyrie.cli.pager import show_table
    from valkyrie.report.comparing import sentence
    from valkyrie.report.comparison_tables import notes, tables, task_tables
    from valkyrie.report.layout import wrapped

    for table in tables(summary, output.ink):
        output.table(table)
        output.line()
    for one in summary.comparisons:
        output.lines(wrapped(sentence(one), output.width))
    output.line()
    for note in notes(summary):
        output.lines(output.ink.paint(line, "dim") for line in wrapped(note, output.width))
    if by_task:
        for table in task_tables(summary, output.ink):
            output.line()
            show_table(table, output)
