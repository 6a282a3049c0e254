"""What the graders of a trial say together."""

from __future__ import annotations

from collections.abc import Sequence

from valkyrie.grade.protocol import GraderResult, Verdict

_ROUNDING = 1e-9


def aggregate(results: Sequence[GraderResult]) -> float:
    """Σ(weight · score) / Σ weight over the graders that speak; 1 when none does."""
    counted = [result for result in results if result.status == "ok"]
    total = sum(result.weight for result in counted)
    if not counted:
        return 1.0
    if total <= 0:
        return sum(result.score for result in counted) / len(counted)
    return sum(result.weight * result.score for result in counted) / total


def verdict(results: Sequence[GraderResult], threshold: float | None = None) -> Verdict:
    """With a threshold: the aggregate reaches it; without: every grader passed. Skipped ones do not count.

    While `errors` of the verdict is not empty, there is none: it has not passed, and nobody failed either.
    """
    score = aggregate(results)
    if any(result.status == "error" for result in results):
        return Verdict(score, False, results)
    if threshold is not None:
        return Verdict(score, score >= threshold - _ROUNDING, results)
    return Verdict(score, all(result.passed for result in results if result.status == "ok"), results)
