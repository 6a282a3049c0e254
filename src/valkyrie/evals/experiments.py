"""Plan and write experiments, and compare each variant with the baseline, also by judges."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from benchmark_runner.terminal import Column, Table, safe
from valkyrie.artifact_store.disk import disk_errors, whole_file
from valkyrie.compare.summary import Metric, summarise
from valkyrie.compare.views import Comparison
from valkyrie.compare.words import sentence
from valkyrie.config.permissions import Allowance
from valkyrie.domain import Json
from valkyrie.errors import UsageError
from valkyrie.evals.comparison.judges import JudgePlan
from valkyrie.evals.comparison.pairs import ResultSide
from valkyrie.evals.comparison.result import FolderComparison, compare_folders, judge_sentence, remarks
from valkyrie.evals.figures import EvalOutcome, Figures, figures, is_fraction, run_of, views_of
from valkyrie.evals.markdown import escaped
from valkyrie.evals.phrases import ends_text, percent, score_text, seconds
from valkyrie.evals.plan import DEFAULT_WORKERS, EvalItem, EvalRequest
from valkyrie.evals.records import dump_line, read_lines
from valkyrie.evals.result_folder import RESULTS, variant_folders, write_all
from valkyrie.evals.results import Invocation, SpecResult, StimulusResult, TrialResult
from valkyrie.grade.graders import load_plugins
from valkyrie.grade.protocol import JudgeDefaults
from valkyrie.report.formats import dollars, plural
from valkyrie.specs.experiment import plan_experiment, read_experiment
from valkyrie.specs.reader import read_spec
from valkyrie.text import did_you_mean
from valkyrie.views import RunView, TrialView

if TYPE_CHECKING:
    from valkyrie.specs.experiment import Experiment, VariantPlan
    from valkyrie.specs.model import EvalSpec


Key = tuple[str, str]
"""Eval and stimulus, as reports call them."""


@dataclass(frozen=True, slots=True)
class VariantResult:
    """Everything that ran under one variant."""

    name: str
    evals: Sequence[SpecResult]
    is_baseline: bool = False

    @property
    def trials(self) -> list[TrialResult]:
        return [trial for one in self.evals for trial in one.trials]

    @property
    def every_trial_passed(self) -> bool:
        """Nothing failed, nothing could not be told, nothing is missing."""
        return all(trial.passed for trial in self.trials) and not any(one.missing for one in self.evals)


@dataclass(frozen=True, slots=True)
class ExperimentResult:
    """What an experiment came to."""

    name: str
    variants: Sequence[VariantResult]
    comparisons: Mapping[Metric, Sequence[Comparison]] = field(default_factory=dict)
    """Each variant against the baseline; by pass or fail also where scores are finer than that."""

    @property
    def baseline(self) -> VariantResult | None:
        return next((one for one in self.variants if one.is_baseline), None)

    @property
    def every_trial_passed(self) -> bool:
        return all(one.every_trial_passed for one in self.variants)

    @property
    def has_errors(self) -> bool:
        """Something could not be run or graded, or did not run."""
        return any(one.faults or one.missing for variant in self.variants for one in variant.evals)


def experiment_result(
    invocation: Invocation, *, name: str | None = None, baseline: str | None = None
) -> ExperimentResult:
    """Results by variant, the baseline's first: the one named, else marked, else the first of several."""
    by_variant: dict[str, list[SpecResult]] = {}
    for one in invocation.evals:
        by_variant.setdefault(one.variant, []).append(one)
    records = [trial.experiment for one in invocation.evals for trial in one.trials if trial.experiment]
    if baseline is None:
        baseline = next((str(one.get("variant")) for one in records if one.get("baseline")), None)
    elif baseline not in by_variant:
        known = ", ".join(by_variant)
        raise UsageError(
            f"There is no variant {baseline!r}.{did_you_mean(baseline, by_variant)} Known: {known}."
        )
    if baseline not in by_variant:
        baseline = next(iter(by_variant)) if len(by_variant) > 1 else None
    variants = [VariantResult(variant, evals, variant == baseline) for variant, evals in by_variant.items()]
    variants.sort(key=lambda one: not one.is_baseline)
    called = name or next((str(one["name"]) for one in records if one.get("name")), None)
    return ExperimentResult(called or invocation.name or "experiment", variants, _compared_variant(variants))


