"""Compare two result folders: numbers with intervals, as one record, as runs, and as people read it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from benchmark_runner.terminal import PLAIN, Column, Table, TerminalStyle, no_command, safe
from valkyrie.compare.summary import Metric, Summary, summarise
from valkyrie.compare.words import points, probability
from valkyrie.domain import INGESTED, Json
from valkyrie.evals.comparison.judges import JudgePlan, judge_pairs
from valkyrie.evals.comparison.pairs import MatchedTrials, PairOutcome, ResultSide, by_verdict, counted, match
from valkyrie.evals.figures import is_fraction, run_of, views_of
from valkyrie.evals.results import TrialResult
from valkyrie.grade import judges
from valkyrie.report.formats import NONE, ids_preview, plural
from valkyrie.report.statistics.intervals import mean, means_interval, variance
from valkyrie.report.statistics.paired import SURE, differences, holm, mcnemar, sign_flip
from valkyrie.trajectory.json_fields import TrajectoryError
from valkyrie.trajectory.records import from_record
from valkyrie.trajectory.transcript import Measures
from valkyrie.views import RunView, TrialView

METRICS: Mapping[str, Callable[[Measures], float]] = {
    "totalTokens": lambda used: used.total_tokens,
    "inputTokens": lambda used: used.input_tokens,
    "outputTokens": lambda used: used.output_tokens,
    "turnCount": lambda used: used.turn_count,
    "toolCallCount": lambda used: used.tool_call_count,
    "wallTimeMs": lambda used: used.wall_time_ms,
}


@dataclass(frozen=True, slots=True)
class Average:
    """A mean over stimuli. Of a single stimulus its trials are taken, which say nothing about others."""

    mean: float
    low: float | None
    high: float | None
    deviation: float
    p_value: float
    """Two-sided, by the sign-flip test; after a correction where several were looked at together."""

    @property
    def varies(self) -> bool:
        """The spread is larger than the difference itself."""
        return self.deviation > abs(self.mean)

    @property
    def sure(self) -> bool:
        """It is more than chance, by a two-sided test at 5 %."""
        return self.p_value < SURE

    @property
    def surely_below(self) -> bool:
        """It is below 0 by a one-sided test at 5 %. The test is symmetric: half of the two-sided p-value."""
        return self.mean < 0 and self.p_value / 2 < SURE


def average(by_task: Mapping[str, Sequence[float]], most: float = math.inf) -> Average | None:
    """The mean over stimuli of the means of their trials; None where there is nothing.

    `most` is how far from 0 a value can be.
    """
    lists = [values for values in by_task.values() if values]
    if not lists:
        return None
    units = list(lists[0]) if len(lists) == 1 else [mean(values) for values in lists]
    deviation = math.sqrt(variance(units)) if len(units) > 1 else 0.0
    if math.isinf(most):
        interval, _ = means_interval(units, (-most, most))
        low, high = interval or (None, None)
        return Average(mean(units), low, high, deviation, sign_flip(units)[0])
    found = differences(units, width=most)
    return Average(found.difference, *found.interval, deviation, found.p_value)


@dataclass(frozen=True)
class Numbers:
    """All numbers of the pairs that count."""

    outcomes: Sequence[PairOutcome]

    @cached_property
    def counted(self) -> Sequence[PairOutcome]:
        return counted(self.outcomes)

    @cached_property
    def score(self) -> Average | None:
        """Of the scores −1..1."""
        return average(_by_task([(one.pair.task, one.score) for one in self.counted]), 1.0)

    @property
    def wins(self) -> int:
        """Of the treatment."""
        return sum(one.winner == "treatment" for one in self.counted)

    @property
    def losses(self) -> int:
        return sum(one.winner == "baseline" for one in self.counted)

    @property
    def ties(self) -> int:
        return len(self.counted) - self.wins - self.losses

    @property
    def disagreements(self) -> int:
        """Pairs about which a judge changed its mind with the order."""
        return sum(one.disagreed for one in self.counted)

    @property
    def judged(self) -> int:
        return sum(one.judged for one in self.counted)

    def mcnemar(self) -> Json:
        """Over pairs with a verdict on both sides; the mid-p value, which is not that of the exact test."""
        pairs = [one.pair for one in self.counted]
        verdicts = [(one.baseline.passed, one.treatment.passed) for one in pairs]
        lost = verdicts.count((True, False))
        won = verdicts.count((False, True))
        same = verdicts.count((True, True)) + verdicts.count((False, False))
        return {
            "baselineOnly": lost,
            "treatmentOnly": won,
            "concordant": same,
            "pValue": mcnemar(won, lost),
            "exact": False,
        }

    @cached_property
    def deltas(self) -> Mapping[str, Average]:
        """Treatment minus baseline, of what both measured; p-values are corrected for looking at all."""
        measured = [
            (one.pair, before, after)
            for one in self.counted
            if (before := measures_of(one.pair.baseline)) and (after := measures_of(one.pair.treatment))
        ]
        found: dict[str, Average] = {}
        for name, value in METRICS.items():
            if not any(value(before) or value(after) for _, before, after in measured):
                continue
            apart = [(pair.task, value(after) - value(before)) for pair, before, after in measured]
            if (one := average(_by_task(apart))) is not None:
                found[name] = one
        corrected = holm([one.p_value for one in found.values()])
        return {
            name: replace(one, p_value=p_value)
            for (name, one), p_value in zip(found.items(), corrected, strict=True)
        }


def measures_of(trial: TrialResult) -> Measures | None:
    """Return what a trial used, as its trajectory says; None without one."""
    if trial.transcript is None:
        return None
    try:
        return from_record(trial.transcript).measures
    except TrajectoryError:
        return None


def stimuli_of(outcomes: Sequence[PairOutcome]) -> Mapping[str, Sequence[PairOutcome]]:
    """By stimulus, in order."""
    found: dict[str, list[PairOutcome]] = {}
    for one in outcomes:
        found.setdefault(one.pair.task, []).append(one)
    return found


def _by_task(values: Sequence[tuple[str, float]]) -> Mapping[str, Sequence[float]]:
    found: dict[str, list[float]] = {}
    for task, value in values:
        found.setdefault(task, []).append(value)
    return found


# A comparison as one record: a line of JSON.

TYPE = "comparison"


@dataclass(frozen=True, slots=True)
class FolderComparison:
    """Two sides, what belongs together, and how each pair came out."""

    baseline: ResultSide
    treatment: ResultSide
    matched: MatchedTrials
    numbers: Numbers
    usage: Json | None = None
    """What judges used."""

    @property
    def failed(self) -> bool:
        """Nothing counts: nothing belongs together, or every pair is an error."""
        return not self.numbers.counted

    def record(self) -> Json:
        return {
            "type": TYPE,
            "experimentName": _experiment(self.baseline, self.treatment),
            "baseline": self.baseline.name,
            "treatment": self.treatment.name,
            "summary": _summary(self.numbers),
            "stimuli": [_stimulus(name, own) for name, own in stimuli_of(self.numbers.outcomes).items()],
            "unmatchedBaseline": list(self.matched.only_baseline),
            "unmatchedTreatment": list(self.matched.only_treatment),
        }


def _summary(numbers: Numbers) -> Json:
    count, score = len(numbers.counted), numbers.score
    return {
        "trialCount": count,
        "erroredCount": len(numbers.outcomes) - count,
        "meanScore": score.mean if score else None,
        "ciLow": score.low if score else None,
        "ciHigh": score.high if score else None,
        "wins": numbers.wins,
        "ties": numbers.ties,
        "losses": numbers.losses,
        "winRate": numbers.wins / count if count else None,
        "mcnemar": numbers.mcnemar(),
        "metricDeltas": [_delta(name, found) for name, found in numbers.deltas.items()],
    }


def _delta(metric: str, found: Average) -> Json:
    return {
        "metric": metric,
        "mean": found.mean,
        "ciLow": found.low,
        "ciHigh": found.high,
        "stdDev": found.deviation,
        "highVariance": found.varies,
    }


def _stimulus(name: str, outcomes: Sequence[PairOutcome]) -> Json:
    scores = [one.score for one in counted(outcomes)]
    return {
        "stimulusName": name,
        "meanScore": mean(scores) if scores else None,
        "trials": [one.to_json() for one in outcomes],
    }


def _experiment(baseline: ResultSide, treatment: ResultSide) -> str:
    """The experiment both are of, else the eval both are of."""
    trials = [*baseline.trials, *treatment.trials]
    for names in (
        {str((trial.experiment or {}).get("name") or "") for trial in trials},
        {trial.eval_name for trial in trials},
    ):
        if len(names) == 1 and (name := next(iter(names))):
            return name
    return ""


# Two sides as if they were two runs: one set of rules, tables, tests and sentences serves both.

BASELINE, TREATMENT = "baseline", "treatment"


def summary_of(compared: FolderComparison, metric: Metric, margin: float | None = None) -> Summary:
    """Return each side's numbers over all its trials, and the paired comparison, as of runs of the store.

    `margin` is the difference that counts as none, 2 points unless said.
    """
    matched = compared.matched
    fraction = is_fraction([*compared.baseline.trials, *compared.treatment.trials])
    runs = [
        _run(BASELINE, compared.baseline, matched.baseline, fraction=fraction),
        _run(TREATMENT, compared.treatment, matched.treatment, fraction=fraction),
    ]
    names = [compared.baseline.name, compared.treatment.name]
    return summarise(runs, metric=metric, names=names, margin=margin)


def _run(
    id: str, side: ResultSide, tasks: Mapping[str, Sequence[TrialResult]], *, fraction: bool
) -> tuple[RunView, Sequence[TrialView]]:
    first = side.trials[0]
    planned = {task: max(trial.planned or 0 for trial in own) for task, own in tasks.items()}
    trials = views_of(tasks, planned)
    agent = first.executor or side.name
    folder = str(side.folder)
    run = run_of(id, agent=agent, model=first.model, trials=trials, fraction=fraction, folder=folder)
    return replace(run, provider=INGESTED if any(one.ingested for one in side.trials) else ""), trials


# The comparison itself.


async def compare_folders(
    baseline: ResultSide, treatment: ResultSide, plan: JudgePlan | None = None
) -> FolderComparison:
    """Both sides, pair by pair; judged where there is a plan for it."""
    matched = match(baseline, treatment)
    if plan is None:
        outcomes = [by_verdict(pair) for pair in matched.pairs]
        return FolderComparison(baseline, treatment, matched, Numbers(outcomes))
    judged = await judge_pairs(matched.pairs, plan, baseline, treatment)
    return FolderComparison(
        baseline, treatment, matched, Numbers(judged.outcomes), usage=judges.summed(judged.usages)
    )


# A comparison of two result folders as people read it.

_LABELS = {
    "totalTokens": "Tokens",
    "inputTokens": "Tokens in",
    "outputTokens": "Tokens out",
    "turnCount": "Turns",
    "toolCallCount": "Tool calls",
    "wallTimeMs": "Wall time (ms)",
}
_NAMED = 5


def delta_table(compared: FolderComparison, ink: TerminalStyle = PLAIN) -> Table | None:
    """Return what the treatment used more, or less; None where nothing was measured."""
    if not compared.numbers.deltas:
        return None
    table = Table(
        [
            Column(f"{safe(compared.treatment.name)} minus {safe(compared.baseline.name)}", shrink=True),
            Column("Mean", "right"),
            Column("95 % interval", "right"),
            Column("Spread", "right"),
            Column(""),
        ]
    )
    for name, found in compared.numbers.deltas.items():
        table.rows.append(
            [
                _LABELS[name],
                ink.paint(amount(found.mean), "bold" if found.sure else None),
                interval(found),
                amount(found.deviation).lstrip("+"),
                ink.paint("varies a lot", "dim") if found.varies else "",
            ]
        )
    return table


def judge_sentence(compared: FolderComparison) -> str | None:
    """Return whom judges prefer, by how much, how sure; None where nobody judged."""
    numbers = compared.numbers
    if not numbers.judged or numbers.score is None:
        return None
    score = numbers.score
    treatment, baseline = safe(compared.treatment.name), safe(compared.baseline.name)
    ahead, behind = (treatment, baseline) if score.mean > 0 else (baseline, treatment)
    by = f"by {abs(score.mean):.2f} (of 1)"
    if score.sure:
        said = f"The judge prefers {ahead} to {behind} {by}"
    elif abs(score.mean) < 1e-9:
        said = f"The judge can't tell {treatment} and {baseline} apart: they are level"
    else:
        said = f"The judge can't tell {treatment} and {baseline} apart: {ahead} is ahead {by}"
    sure = "no interval" if score.low is None else f"95 % interval {_range(score)}"
    ends = f"{sure}, {probability(score.p_value)}"
    orders = f"; the two orders disagreed on {numbers.disagreements}" if numbers.disagreements else ""
    return (
        f"{said}, {ends}: {plural(numbers.wins, 'win')}, {plural(numbers.ties, 'tie')}, "
        f"{numbers.losses} {'loss' if numbers.losses == 1 else 'losses'} of {treatment} "
        f"in {plural(len(numbers.counted), 'pair')}{orders}."
    )


def judge_json(compared: FolderComparison) -> Json | None:
    """Return the same as data; None where nobody judged."""
    numbers = compared.numbers
    if not numbers.judged or numbers.score is None:
        return None
    score = numbers.score
    return {
        "prefers": ("treatment" if score.mean > 0 else "baseline") if score.sure else None,
        "meanScore": score.mean,
        "ciLow": score.low,
        "ciHigh": score.high,
        "pValue": score.p_value,
    }


def remarks(compared: FolderComparison) -> Iterator[str]:
    """Yield what was left out, the verdicts' test, what judges cost."""
    numbers, matched = compared.numbers, compared.matched
    found = numbers.mcnemar()
    if found["baselineOnly"] or found["treatmentOnly"] or found["concordant"]:
        repeated = len({one.pair.task for one in numbers.counted}) < len(numbers.counted)
        doubt = " Trials of one stimulus are not independent: trust the sentence above more." * repeated
        yield (
            f"Verdicts, pair by pair: {found['treatmentOnly']} only {safe(compared.treatment.name)} passed, "
            f"{found['baselineOnly']} only {safe(compared.baseline.name)}, {found['concordant']} alike; "
            f"mid-p McNemar p = {found['pValue']:.3g}.{doubt}"
        )
    if errored := len(numbers.outcomes) - len(numbers.counted):
        yield f"{plural(errored, 'pair')} with an error: in no number above."
    for side, names in (
        (compared.baseline.name, matched.only_baseline),
        (compared.treatment.name, matched.only_treatment),
    ):
        if names:
            yield f"Only in {safe(side)}: {ids_preview([safe(name) for name in names[:_NAMED]], len(names))}."
    if compared.usage:
        cost = compared.usage.get("cost")
        money = "" if cost is None else f", ${cost:.4f}"
        yield (
            f"Judge: {compared.usage['inputTokens']:,} tokens in, {compared.usage['outputTokens']:,} out, "
            f"{plural(compared.usage['requests'], 'request')}{money}."
        )


