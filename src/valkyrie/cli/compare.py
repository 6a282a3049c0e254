"""`compare`: runs, jobs, gradings or result folders beside each other, and what is more than chance."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from benchmark_runner.terminal import Table, wrapped
from valkyrie.artifact_store.disk import disk_errors, whole_file
from valkyrie.cli.eval_session import spec_file
from valkyrie.cli.job import YamlOutput
from valkyrie.cli.options import Number, tracker, verb
from valkyrie.cli.output import Output
from valkyrie.cli.run_control import compare_gradings
from valkyrie.cli.run_watch import show_table
from valkyrie.compare.pairs import ScoredTrials
from valkyrie.compare.summary import check_alike, sentence, summarise, to_json
from valkyrie.compare.tables import notes, tables, task_tables
from valkyrie.compare.words import Margin, no_worse_gate, read_margin, worse_gate
from valkyrie.errors import UnknownError, UsageError
from valkyrie.evals.comparison.judges import JudgePlan
from valkyrie.evals.comparison.pairs import names_results, read_sides
from valkyrie.evals.comparison.result import (
    BASELINE,
    compare_folders,
    delta_table,
    judge_failures,
    judge_json,
    judge_sentence,
    pair_lines,
    remarks,
    summary_of,
)
from valkyrie.evals.figures import is_fraction
from valkyrie.evals.records import dump_line
from valkyrie.evals.result_folder import variant_folders
from valkyrie.evals.shards import read_manifest
from valkyrie.grade.graders import load_plugins
from valkyrie.grade.protocol import JudgeDefaults
from valkyrie.specs.reader import read_spec
from valkyrie.tracker.protocol import NamedRuns, each_trial, named_runs

if TYPE_CHECKING:
    from valkyrie.compare.summary import Metric, Summary
    from valkyrie.compare.words import ComparisonGate
    from valkyrie.evals.comparison.result import FolderComparison
    from valkyrie.tracker.protocol import Tracker
    from valkyrie.views import RunView


def groups_of(opened: Tracker, refs: Sequence[str]) -> list[NamedRuns]:
    """Each word as a job or a run; UsageError for one that is neither, and for one said twice."""
    groups = [_named(opened, ref) for ref in refs]
    seen: dict[str, str] = {}
    for ref, group in zip(refs, groups, strict=True):
        for run in group.runs:
            if run.id in seen:
                raise UsageError(f"{ref!r} and {seen[run.id]!r} both stand for run {run.id}.")
            seen[run.id] = ref
    if len(groups) == 1 and len(groups[0].runs) < 2:
        what = "This job has one run only" if groups[0].job else "This is one run"
        raise UsageError(f"{what}; name another run or job to compare it with.")
    return groups


def _named(opened: Tracker, ref: str) -> NamedRuns:
    try:
        return named_runs(opened, ref)
    except UnknownError as error:
        if "/" not in ref:
            raise
        raise UnknownError(f"{error} It is no result folder either.") from None


def pairs_of(groups: Sequence[NamedRuns]) -> list[tuple[int, int]]:
    """Positions, in all runs, of those to compare.

    Of one group all with all; of several, each run with those of its name in another group, or with all of
    them where one of the two groups is a single run.
    """
    places = [(which, run) for which, group in enumerate(groups) for run in group.runs]
    if len(groups) == 1:
        inside = combinations(range(len(places)), 2)
        pairs = [(a, b) for a, b in inside if _alike(places[a][1], places[b][1])]
        problem = "No two runs of this job are on the same benchmark and dataset: nothing to compare."
    else:
        pairs = []
        for first, second in combinations(range(len(groups)), 2):
            pairs += _between(places, first, second, named=_both_have_several(groups[first], groups[second]))
        problem = "These jobs have no agent of the same name on the same benchmark and dataset; name runs."
    if not pairs:
        raise UsageError(problem)
    return pairs


def _both_have_several(first: NamedRuns, second: NamedRuns) -> bool:
    return len(first.runs) > 1 and len(second.runs) > 1


def _between(
    places: Sequence[tuple[int, RunView]], first: int, second: int, *, named: bool
) -> list[tuple[int, int]]:
    left, right = ([at for at, (which, _) in enumerate(places) if which == one] for one in (first, second))
    pairs = [
        (a, b) for a, b in product(left, right) if not named or _name(places[a][1]) == _name(places[b][1])
    ]
    if len(left) == len(right) == 1:
        check_alike(places[left[0]][1], places[right[0]][1])
    return [(a, b) for a, b in pairs if _alike(places[a][1], places[b][1])]


def _name(run: RunView) -> tuple[str, str | None]:
    return run.agent, run.model


def _alike(a: RunView, b: RunView) -> bool:
    return (a.benchmark, a.dataset) == (b.benchmark, b.dataset)


# `compare`: agents beside each other, and which differences are more than chance.


class Points(Number):
    """A number of points, said so when a run or job follows the flag instead."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            self.fail(f"{error.message} Put it last, or write --fail-if-worse=POINTS.", param, ctx)