def by_stimulus(variant: VariantResult) -> dict[Key, list[TrialResult]]:
    """Its trials by eval and stimulus; evals of the same name are told apart by their folders."""
    found: dict[Key, list[TrialResult]] = {}
    for key, stimulus in _variant_stimuli(variant):
        found.setdefault(key, []).extend(stimulus.trials)
    return found


def _variant_stimuli(variant: VariantResult) -> Iterator[tuple[Key, StimulusResult]]:
    files: dict[str, set[str]] = {}
    for one in variant.evals:
        files.setdefault(one.name, set()).add(one.file)
    for one in variant.evals:
        name = one.name if len(files[one.name]) == 1 else f"{one.name} ({Path(one.file).parent.name})"
        for stimulus in one.stimuli:
            yield (name, stimulus.name), stimulus


def _compared_variant(variants: Sequence[VariantResult]) -> dict[Metric, Sequence[Comparison]]:
    baseline = next((one for one in variants if one.is_baseline), None)
    others = [one for one in variants if one is not baseline]
    if baseline is None or not others:
        return {}
    partial = any(trial.score not in (None, 0.0, 1.0) for one in variants for trial in one.trials)
    metrics: list[Metric] = ["score", "pass"] if partial else ["score"]
    fraction = is_fraction(trial for one in variants for trial in one.trials)
    runs = [_run(one, fraction=fraction) for one in (*others, baseline)]
    names = [one.name for one in (*others, baseline)]
    pairs = [(place, len(others)) for place in range(len(others))]
    return {
        metric: summarise(runs, metric=metric, names=names, pairs=pairs).comparisons for metric in metrics
    }


def _run(variant: VariantResult, *, fraction: bool) -> tuple[RunView, Sequence[TrialView]]:
    """A variant as a run, by whose rules it is compared."""
    trials: dict[str, list[TrialResult]] = {}
    planned: Counter[str] = Counter()
    for key, stimulus in _variant_stimuli(variant):  # of several models, the trials of one follow the other's
        task = " / ".join(key)
        before = planned[task]
        own = [replace(trial, index=before + trial.index) for trial in stimulus.trials]
        trials.setdefault(task, []).extend(own)
        planned[task] += stimulus.planned
    views = views_of(trials, planned)
    return run_of(variant.name, agent=variant.name, model=None, trials=views, fraction=fraction), views


def summary_lines(result: ExperimentResult) -> list[Json]:
    """run-summary.jsonl: one object per variant and eval."""
    return [_summary_line(result, variant, one) for variant in result.variants for one in variant.evals]


def _summary_line(result: ExperimentResult, variant: VariantResult, one: SpecResult) -> Json:
    found = figures([one])
    interval, _ = found.score_interval
    low, high = found.score_range or ((found.score, found.score) if found.fraction else (None, None))
    record = next((trial.experiment for trial in one.trials if trial.experiment), None) or {}
    return {
        "type": "run-summary",
        "experiment": result.name,
        "variant": variant.name,
        "baseline": variant.is_baseline,
        "eval": one.name,
        "evalFile": one.file,
        "model": one.model,
        "executor": one.executor,
        "runId": one.run_id,
        "stimuli": len(one.stimuli),
        "trials": len(one.trials) + one.missing,
        "passed": found.trials[EvalOutcome.PASSED],
        "failed": found.trials[EvalOutcome.FAILED],
        "graderErrors": found.trials[EvalOutcome.GRADER_ERROR],
        "executionErrors": found.trials[EvalOutcome.EXECUTION_ERROR],
        "notRun": one.missing,
        "passRate": found.pass_rate,
        "meanScore": found.score,
        "ciLow": interval[0] if interval else None,
        "ciHigh": interval[1] if interval else None,
        "ungraded": found.ungraded,
        "scoreLow": low,
        "scoreHigh": high,
        "durationMs": sum(trial.duration_ms for trial in one.trials),
        "inputTokens": found.used.input_tokens,
        "outputTokens": found.used.output_tokens,
        "cost": found.used.total_cost,
        "evalHash": record.get("evalHash"),
        "configHash": record.get("configHash"),
    }


# report.md of an experiment: the variants' numbers, each against the baseline, and stimulus by stimulus.

MOST_ROWS = 1_000
_TITLES = (
    "stimuli passed",
    "score",
    "95% interval",
    "pass rate",
    "failed",
    "errors",
    "not run",
    "tokens",
    "cost",
    "time",
)