def pair_lines(compared: FolderComparison) -> Iterator[str]:
    for one in compared.numbers.outcomes:
        mark = "error" if one.errored else f"{one.winner} {one.magnitude}" if one.score else "tie"
        yield f"{safe(one.pair.task)} #{one.pair.index}: {mark} ({one.score:+.2f})"
        for line in no_command(safe(one.evidence, keep_lines=True)).splitlines():
            yield f"    {line}"


def amount(value: float) -> str:
    """A difference of counts, with its sign."""
    text = f"{value:+,.1f}" if abs(value) < 100 else f"{value:+,.0f}"
    return text.replace("-", "−")


def interval(found: Average) -> str:
    """`−3.0 to +4.5`."""
    if found.low is None or found.high is None:
        return NONE
    return f"{amount(found.low)} to {amount(found.high)}"


def _range(score: Average) -> str:
    low, high = score.low or 0.0, score.high or 0.0
    if score.mean < 0:
        low, high = -high, -low
    return f"{low:.2f} to {high:.2f}".replace("-", "−")


def judge_failures(compared: FolderComparison, least: float) -> list[str]:
    """Return why judges shut a gate: by a one-sided test they prefer the baseline, by at least so many
    points."""
    score = compared.numbers.score
    if not compared.numbers.judged or score is None or not score.surely_below:
        return []
    if -score.mean * 100 < least - 1e-9:
        return []
    baseline, treatment = safe(compared.baseline.name), safe(compared.treatment.name)
    return [
        f"the judge prefers {baseline} to {treatment} by {points(-score.mean, fraction=True)} points of 100 "
        f"(one-sided {probability(score.p_value / 2)})."
    ]
