"""The variants of an experiment beside each other: which is better than the baseline, and how sure one is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from valkyrie.errors import UsageError
from valkyrie.evals.results import EvalResult, Invocation, StimulusResult, TrialResult
from valkyrie.evals.run_views import is_fraction, run_of, views_of
from valkyrie.nouns import Json
from valkyrie.report.comparing import Comparison, Metric, summarise
from valkyrie.suggest import did_you_mean
from valkyrie.views import RunView, TrialView

Key = tuple[str, str]
"""Eval and stimulus, as reports call them."""


@dataclass(frozen=True, slots=True)
class VariantResult:
    """Everything that ran under one variant."""

    name: str
    evals: Sequence[EvalResult]
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
    by_variant: dict[str, list[EvalResult]] = {}
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
    return ExperimentResult(called or invocation.name or "experiment", variants, _compared(variants))


def by_stimulus(variant: VariantResult) -> dict[Key, list[TrialResult]]:
    """Its trials by eval and stimulus; evals of the same name are told apart by their folders."""
    found: dict[Key, list[TrialResult]] = {}
    for key, stimulus in _stimuli(variant):
        found.setdefault(key, []).extend(stimulus.trials)
    return found


def _stimuli(variant: VariantResult) -> Iterator[tuple[Key, StimulusResult]]:
    files: dict[str, set[str]] = {}
    for one in variant.evals:
        files.setdefault(one.name, set()).add(one.file)
    for one in variant.evals:
        name = one.name if len(files[one.name]) == 1 else f"{one.name} ({Path(one.file).parent.name})"
        for stimulus in one.stimuli:
            yield (name, stimulus.name), stimulus


def _compared(variants: Sequence[VariantResult]) -> dict[Metric, Sequence[Comparison]]:
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
    for key, stimulus in _stimuli(variant):  # of several models, the trials of one follow the other's
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


def _summary_line(result: ExperimentResult, variant: VariantResult, one: EvalResult) -> Json:
    from valkyrie.evals.figures import Outcome, figures

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
        "passed": found.trials[Outcome.PASSED],
        "failed": found.trials[Outcome.FAILED],
        "graderErrors": found.trials[Outcome.GRADER_ERROR],
        "executionErrors": found.trials[Outcome.EXECUTION_ERROR],
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
