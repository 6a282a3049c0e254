"""A conversation with a judge: asked once, reminded at most twice, until it calls its tool rightly."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from valkyrie.errors import GraderError
from valkyrie.grade.judges.speaking import Answer, Tokens, Tool, dialect_of
from valkyrie.grade.protocol import JUDGE_NO_VERDICT
from valkyrie.nouns import Json

if TYPE_CHECKING:
    from valkyrie.grade.judges.client import JudgeClient
    from valkyrie.grade.judges.endpoint import Endpoint

REMINDERS = 2
Read = TypeVar("Read")


class WrongAnswerError(ValueError):
    """A judge called its tool with something that cannot be used; the message is what it is told."""


@dataclass(frozen=True, slots=True)
class Question(Generic[Read]):
    """What a judge is asked, and how its answer is read."""

    system: str
    text: str
    tool: Tool
    read: Callable[[Json], Read]
    """Raises WrongAnswerError."""


@dataclass(frozen=True, slots=True)
class Answered(Generic[Read]):
    """What came of it."""

    value: Read
    usage: Json


async def converse(client: JudgeClient, endpoint: Endpoint, question: Question[Read]) -> Answered[Read]:
    """Ask until the tool is called rightly. GraderError (`judge_no_verdict`) when reminders are in vain."""
    dialect, tool = dialect_of(endpoint), question.tool
    messages: list[Json] = [{"role": "user", "content": question.text}]
    tokens = Tokens()
    for asked in range(1, REMINDERS + 2):
        answer = await client.ask(endpoint, question.system, messages, tool)
        tokens += answer.tokens
        try:
            value = question.read(_only_call(answer, tool))
        except WrongAnswerError as error:
            messages += dialect.reminder(answer, f"{error} Call {tool.name} exactly once, now.")
            wrong = str(error)
        else:
            # The first look-up of a price reads the whole price list.
            usage = await asyncio.to_thread(usage_of, answer.model or endpoint.model, tokens, asked)
            return Answered(value, usage)
    raise GraderError(
        f"Judge {endpoint.model} gave no verdict after {REMINDERS} reminders: {wrong}",
        cause=JUDGE_NO_VERDICT,
    )


def _only_call(answer: Answer, tool: Tool) -> Json:
    if not answer.calls:
        raise WrongAnswerError(f"You did not call {tool.name}.")
    if any(call.name != tool.name for call in answer.calls):
        raise WrongAnswerError(f"There is no other tool than {tool.name}.")
    if len(answer.calls) > 1:
        raise WrongAnswerError(f"You called {tool.name} {len(answer.calls)} times.")
    if answer.calls[0].arguments is None:
        raise WrongAnswerError(f"The arguments of {tool.name} were no JSON object.")
    return answer.calls[0].arguments


def usage_of(model: str, tokens: Tokens, requests: int) -> Json:
    """Tokens and cost as results.jsonl has them; no cost where no price is published."""
    from valkyrie.prices import price

    priced = price(model, input_tokens=tokens.input, output_tokens=tokens.output, cached_tokens=tokens.cached)
    usage: Json = {
        "model": model,
        "inputTokens": tokens.input,
        "outputTokens": tokens.output,
        "cachedInputTokens": tokens.cached,
        "requests": requests,
    }
    return usage | ({"cost": priced[0], "costSource": priced[1]} if priced else {})


def summed(usages: list[Json]) -> Json | None:
    """Several usages as one; None where there is none. Costs add up as far as they are known."""
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
