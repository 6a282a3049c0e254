"""Asking graders: each gets what its turn shows, and one that breaks is an error, not a fail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from sandboxes.errors import SandboxError
from valkyrie.errors import InfrastructureError, ValkyrieError
from valkyrie.grade.base import clipped
from valkyrie.grade.protocol import Given, GraderResult, Kind
from valkyrie.grade.registry import MadeGrader
from valkyrie.trajectory.turns import turn_slice

JUDGES_AT_ONCE = 4


async def grade_all(
    made: Sequence[MadeGrader], given: Given, *, only: Callable[[MadeGrader], bool] | None = None
) -> list[GraderResult]:
    """What each grader (of those `only` lets through) found, in order.

    Judges are asked side by side. A judge that cannot be reached raises JudgeError when the others are done.
    """
    asked = [one for one in made if only is None or only(one)]
    at_once = asyncio.Semaphore(JUDGES_AT_ONCE)

    async def judged(one: MadeGrader) -> GraderResult:
        async with at_once:
            return await grade_one(one, given)

    asking = {number: asyncio.ensure_future(judged(one)) for number, one in enumerate(asked) if one.is_judge}
    try:
        results = {
            number: await grade_one(one, given) for number, one in enumerate(asked) if number not in asking
        }
        answers = await asyncio.gather(*asking.values(), return_exceptions=True)
    finally:
        for task in asking.values():
            task.cancel()
    for number, answer in zip(asking, answers, strict=True):
        if isinstance(answer, BaseException):
            raise answer
        results[number] = answer
    return [results[number] for number in range(len(asked))]


async def grade_one(one: MadeGrader, given: Given) -> GraderResult:
    """What one grader found, under its name and with its weight.

    Raises only what says nothing about the grader: a judge out of reach (JudgeError), a lost sandbox.
    """
    if one.spec.turn is not None:
        part = turn_slice(given.transcript, one.spec.turn)
        if part is None:
            return _failed(one, f"the conversation did not come to turn {one.spec.turn} (counted from 0)")
        given = replace(given, transcript=part)
    try:
        found = await one.grader.grade(given)
    except (InfrastructureError, SandboxError):
        raise
    except ValkyrieError as error:
        return _error(one, str(error), error.cause)
    except Exception as error:  # noqa: BLE001 - plugins may raise anything, and a broken grader is no verdict
        return _error(one, f"{type(error).__name__}: {error}")
    own = one.name, one.spec.type, one.weight
    if (found.name, found.type, found.weight) == own:
        return found
    return replace(found, name=one.name, type=one.spec.type, weight=one.weight)


def _failed(one: MadeGrader, evidence: str) -> GraderResult:
    return GraderResult(one.name, one.spec.type, False, 0.0, evidence, weight=one.weight)


def _error(one: MadeGrader, message: str, cause: str = "grader_no_verdict") -> GraderResult:
    """Could not tell; the cause decides whether asking again may help."""
    evidence = clipped(message)
    kind: Kind = "llm" if one.is_judge else "code"
    return GraderResult(
        one.name,
        one.spec.type,
        False,
        0.0,
        evidence,
        kind=kind,
        status="error",
        weight=one.weight,
        details=[{"cause": cause}],
    )
