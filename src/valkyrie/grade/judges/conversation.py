"""Ask a judge until it gives a verdict that can be read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from benchmark_runner.models.client import DIALECTS
from benchmark_runner.models.dialect import FunctionTool, Reply, TokenUsage
from valkyrie.domain import Json
from valkyrie.errors import GraderError
from valkyrie.grade.judges.client import JudgeClient, JudgeEndpoint, QuestionTooLongError, shared_client
from valkyrie.grade.judges.config import Scale
from valkyrie.grade.protocol import JUDGE_NO_VERDICT
from valkyrie.prices import price

# A conversation with a judge: asked once, reminded at most twice, until it calls its tool rightly.

REMINDERS = 2
SHARES = (1.0, 0.35, 0.1)
"""How much of the evidence is shown: less, each time a model says that it is too much."""
Read = TypeVar("Read")


class WrongAnswerError(ValueError):
    """A judge called its tool with something that cannot be used; the message is what it is told."""


@dataclass(frozen=True, slots=True)
class JudgeQuestion(Generic[Read]):
    """What a judge is asked, and how its answer is read."""

    system: str
    text: str
    tool: FunctionTool
    read: Callable[[Json], Read]
    """Raises WrongAnswerError."""


@dataclass(frozen=True, slots=True)
class Answered(Generic[Read]):
    """What came of it."""

    value: Read
    usage: Json


async def ask_judge(
    endpoint: JudgeEndpoint, question: Callable[[float], JudgeQuestion[Read]]
) -> Answered[Read]:
    """Ask the question with all evidence, then with smaller shares of it while it is too long."""
    async with shared_client() as client:
        for share in SHARES:
            try:
                return await converse(client, endpoint, question(share))
            except QuestionTooLongError as error:
                too_long = error
    raise too_long


async def converse(
    client: JudgeClient, endpoint: JudgeEndpoint, question: JudgeQuestion[Read]
) -> Answered[Read]:
    """Ask until the tool is called rightly. GraderError (`judge_no_verdict`) when reminders are in vain."""
    dialect, tool = DIALECTS[endpoint.api], question.tool
    messages: list[Json] = [
        {"role": "system", "content": question.system},
        {"role": "user", "content": question.text},
    ]
    tokens = TokenUsage()
    for asked in range(1, REMINDERS + 2):
        reply = await client.ask(endpoint, messages, tool)
        tokens += reply.usage
        try:
            value = question.read(_only_call(reply, tool))
        except WrongAnswerError as error:
            messages += dialect.follow_up(reply, f"{error} Call {tool.name} exactly once, now.")
            wrong = str(error)
        else:
            # The first look-up of a price reads the whole price list.
            usage = await asyncio.to_thread(usage_of, reply.model or endpoint.model, tokens, asked)
            return Answered(value, usage)
    raise GraderError(
        f"Judge {endpoint.model} gave no verdict after {REMINDERS} reminders: {wrong}",
        cause=JUDGE_NO_VERDICT,
    )


def _only_call(reply: Reply, tool: FunctionTool) -> Json:
    if not reply.calls:
        raise WrongAnswerError(f"You did not call {tool.name}.")
    if any(call.name != tool.name for call in reply.calls):
        raise WrongAnswerError(f"There is no other tool than {tool.name}.")
    if len(reply.calls) > 1:
        raise WrongAnswerError(f"You called {tool.name} {len(reply.calls)} times.")
    if reply.calls[0].arguments is None:
        raise WrongAnswerError(f"The arguments of {tool.name} were no JSON object.")
    return reply.calls[0].arguments


def usage_of(model: str, tokens: TokenUsage, requests: int) -> Json:
    """Return tokens and cost as results.jsonl has them; no cost where no price is published."""
    priced = price(
        model,
        input_tokens=tokens.input_tokens,
        output_tokens=tokens.output_tokens,
        cached_tokens=tokens.cached_tokens,
    )
    usage: Json = {
        "model": model,
        "inputTokens": tokens.input_tokens,
        "outputTokens": tokens.output_tokens,
        "cachedInputTokens": tokens.cached_tokens,
        "requests": requests,
    }
    return usage | ({"cost": priced[0], "costSource": priced[1]} if priced else {})


def summed(usages: list[Json]) -> Json | None:
    """Return several usages as one; None where there is none. Costs add up as far as they are known."""
    if not usages:
        return None
    models = list(dict.fromkeys(str(usage["model"]) for usage in usages))
    counts = ("inputTokens", "outputTokens", "cachedInputTokens", "requests")
    total: Json = {"model": ", ".join(models), **{key: sum(usage[key] for usage in usages) for key in counts}}
    costs = [usage["cost"] for usage in usages if "cost" in usage]
    if costs:
        total["cost"] = sum(costs)
        total["costSource"] = next(usage["costSource"] for usage in usages if "cost" in usage)
    return total


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
    """Return what a judge wrote, within bounds."""
    return value[:_MOST_WORDS] if isinstance(value, str) else ""
