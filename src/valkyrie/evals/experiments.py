"""An experiment: planned whole, run as one job with one pool, written variant by variant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from valkyrie.evals.experiment_report import report
from valkyrie.evals.names import folder_names
from valkyrie.evals.request import DEFAULT_WORKERS, EvalItem, EvalRequest
from valkyrie.evals.results import Invocation
from valkyrie.evals.variants import ExperimentResult, summary_lines
from valkyrie.keeping.folders import disk_errors, whole_file
from valkyrie.nouns import Json
from valkyrie.permissions import Allowance

if TYPE_CHECKING:
    from valkyrie.specs.experiment import Experiment, VariantPlan

REPORT, SUMMARY, COMPARISONS = "report.md", "run-summary.jsonl", "comparisons.jsonl"


@dataclass(frozen=True, slots=True)
class PlannedExperiment:
    """An experiment file, and which eval runs under which variant."""

    experiment: Experiment
    plans: Sequence[VariantPlan]

    def request(self, asked: EvalRequest, workers: int | None) -> EvalRequest:
        """What the engine is asked for; `asked` is everything the command line says besides."""
        return replace(
            asked,
            items=[_item(plan) for plan in self.plans],
            name=asked.name or self.experiment.name,
            workers=workers or self.experiment.workers or DEFAULT_WORKERS,
        )


def plan_file(
    path: Path,
    *,
    variants: Sequence[str] = (),
    params: Mapping[str, str] | None = None,
    allowed: Allowance | None = None,
) -> PlannedExperiment:
    """Read an experiment and check it for drift. Raises SpecError, and UsageError for unknown variants."""
    from valkyrie.specs.experiment import plan_experiment, read_experiment

    experiment = read_experiment(path, params=params, allowed=allowed)
    only = tuple(dict.fromkeys(variants))
    return PlannedExperiment(
        experiment, plan_experiment(experiment, only=only, params=params, allowed=allowed)
    )


def _item(plan: VariantPlan) -> EvalItem:
    return EvalItem(file=plan.eval_file, variant=plan.variant, patch=plan.patch, experiment=plan.record())


@dataclass(frozen=True, slots=True)
class WrittenExperiment:
    """Where an experiment's files are."""

    folder: Path
    report: Path
    summary: Path
    variants: Mapping[str, Path]


def write_experiment(
    result: ExperimentResult, folder: Path, *, command: Sequence[str] = ()
) -> WrittenExperiment:
    """Write `report.md`, `run-summary.jsonl` and a folder of results for each variant.

    `command` are the words that ran it.
    """
    from valkyrie.evals.records import dump_line
    from valkyrie.evals.writing import write_all

    names = folder_names({(one.name,): one.name for one in result.variants}, nameless="variant")
    written = WrittenExperiment(
        folder,
        folder / REPORT,
        folder / SUMMARY,
        {one.name: folder / names[one.name,] for one in result.variants},
    )
    with disk_errors(f"write to {folder}", "output"):
        for one in result.variants:
            place = written.variants[one.name]
            place.mkdir(parents=True, exist_ok=True)
            of_variant = Invocation(one.evals, name=f"{result.name}, {one.name}", command=command)
            write_all(of_variant, folder=place)
        _write(written.summary, "".join(f"{dump_line(line)}\n" for line in summary_lines(result)))
        _write(written.report, report(result))
    return written


def add_judged(
    result: ExperimentResult, written: WrittenExperiment, lines: Sequence[str], records: Sequence[Json]
) -> None:
    """Add what an A/B judge said: to the report, and as records beside it."""
    from valkyrie.evals.records import dump_line

    with disk_errors(f"write to {written.folder}", "output"):
        _write(written.report, report(result, judged=lines))
        _write(written.folder / COMPARISONS, "".join(f"{dump_line(one)}\n" for one in records))


def _write(path: Path, text: str) -> None:
    with whole_file(path) as file:
        file.write(text.encode("utf-8", "replace"))
