"""Asking graders: each gets what its turn shows, and one that breaks is an error, not a fail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sandboxes.errors import SandboxError
from valkyrie.errors import InfrastructureError, ValkyrieError
from valkyrie.grade.base import clipped
from valkyrie.grade.protocol import Given, GraderResult, Kind
from valkyrie.grade.registry import MadeGrader
from valkyrie.trajectory.turns import turn_slice

JUDGES_AT_ONCE = 4
SCORING_TIMEOUT = "scoring_timeout"
"""Of a grader that was not done when the time of all of them was over."""


@dataclass(frozen=True, slots=True)
class GradingTime:
    """The time that all graders of a trial have together."""

    seconds: float
    until: float
    """By the clock of the loop."""

    @classmethod
    def from_now(cls, seconds: float | None) -> GradingTime | None:
        """It begins; None where there is no limit."""
        return cls(seconds, asyncio.get_running_loop().time() + seconds) if seconds else None


async def grade_all(
    made: Sequence[MadeGrader],
    given: Given,
    *,
    only: Callable[[MadeGrader], bool] | None = None,
    time: GradingTime | None = None,
) -> list[GraderResult]:
    """What each grader (of those `only` lets through) found, in order.

    Judges are asked side by side. A judge that cannot be reached raises JudgeError when the others are done.
    One that is not done in `time` could not tell; what the others said stays.
    """
    asked = [one for one in made if only is None or only(one)]
    at_once = asyncio.Semaphore(JUDGES_AT_ONCE)

    async def judged(one: MadeGrader) -> GraderResult:
        async with at_once:
            return await _in_time(one, given, time)

    asking = {number: asyncio.ensure_future(judged(one)) for number, one in enumerate(asked) if one.is_judge}
    try:
        results = {
            number: await _in_time(one, given, time)
            for number, one in enumerate(asked)
            if number not in asking
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


async def _in_time(one: MadeGrader, given: Given, time: GradingTime | None) -> GraderResult:
    try:
        async with asyncio.timeout_at(time.until if time else None) as scope:
            return await grade_one(one, given)
    except TimeoutError:
        if time is None or not scope.expired():
            raise
        message = f"not done when the time of all graders was over (`scoring.timeout`: {time.seconds:g} s)"
        return _error(one, message, SCORING_TIMEOUT)


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
