"""A comparison as one record: a line of JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from valkyrie.evals.comparing.matching import Matched
from valkyrie.evals.comparing.numbers import Average, Numbers, stimuli_of
from valkyrie.evals.comparing.outcomes import Outcome, counted
from valkyrie.evals.comparing.sides import ResultSide
from valkyrie.nouns import Json
from valkyrie.report.statistics import mean

TYPE = "comparison"


@dataclass(frozen=True, slots=True)
class FolderComparison:
    """Two sides, what belongs together, and how each pair came out."""

    baseline: ResultSide
    treatment: ResultSide
    matched: Matched
    numbers: Numbers
    usage: Json | None = None
    """What judges used."""

    @property
    def failed(self) -> bool:
        """Nothing counts: nothing belongs together, or every pair is an error."""
        return not self.numbers.counted

    def record(self) -> Json:
        """The `comparison` record."""
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


def _stimulus(name: str, outcomes: Sequence[Outcome]) -> Json:
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
