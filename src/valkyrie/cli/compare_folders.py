"""`compare` of two result folders: the words of the command to a comparison, and what it prints."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from valkyrie.cli.eval_session import spec_file
from valkyrie.cli.output import Output
from valkyrie.errors import UsageError
from valkyrie.report.formats import wrapped

if TYPE_CHECKING:
    from valkyrie.cli.compare import GateAsked
    from valkyrie.compare.summary import Metric, Summary
    from valkyrie.compare.words import ComparisonGate
    from valkyrie.evals.comparison.judges import JudgePlan
    from valkyrie.evals.comparison.result import FolderComparison


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
    from valkyrie.evals.comparison.pairs import names_results

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
    from valkyrie.evals.experiments import variant_folders
    from valkyrie.evals.shards import read_manifest

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
    import asyncio

    from valkyrie.evals.comparison.pairs import read_sides
    from valkyrie.evals.comparison.result import BASELINE, compare_folders, judge_failures, summary_of
    from valkyrie.evals.figures import is_fraction

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
    from valkyrie.evals.comparison.judges import JudgePlan
    from valkyrie.grade.graders import load_plugins
    from valkyrie.grade.protocol import JudgeDefaults
    from valkyrie.specs.reader import read_spec

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
    from valkyrie.cli.compare import show_gate
    from valkyrie.compare.summary import sentence, to_json
    from valkyrie.evals.comparison.result import judge_json, judge_sentence
    from valkyrie.evals.records import dump_line

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
        _show(output, compared, summary, sentences, wish, shown)
        show_gate(gate, output)
        if wish.file is not None:
            output.note(f"Written to {wish.file}")


def _show(
    output: Output,
    compared: FolderComparison,
    summary: Summary,
    sentences: Sequence[str],
    wish: FolderComparisonRequest,
    shown: ComparisonDisplay,
) -> None:
    from valkyrie.cli.run_watch import show_table
    from valkyrie.compare.tables import notes, tables, task_tables
    from valkyrie.evals.comparison.result import delta_table, pair_lines, remarks

    if wish.verbose:
        output.lines(pair_lines(compared))
        output.line()
    deltas = delta_table(compared, output.ink)
    for table in [*tables(summary, output.ink, denominators=False), *([deltas] if deltas else [])]:
        output.table(table)
        output.line()
    for said in sentences:
        output.lines(wrapped(said, output.width))
    output.line()
    for note in [*remarks(compared), *notes(summary)]:
        output.lines(output.ink.paint(line, "dim") for line in wrapped(note, output.width))
    if shown.by_task:
        for table in task_tables(summary, output.ink):
            output.line()
            show_table(table, output)


def _why_nothing(compared: FolderComparison) -> str:
    outcomes = compared.numbers.outcomes
    if not outcomes:
        return "Nothing was compared: no stimulus and trial number is in both."
    return f"Nothing was compared: every pair is an error. The first: {outcomes[0].evidence[:300]}"


def _write(path: Path, line: str) -> None:
    from valkyrie.artifact_store.disk import disk_errors, whole_file

    with disk_errors(f"write {path}", "output"), whole_file(path) as file:
        file.write(line.encode() + b"\n")
