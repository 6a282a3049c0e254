"""A conversation with a judge: asked once, reminded at most twice, until it calls its tool rightly."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from benchmark_runner.models.client import DIALECTS
from benchmark_runner.models.dialect import FunctionTool, Reply, TokenUsage
from valkyrie.domain import Json
from valkyrie.errors import GraderError
from valkyrie.grade.judges.client import JudgeClient, QuestionTooLongError, shared_client
from valkyrie.grade.judges.endpoint import JudgeEndpoint
from valkyrie.grade.protocol import JUDGE_NO_VERDICT

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
    from valkyrie.prices import price

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
