"""The tool a judge calls to grade, and the grade read from its call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmark_runner.models.dialect import FunctionTool
from valkyrie.domain import Json
from valkyrie.grade.judges.conversation import WrongAnswerError
from valkyrie.grade.judges.scales import Scale

_MOST_WORDS = 4000


@dataclass(frozen=True, slots=True)
class Criterion:
    """One criterion of the rubric, scored."""

    text: str
    score: float
    reasoning: str


@dataclass(frozen=True, slots=True)
class JudgeGrade:
    """What a judge submitted; scores are on its scale."""

    overall: float
    reasoning: str
    criteria: Sequence[Criterion]

    def details(self, scale: Scale) -> list[Json]:
        """Criterion by criterion, as results.jsonl has it."""
        return [
            {
                "criterion": one.text,
                "score": one.score,
                "normalizedScore": scale.normal(one.score),
                "reasoning": one.reasoning,
            }
            for one in self.criteria
        ]


def grade_tool(scale: Scale) -> FunctionTool:
    """`submit_grade`."""
    number = {"type": "integer" if scale.whole else "number", "minimum": scale.low, "maximum": scale.high}
    criterion = {
        "type": "object",
        "properties": {
            "criterion": {"type": "string", "description": "The criterion, as it was given."},
            "score": {**number, "description": f"The score, {scale.words}."},
            "reasoning": {"type": "string", "description": "Why, in one or two sentences."},
        },
        "required": ["criterion", "score", "reasoning"],
    }
    schema: Json = {
        "type": "object",
        "properties": {
            "rubric_scores": {
                "type": "array",
                "items": criterion,
                "description": "One entry for each criterion of the rubric, in its order; empty without one.",
            },
            "overall_reasoning": {"type": "string", "description": "Why the overall score is what it is."},
            "overall_score": {**number, "description": f"The score of the whole, {scale.words}."},
        },
        "required": ["rubric_scores", "overall_reasoning", "overall_score"],
    }
    return FunctionTool(
        "submit_grade", "Submit your grade. Call it exactly once, when you have decided.", schema
    )


def read_grade(given: Json, scale: Scale, rubric: Sequence[str], names: Sequence[str] = ()) -> JudgeGrade:
    """The grade of a call. Raises WrongAnswerError for scores off the scale and criteria left out.

    `names`: each of them is scored once, by that name.
    """
    overall = scale.read(given.get("overall_score"))
    if overall is None:
        raise WrongAnswerError(f"overall_score must be {scale.words}.")
    listed = given.get("rubric_scores")
    if listed is None and not rubric:
        listed = []
    if not isinstance(listed, list):
        raise WrongAnswerError("rubric_scores must be a list.")
    criteria = [_criterion(entry, scale) for entry in listed]
    if len(criteria) < len(rubric):
        raise WrongAnswerError(
            f"rubric_scores must have an entry for each of {len(rubric)} criteria; it has {len(criteria)}."
        )
    scored = [one.text for one in criteria]
    if wrong := [name for name in names if scored.count(name) != 1]:
        raise WrongAnswerError(f"rubric_scores must have exactly one entry whose criterion is {wrong[0]!r}.")
    return JudgeGrade(overall, words(given.get("overall_reasoning")), criteria)


def _criterion(entry: Any, scale: Scale) -> Criterion:
    score = scale.read(entry.get("score")) if isinstance(entry, dict) else None
    if score is None:
        raise WrongAnswerError(f"Each score of rubric_scores must be {scale.words}.")
    return Criterion(words(entry.get("criterion")), score, words(entry.get("reasoning")))


def words(value: Any) -> str:
    """What a judge wrote, within bounds."""
    return value[:_MOST_WORDS] if isinstance(value, str) else ""
