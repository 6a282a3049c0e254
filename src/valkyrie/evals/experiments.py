"""An experiment: planned whole, run as one job with one pool, written variant by variant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from valkyrie.errors import UsageError
from valkyrie.evals.experiment_report import report
from valkyrie.evals.names import folder_names
from valkyrie.evals.request import DEFAULT_WORKERS, EvalItem, EvalRequest
from valkyrie.evals.results import Invocation
from valkyrie.evals.variants import ExperimentResult, summary_lines
from valkyrie.keeping.folders import disk_errors, whole_file
from valkyrie.nouns import Json
from valkyrie.permissions import Allowance
from valkyrie.suggest import did_you_mean

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
    evals: Sequence[str] = (),
    params: Mapping[str, str] | None = None,
    allowed: Allowance | None = None,
) -> PlannedExperiment:
    """Read an experiment and check it for drift; `evals` are paths or patterns of those that are wanted.

    Raises SpecError, and UsageError for unknown variants and evals.
    """
    from valkyrie.specs.experiment import plan_experiment, read_experiment

    experiment = read_experiment(path, params=params, allowed=allowed)
    only = tuple(dict.fromkeys(variants))
    plans = plan_experiment(experiment, only=only, params=params, allowed=allowed)
    for pattern in evals:
        if not any(_fits(plan, pattern) for plan in plans):
            names = list(dict.fromkeys(plan.eval_name for plan in plans))
            near = did_you_mean(pattern, names) or f" It has {', '.join(names[:5])}."
            raise UsageError(f"--eval-filter {pattern}: no eval of {path} is there.{near}")
    wanted = [plan for plan in plans if not evals or any(_fits(plan, one) for one in evals)]
    return PlannedExperiment(experiment, wanted)


def _fits(plan: VariantPlan, pattern: str) -> bool:
    """Whether a path, a folder or a pattern means this eval: as the experiment names it, or from here."""
    named, file = PurePosixPath(plan.eval_name), plan.eval_file.resolve()
    plain = PurePosixPath(pattern.rstrip("/"))
    if named == plain or plain in named.parents or named.match(pattern) or fnmatchcase(str(named), pattern):
        return True
    here = Path(pattern).resolve()
    return file == here or here in file.parents


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
    result: ExperimentResult, folder: Path, *, command: Sequence[str] = (), spans: bool = False
) -> WrittenExperiment:
    """Write `report.md`, `run-summary.jsonl` and a folder of results for each variant.

    `command` are the words that ran it; `spans`: trials are written as OpenTelemetry traces, too.
    """
    from valkyrie.evals.records import dump_line
    from valkyrie.evals.writing import write_all

    places = variant_folders(folder, [one.name for one in result.variants])
    written = WrittenExperiment(folder, folder / REPORT, folder / SUMMARY, places)
    with disk_errors(f"write to {folder}", "output"):
        for one in result.variants:
            place = written.variants[one.name]
            place.mkdir(parents=True, exist_ok=True)
            of_variant = Invocation(one.evals, name=f"{result.name}, {one.name}", command=command)
            write_all(of_variant, folder=place, spans=spans)
        _write(written.summary, "".join(f"{dump_line(line)}\n" for line in summary_lines(result)))
        _write(written.report, report(result))
    return written


def variant_folders(folder: Path, variants: Iterable[str]) -> dict[str, Path]:
    """Return where the results of each variant are written."""
    names = folder_names({(one,): one for one in variants}, nameless="variant")
    return {one: folder / name for (one,), name in names.items()}


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
