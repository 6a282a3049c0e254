"""Who of a pair did better: by its verdicts, or by what judges said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from valkyrie.evals.comparing.matching import Pair
from valkyrie.evals.results import TrialResult
from valkyrie.nouns import Json

Winner = Literal["baseline", "treatment", "tie"]
MUCH, SLIGHTLY = 1.0, 0.4
_NEAR = 1e-9


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one pair. `score` is from −1 (baseline much better) to 1 (treatment much better)."""

    pair: Pair
    score: float
    evidence: str
    errored: str | None = None
    """Why it counts nowhere: `execution`, `grader`, `judge`, `ungraded`."""
    disagreed: bool = False
    """A judge changed its mind with the order."""
    judged: bool = False

    @property
    def winner(self) -> Winner:
        if abs(self.score) < _NEAR:
            return "tie"
        return "treatment" if self.score > 0 else "baseline"

    @property
    def magnitude(self) -> str:
        """The nearest of the three words; a mean half-way counts as the larger."""
        size = abs(self.score) + _NEAR
        if size >= (MUCH + SLIGHTLY) / 2:
            return "much-better"
        return "slightly-better" if size >= SLIGHTLY / 2 else "equal"

    def to_json(self) -> Json:
        """As the comparison record has it."""
        found: Json = {
            "trialIndex": self.pair.index,
            "winner": self.winner,
            "magnitude": self.magnitude,
            "score": self.score,
            "evidence": self.evidence,
            "baselinePassed": self.pair.baseline.passed,
            "treatmentPassed": self.pair.treatment.passed,
        }
        if self.errored:
            found["errored"] = True
        if self.disagreed:
            found["orderDisagreement"] = True
        return found


def fault_of(pair: Pair) -> Outcome | None:
    """A pair of which one side could not be graded, for a reason that is not its agent's doing."""
    told = [
        (side, trial.fault)
        for side, trial in (("baseline", pair.baseline), ("treatment", pair.treatment))
        if trial.fault is not None and not trial.fault.by_agent
    ]
    if not told:
        return None
    kinds = [fault.kind for _, fault in told]
    evidence = "; ".join(f"{side}: {fault.kind} error: {fault.message}" for side, fault in told)
    return Outcome(pair, 0.0, evidence, "execution" if "execution" in kinds else "grader")


def by_verdict(pair: Pair) -> Outcome:
    """Without a judge: another verdict is much, another score is slight."""
    if fault := fault_of(pair):
        return fault
    before, after = pair.baseline, pair.treatment
    if ended := _ended_by_agent(pair):
        return ended
    if before.passed is None or after.passed is None:
        return Outcome(pair, 0.0, "not graded; --judge-model compares the answers themselves", "ungraded")
    if before.passed != after.passed:
        score = MUCH if after.passed else -MUCH
    else:
        apart = (after.score or 0.0) - (before.score or 0.0)
        score = 0.0 if abs(apart) < _NEAR else SLIGHTLY if apart > 0 else -SLIGHTLY
    return Outcome(pair, score, f"by verdict: {_verdict(before)}, then {_verdict(after)}")


def _ended_by_agent(pair: Pair) -> Outcome | None:
    """A pair that was not graded, of which an agent brought an end about itself: no answer is the worst."""
    ended = [trial.fault is not None and trial.fault.by_agent for trial in (pair.baseline, pair.treatment)]
    if not any(ended) or None not in (pair.baseline.passed, pair.treatment.passed):
        return None
    score = 0.0 if all(ended) else MUCH if ended[0] else -MUCH
    told = [side for side, by_agent in zip(("baseline", "treatment"), ended, strict=True) if by_agent]
    return Outcome(pair, score, f"no answer, by the agent's own doing: {' and '.join(told)}")


def _verdict(trial: TrialResult) -> str:
    said = "passed" if trial.passed else "failed"
    return said if trial.score is None else f"{said} ({trial.score:.2f})"


def counted(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Those that count."""
    return [one for one in outcomes if one.errored is None]