def report(result: ExperimentResult, *, judged: Sequence[str] = ()) -> str:
    """The whole document; `judged` are lines of an A/B judge's."""
    lines = [f"# Experiment: {escaped(result.name)}", ""]
    lines += _overview(result)
    lines += _compared(result)
    if judged:
        lines += [*judged, ""]
    lines += _stimuli(result)
    return "\n".join(lines).rstrip() + "\n"


def sentences(result: ExperimentResult) -> list[str]:
    """Each variant against the baseline, in one plain sentence."""
    found = [_sentence(one) for one in result.comparisons.get("score", ())]
    by_pass = [f"By passes: {_sentence(one)}" for one in result.comparisons.get("pass", ())]
    return [*found, *by_pass]


def _sentence(one: Comparison) -> str:
    """In the words of specs; whatever variants are called, their names stay as they are."""
    a, b = "\0a", "\0b"
    said = sentence(replace(one, a=a, b=b)).replace("tasks", "stimuli").replace("task", "stimulus")
    return said.replace(a, safe(one.a)).replace(b, safe(one.b))


def _overview(result: ExperimentResult) -> Iterator[str]:
    evals = {one.file for variant in result.variants for one in variant.evals}
    trials = sum(len(variant.trials) for variant in result.variants)
    yield (
        f"{plural(len(result.variants), 'variant')}, {plural(len(evals), 'eval')}, {plural(trials, 'trial')}."
        " An end by the agent's own doing counts as the worst score; other errors count nowhere, and make the"
        " score a range."
    )
    yield ""
    yield f"| variant | {' | '.join(_TITLES)} |"
    yield f"| --- | {' | '.join('--:' for _ in _TITLES)} |"
    yield from map(_row, result.variants)
    yield ""


def variants_table(result: ExperimentResult) -> Table:
    titles = [Column("Variant"), *(Column(title.capitalize(), "right") for title in _TITLES)]
    rows: list[Sequence[str]] = [
        [safe(one.name) + (" (baseline)" if one.is_baseline else ""), *_numbers(one)]
        for one in result.variants
    ]
    return Table(titles, rows)


def _row(variant: VariantResult) -> str:
    name = escaped(variant.name) + (" (baseline)" if variant.is_baseline else "")
    return f"| {' | '.join([name, *_numbers(variant)])} |"


def _numbers(variant: VariantResult) -> list[str]:
    found = figures(variant.evals)
    interval, _ = found.score_interval
    used = found.used
    return [
        f"{found.stimuli[EvalOutcome.PASSED]}/{sum(found.stimuli.values())}",
        _score(found),
        "—" if interval is None else ends_text(interval, found),
        percent(found.pass_rate),
        str(found.trials[EvalOutcome.FAILED]),
        str(found.trials[EvalOutcome.GRADER_ERROR] + found.trials[EvalOutcome.EXECUTION_ERROR]),
        str(found.trials[EvalOutcome.NOT_RUN]),
        f"{used.input_tokens + used.output_tokens:,}",
        "—" if used.total_cost is None else dollars(used.total_cost),
        seconds(sum(trial.duration_ms for trial in variant.trials)),
    ]


def _score(found: Figures) -> str:
    """The score, or the range it is in where trials are ungraded."""
    if found.score_range is None:
        return score_text(found.score, found)
    return f"{percent(found.score_range[0])} to {percent(found.score_range[1])}"


def _compared(result: ExperimentResult) -> Iterator[str]:
    said = sentences(result)
    if not said or result.baseline is None:
        return
    yield f"## Against {escaped(result.baseline.name)}"
    yield ""
    yield from (f"- {escaped(one)}" for one in said)
    yield ""
    yield "Stimuli are paired; several trials of one are averaged first, so repeats do not add breadth."
    yield ""


def _stimuli(result: ExperimentResult) -> Iterator[str]:
    tables = [by_stimulus(variant) for variant in result.variants]
    keys = list(dict.fromkeys(key for table in tables for key in table))
    yield "## Stimulus by stimulus"
    yield ""
    names = " | ".join(escaped(variant.name) for variant in result.variants)
    yield f"| eval | stimulus | {names} |"
    yield f"| --- | --- | {' | '.join('--:' for _ in result.variants)} |"
    for key in keys[:MOST_ROWS]:
        yield _stimulus_row(key, [table.get(key, []) for table in tables])
    if len(keys) > MOST_ROWS:
        yield from ("", f"… and {len(keys) - MOST_ROWS} more in the variants' results.jsonl.")
    yield ""


