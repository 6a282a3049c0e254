"""The comparison itself."""

from __future__ import annotations

from valkyrie.evals.comparing.judging import JudgePlan, judge_pairs
from valkyrie.evals.comparing.matching import match
from valkyrie.evals.comparing.numbers import Numbers
from valkyrie.evals.comparing.outcomes import by_verdict
from valkyrie.evals.comparing.record import FolderComparison
from valkyrie.evals.comparing.sides import ResultSide


async def compare_folders(
    baseline: ResultSide, treatment: ResultSide, plan: JudgePlan | None = None
) -> FolderComparison:
    """Both sides, pair by pair; judged where there is a plan for it."""
    matched = match(baseline, treatment)
    if plan is None:
        outcomes = [by_verdict(pair) for pair in matched.pairs]
        return FolderComparison(baseline, treatment, matched, Numbers(outcomes))
    from valkyrie.grade.judges.conversation import summed

    judged = await judge_pairs(matched.pairs, plan, baseline, treatment)
    return FolderComparison(
        baseline, treatment, matched, Numbers(judged.outcomes), usage=summed(judged.usages)
    )