class MarginType(click.ParamType[Any]):
    """How much worse does not matter: `2`, `2%`, `2 points` or `0.02`."""

    name = "margin"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, Margin):
            return value
        try:
            return read_margin(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


@dataclass(frozen=True, slots=True)
class GateAsked:
    """Which gate was asked for, if any."""

    most: float | None = None
    margin: Margin | None = None

    @property
    def given(self) -> bool:
        return self.most is not None or self.margin is not None

    @property
    def flag(self) -> str:
        return "--no-worse-than" if self.margin is not None else "--fail-if-worse"

    def on_scale(self, *, fraction: bool) -> float | None:
        """Return the margin in units of the score; None where none was asked for."""
        return None if self.margin is None else self.margin.on_scale(fraction=fraction)

    def gate(self, summary: Summary, baseline: Sequence[str]) -> ComparisonGate | None:
        """Return what it says of the comparisons with these runs; None where no gate was asked for."""
        if self.margin is not None:
            return no_worse_gate(summary.comparisons, baseline, self.margin)
        return None if self.most is None else worse_gate(summary.comparisons, baseline, self.most)


FORMATS = ("text", "json", "yaml")


# Result folders.


@dataclass(frozen=True, slots=True)
class FolderComparisonRequest:
    """What only result folders are asked for."""

    eval_specs: tuple[str, ...] = ()
    judge_model: str | None = None
    judge_url: str | None = None
    judge_effort: str | None = None
    plugins: tuple[str, ...] = ()
    verbose: bool = False
    file: str | None = None
    """Where the record goes; `-` is stdout."""

    def given(self) -> list[str]:
        """The flags that were used."""
        flags = {
            "--eval-spec": self.eval_specs,
            "--judge-model": self.judge_model,
            "--judge-url": self.judge_url,
            "--judge-reasoning-effort": self.judge_effort,
            "--grader-plugin": self.plugins,
            "--verbose": self.verbose,
        }
        return [flag for flag, value in flags.items() if value]


@dataclass(frozen=True, slots=True)
class ComparisonDisplay:
    """How it is shown, and when it fails a build."""

    metric: str
    by_task: bool
    asked: GateAsked


def folders_among(refs: Sequence[str]) -> bool:
    """Whether the words are result folders; UsageError where only some are."""
    found = [names_results(ref) for ref in refs]
    if not any(found):
        return False
    if not all(found):
        folder, other = refs[found.index(True)], refs[found.index(False)]
        raise UsageError(
            f"{folder!r} is a result folder and {other!r} is none; compare two folders, or two runs "
            "(`valk ingest` makes runs of folders)."
        )
    if len(refs) != 2:
        raise UsageError(f"Two result folders are compared, not {len(refs)}.")
    return True


def variants_of(refs: Sequence[str]) -> list[tuple[str, str]]:
    """The baseline's folder with each other variant's, where one experiment's folder is named."""
    about = read_manifest(Path(refs[0])) if len(refs) == 1 else None
    if about is None:
        return []
    names = [str(one) for one in about.get("variantNames") or ()]
    places = variant_folders(Path(refs[0]), names)
    baseline = about.get("baseline") or (names[0] if names else None)
    if baseline not in places or len(places) < 2:
        raise UsageError(f"{refs[0]} is an experiment with nothing to compare: it has {len(names)} variant.")
    return [(str(places[baseline]), str(place)) for name, place in places.items() if name != baseline]


def compare_results(
    output: Output, baseline: str, treatment: str, wish: FolderComparisonRequest, shown: ComparisonDisplay
) -> int:
    """Compare and print; 1 where nothing counts or the gate is shut."""
    sides = read_sides(baseline, treatment)
    compared = asyncio.run(compare_folders(*sides, _plan(wish)))
    metric = cast("Metric", shown.metric)
    fraction = metric == "pass" or is_fraction([*sides[0].trials, *sides[1].trials])
    summary = summary_of(compared, metric, shown.asked.on_scale(fraction=fraction))
    gate = shown.asked.gate(summary, [BASELINE])
    if gate is not None:
        judged = judge_failures(compared, shown.asked.most or 0.0)
        gate = replace(gate, failures=[*gate.failures, *judged])
    _print(output, compared, summary, wish, shown, gate)
    if compared.failed:
        output.note(_why_nothing(compared))
    return 1 if (gate and gate.failures) or compared.failed else 0


def _plan(wish: FolderComparisonRequest) -> JudgePlan | None:
    """Who judges; None where neither a flag nor a spec asks for a judge."""
    specs = [read_spec(spec_file(path)).spec for path in wish.eval_specs]
    base = specs[0].folder if specs else None
    registry = load_plugins(wish.plugins, base) if wish.plugins else None
    asking = JudgeDefaults(model=wish.judge_model, url=wish.judge_url, reasoning_effort=wish.judge_effort)
    plan = JudgePlan(asking, specs, registry, always=wish.judge_model is not None)
    asked = any(plan.comparisons(stimulus) for spec in specs for stimulus in spec.stimuli)
    if not plan.always and not asked:
        if wish.judge_url or wish.judge_effort:
            raise UsageError("A judge needs a model: add --judge-model, or --eval-spec with a judge in it.")
        return None
    return plan


def _print(
    output: Output,
    compared: FolderComparison,
    summary: Summary,
    wish: FolderComparisonRequest,
    shown: ComparisonDisplay,
    gate: ComparisonGate | None,
) -> None:
    record = compared.record()
    sentences = [sentence(one) for one in summary.comparisons]
    sentences += [said for said in [judge_sentence(compared)] if said]
    if wish.file == "-":
        sys.stdout.write(dump_line(record) + "\n")
        for said in [*sentences, *(f"Gate: {reason}" for reason in (gate.failures if gate else ()))]:
            output.note(said)
        return
    if wish.file is not None:
        _write(Path(wish.file), dump_line(record))
    said_by_gate: dict[str, Any] = {"gate": gate.to_json()} if gate else {}
    output.emit(
        "comparison",
        **record,
        sentences=sentences,
        paired=to_json(summary, tasks=shown.by_task),
        judgeUsage=compared.usage,
        judge=judge_json(compared),
        **said_by_gate,
    )
    if not output.json:
        if wish.verbose:
            output.lines(pair_lines(compared))
            output.line()
        deltas = delta_table(compared, output.ink)
        _show(
            output,
            [*tables(summary, output.ink, denominators=False), *([deltas] if deltas else [])],
            sentences,
            [*remarks(compared), *notes(summary)],
            task_tables(summary, output.ink) if shown.by_task else (),
        )
        show_gate(gate, output)
        if wish.file is not None:
            output.note(f"Written to {wish.file}")


def _why_nothing(compared: FolderComparison) -> str:
    outcomes = compared.numbers.outcomes
    if not outcomes:
        return "Nothing was compared: no stimulus and trial number is in both."
    return f"Nothing was compared: every pair is an error. The first: {outcomes[0].evidence[:300]}"


def _write(path: Path, line: str) -> None:
    with disk_errors(f"write {path}", "output"), whole_file(path) as file:
        file.write(line.encode() + b"\n")


# The command.


@verb(
    "compare",
    examples="valk compare 3f2a 9c1e\n"
    "valk compare nightly-job --tasks\n"
    "valk compare last-week this-week --metric pass -o json\n"
    "valk compare 3f2a 9c1e --no-worse-than 2%\n"
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
    help="Exit 1 when a later one is worse than the first by a one-sided test, and by at least this many "
    "points [without a number: by any]. Put it last, or write --fail-if-worse=2.",
)
@click.option(
    "--fail-on-regression",
    "regression",
    is_flag=True,
    help="Exit 1 when a later one is worse than the first by a one-sided test, by any amount.",
)
@click.option(
    "--no-worse-than",
    "margin",
    type=MarginType(),
    default=None,
    metavar="D",
    help="Exit 0 only when later ones are surely no worse than the first by more than D (2, 2% or 0.02: two "
    "points); 1 when one is worse, or it can't be told.",
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
    margin: Margin | None,
    regression: bool,
    destination: str | None,
    **folder_flags: Any,
) -> int:
    """Compare agents on the tasks they have in common.

    A, B, … are runs (an id or the beginning of one, JOB/AGENT) or jobs (an id or the beginning of one, a
    name); `latest` is what you started last. One job: all its agents
    are compared. Two jobs: agents of the same name, or their only runs. Runs must be on the same
    benchmark and dataset; tasks are matched by id, and several trials of a task are averaged first.

    A and B may also be two result folders of `valk eval`, or their results.jsonl: trials are matched by
    stimulus and number, and with --judge-model or --eval-spec a model judges both answers, in both orders.
    A alone may be the folder of an experiment: each variant is compared with the baseline.

    RUN@0 RUN@1 compares two gradings of one run (see `run regrade`): which verdicts changed.
    """
    words = _words(refs, baseline, treatment)
    if regression and most is None:
        most = 0.0
    if most is not None and margin is not None:
        raise click.UsageError("--no-worse-than and --fail-if-worse are two gates; give one of them.")
    display = ComparisonDisplay(metric, by_task, GateAsked(most, margin))
    found = gradings_among(words)
    if found and display.asked.given:
        raise click.UsageError(f"{display.asked.flag} compares agents; {words[0]!r} is a grading of a run.")
    output, file = _destination(output, destination)
    if found:
        return compare_gradings(output, *found)
    wish = FolderComparisonRequest(file=file, **folder_flags)
    pairs = variants_of(words) or ([(words[0], words[1])] if folders_among(words) else [])
    if pairs:
        return max([compare_results(output, *pair, wish, display) for pair in pairs])
    if file is not None:
        raise click.BadParameter(
            f"{file!r} is not one of {', '.join(map(repr, FORMATS))}.", param_hint="'-o' / '--output'"
        )
    if wish.given():
        raise click.UsageError(f"{wish.given()[0]} is for result folders; {words[0]!r} is none.")
    return compare_runs(output, words, display)


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
    if not any(numbered) or any("/" in word and Path(word).exists() for word in words):
        return None
    if len(words) != 2 or not all(numbered) or parts[0][0] != parts[1][0]:
        raise click.UsageError("RUN@N compares two gradings of one run: valk compare RUN@0 RUN@1")
    return parts[0][0], int(parts[0][2]), int(parts[1][2])


def _destination(output: Output, destination: str | None) -> tuple[Output, str | None]:
    """What prints, and the file the record goes to."""
    if destination is None:
        return output, None
    if destination not in FORMATS:
        return output, destination
    if output.json and destination != "json":
        raise click.UsageError(f"--json and -o {destination} exclude each other.")
    if destination == "text":
        return output, None
    return (YamlOutput() if destination == "yaml" else Output(json=True)), None


def compare_runs(output: Output, refs: Sequence[str], shown: ComparisonDisplay) -> int:
    """Compare runs and jobs of the store."""
    with tracker() as opened:
        groups = groups_of(opened, refs)
        pairs = pairs_of(groups)
        runs = [
            (run, ScoredTrials(each_trial(opened, run.id, detail="scores")))
            for group in groups
            for run in group.runs
        ]
    names = [group.name_of(run, several=len(groups) > 1) for group in groups for run in group.runs]
    margin = shown.asked.on_scale(
        fraction=shown.metric == "pass" or all(run.score.fraction for run, _ in runs)
    )
    summary = summarise(runs, metric=cast("Metric", shown.metric), names=names, pairs=pairs, margin=margin)
    first = groups[0].runs if len(groups) > 1 else groups[0].runs[:1]
    gate = shown.asked.gate(summary, [run.id for run in first])
    if output.json:
        judged = {"gate": gate.to_json()} if gate else {}
        output.emit("comparison", **to_json(summary, tasks=shown.by_task), **judged)
    else:
        sentences = [sentence(one) for one in summary.comparisons]
        by_tasks = task_tables(summary, output.ink) if shown.by_task else ()
        _show(output, tables(summary, output.ink), sentences, notes(summary), by_tasks)
        show_gate(gate, output)
    return 1 if gate and gate.failures else 0


def show_gate(gate: ComparisonGate | None, output: Output) -> None:
    """Print what the gate says: why it is shut, or by what it is open."""
    if gate is None:
        return
    for reason in gate.failures:
        output.lines(output.ink.paint(line, "red") for line in wrapped(f"Gate: {reason}", output.width))
    for one in gate.judgements if not gate.failures else ():
        output.lines(output.ink.paint(line, "green") for line in wrapped(f"Gate: {one.words}", output.width))


def _show(
    output: Output,
    shown: Iterable[Table],
    sentences: Iterable[str],
    remarks: Iterable[str],
    by_tasks: Iterable[Table],
) -> None:
    for table in shown:
        output.table(table)
        output.line()
    for said in sentences:
        output.lines(wrapped(said, output.width))
    output.line()
    for remark in remarks:
        output.lines(output.ink.paint(line, "dim") for line in wrapped(remark, output.width))
    for table in by_tasks:
        output.line()
        show_table(table, output)