def _stimulus_row(key: Key, cells: Sequence[Sequence[TrialResult]]) -> str:
    return f"| {escaped(key[0])} | {escaped(key[1])} | {' | '.join(map(_cell, cells))} |"


def _cell(trials: Sequence[TrialResult]) -> str:
    """`80.0% (4/5)`, and how many errors there were."""
    graded = [trial for trial in trials if trial.passed is not None]
    errors = sum(1 for trial in trials if trial.fault)
    told = f", {plural(errors, 'error')}" if errors else ""
    if not graded:
        return f"—{told}"
    scores = [trial.score if trial.score is not None else float(bool(trial.passed)) for trial in graded]
    passes = sum(1 for trial in graded if trial.passed)
    return safe(f"{percent(sum(scores) / len(scores))} ({passes}/{len(graded)}){told}")


# An experiment: planned whole, run as one job with one pool, written variant by variant.

REPORT, SUMMARY, COMPARISONS = "report.md", "run-summary.jsonl", "comparisons.jsonl"


@dataclass(frozen=True, slots=True)
class PlannedExperiment:
    """An experiment file, and which eval runs under which variant."""

    experiment: Experiment
    plans: Sequence[VariantPlan]

    def request(self, asked: EvalRequest, workers: int | None) -> EvalRequest:
        """Return what the engine is asked for; `asked` is everything the command line says besides."""
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
    """Return whether a path, a folder or a pattern means this eval: as the experiment names it, or from
    here."""
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


def add_judged(
    result: ExperimentResult, written: WrittenExperiment, lines: Sequence[str], records: Sequence[Json]
) -> None:
    """Add what an A/B judge said: to the report, and as records beside it."""
    with disk_errors(f"write to {written.folder}", "output"):
        _write(written.report, report(result, judged=lines))
        _write(written.folder / COMPARISONS, "".join(f"{dump_line(one)}\n" for one in records))


def _write(path: Path, text: str) -> None:
    with whole_file(path) as file:
        file.write(text.encode("utf-8", "replace"))


# A judge before each variant and the baseline: `experiment run --compare`.


def judge_variants(
    result: ExperimentResult, written: WrittenExperiment, request: EvalRequest
) -> list[FolderComparison]:
    """Each variant against the baseline, pair by pair, from the results that were written."""
    if result.baseline is None:
        return []
    specs = _specs(request, result.baseline.name)
    plan = JudgePlan(
        asking=JudgeDefaults(
            model=request.judge_model, url=request.judge_url, reasoning_effort=request.judge_effort
        ),
        specs=specs,
        plugins=load_plugins(request.grader_plugins, specs[0].folder if specs else None),
        always=request.judge_model is not None,
    )
    sides = {one.name: _side(one.name, written) for one in result.variants}
    baseline = sides.pop(result.baseline.name)
    return asyncio.run(_all(baseline, list(sides.values()), plan))


async def _all(
    baseline: ResultSide, treatments: Sequence[ResultSide], plan: JudgePlan
) -> list[FolderComparison]:
    return [await compare_folders(baseline, treatment, plan) for treatment in treatments]


def _specs(request: EvalRequest, baseline: str) -> list[EvalSpec]:
    """The specs as the baseline has them: what judges are told is the same for both sides."""
    items = {item.file: item for item in request.items if item.variant == baseline}
    return [
        read_spec(file, params=request.params, patch=item.patch, allowed=request.allowed).spec
        for file, item in items.items()
    ]


def _side(name: str, written: WrittenExperiment) -> ResultSide:
    file = written.variants[name] / RESULTS
    return ResultSide(name, file, read_lines(file))


def judged_lines(found: Sequence[FolderComparison]) -> list[str]:
    """Return what judges said, for the report."""
    lines = ["## A/B judge", ""]
    for one in found:
        lines.append(f"- {escaped(judge_sentence(one) or _nobody(one))}")
        lines += [f"  - {escaped(remark)}" for remark in remarks(one)]
    return lines


def _nobody(one: FolderComparison) -> str:
    return (
        f"Nobody judged {one.treatment.name} against {one.baseline.name}: no stimulus has a prompt grader, "
        "and no --judge-model was named."
    )
