"""Read a service's grades and failures, and grade in a sandbox by a service that may go away meanwhile."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from benchmark_service.errors import (
    BenchmarkServiceConnectionError,
    BenchmarkServiceError,
    BenchmarkServiceProtocolError,
    BenchmarkServiceStreamClosedError,
    BenchmarkServiceUnauthenticatedError,
    StreamIdleError,
)
from benchmark_service.schemas import JSON_TOO_LARGE, RESUMABLE, is_overgrown
from valkyrie.benchmarks.protocol import Grading
from valkyrie.domain import Grade, Json
from valkyrie.errors import (
    BenchmarkError,
    GraderError,
    InfrastructureError,
    UsageError,
    UserError,
    ValkyrieError,
)

if TYPE_CHECKING:
    from benchmark_service.client import BenchmarkServiceClient
    from sandboxes.types import SandboxProviderConfig


SILENT = "service_silent"
_AWAY = frozenset({502, 503, 504})
_MISTAKEN = frozenset({400, 404, 409, 413, 422})


@contextmanager
def translated(name: str, *, planning: bool = False) -> Iterator[None]:
    """Let the errors of a service named `name` be ours.

    While `planning`, what the service refuses is what the user asked for.
    """
    try:
        yield
    except BenchmarkServiceError as error:
        raise _meaning(name, error, planning) from error


@contextmanager
def no_verdict() -> Iterator[None]:
    """Let what goes wrong while a service grades be a GraderError: a control then tells who broke it.

    A service that is out of reach or has no room says nothing about what it grades; one that took the request
    and then said nothing may have been made to hang by the agent's work.
    """
    try:
        yield
    except GraderError:
        raise
    except BenchmarkError as error:
        raise GraderError(str(error), cause=error.cause) from error
    except InfrastructureError as error:
        if error.cause != SILENT:
            raise
        raise GraderError(str(error), cause=SILENT) from error


def _meaning(name: str, error: BenchmarkServiceError, planning: bool) -> ValkyrieError:
    said = f"Benchmark service {name}: {error}"
    status = error.status_code
    match error:
        case BenchmarkServiceUnauthenticatedError():
            way = (
                f"`valk config auth set {name} CREDENTIAL` keeps what is sent as Authorization, `Bearer` "
                "included; -H NAME VALUE sends any other header."
            )
            return UserError(f"{said.rstrip('.')}. {way}", cause="service_unauthorized")
        case StreamIdleError():
            return InfrastructureError(said, cause=SILENT)
        case BenchmarkServiceStreamClosedError(close_code=1000):
            return BenchmarkError(said, cause="service_failed")
        case BenchmarkServiceConnectionError():
            return InfrastructureError(said, cause="service_unreachable", retry_after=error.retry_after)
        case BenchmarkServiceProtocolError():
            return BenchmarkError(said, cause="service_protocol")
    if status == 429:
        return InfrastructureError(said, cause="service_busy", retry_after=error.retry_after)
    if status in _AWAY or error.error_code == RESUMABLE:
        return InfrastructureError(said, cause="service_unreachable", retry_after=error.retry_after)
    if status == 403:
        return UserError(said, cause="service_forbidden")
    if status in _MISTAKEN:
        return UsageError(said) if planning else BenchmarkError(said, cause="service_refused")
    return BenchmarkError(said, cause="service_failed")


# A service's result, which may be any JSON, as a grade, and back again for its final score.

RESULT_LIMIT = 16 * 1024 * 1024
_VERDICTS = ("resolved", "passed", "correct", "success", "is_correct")
_SCORES = ("score", "reward")
_REASONS = ("reason", "failure_reason", "explanation", "feedback", "message", "error")
_ALONE = "result"


def grade_of(result: Any) -> Grade:
    """The result, kept whole, with what it says of passing and score where it says so plainly."""
    check_data("result", result)
    passed, score = _passed(result), _score(result)
    if passed is None and score is not None and 0.0 <= score <= 1.0:
        passed = score >= 1.0
    if score is None and passed is not None:
        score = float(passed)
    return Grade(score=score, passed=passed, result=_boxed(result), reason=_reason(result))


def _reason(result: Any) -> str | None:
    """Return why the service gave no pass, where it says so under a name that is usual for it."""
    said = [result.get(name) for name in _REASONS] if isinstance(result, dict) else []
    return next((one for one in said if isinstance(one, str) and one.strip()), None)


def result_of(grade: Grade) -> Any:
    """Return what the service gave."""
    return grade.result[_ALONE] if set(grade.result) == {_ALONE} else grade.result


def _boxed(result: Any) -> Json:
    """Grades hold objects; anything else, and an object that looks like a box, is put in one."""
    plain = isinstance(result, dict) and set(result) != {_ALONE}
    return result if plain else {_ALONE: result}


def check_data(what: str, data: Any, most_bytes: int = RESULT_LIMIT) -> None:
    """GraderError unless it is JSON that can be walked through, masked and stored."""
    if is_overgrown(data):
        raise _unusable(f"{what} is {JSON_TOO_LARGE}")
    try:
        size = len(json.dumps(data, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise _unusable(f"{what} is not JSON: {error}") from None
    if size > most_bytes:
        raise _unusable(f"{what} has {size >> 10} KiB; at most {most_bytes >> 10} are kept")


def _unusable(problem: str) -> GraderError:
    return GraderError(f"The service's {problem}.", cause="service_protocol")


def _passed(result: Any) -> bool | None:
    if isinstance(result, bool):
        return result
    found = [result[name] for name in _VERDICTS if isinstance(result, dict) and name in result]
    return next((value for value in found if isinstance(value, bool)), None)


def _score(result: Any) -> float | None:
    values = [result.get(name) for name in _SCORES] if isinstance(result, dict) else [result]
    for value in values:
        if isinstance(value, int | float) and not isinstance(value, bool):
            with suppress(OverflowError):  # a whole number may have thousands of digits
                if math.isfinite(number := float(value)):
                    return number
    return None


# Grading in a sandbox by a service that may go away meanwhile.
#
# The client goes on from saved state by itself where a service gives one. Where it gives none, the sandbox
# is still here: once the service is back, whatever it left running is killed and it grades the same sandbox
# again, which costs less than running the agent again. A service that goes away over this sandbox each time,
# and is back each time, gave no verdict on it: running the agent again is not the answer to that.

TRIES = 3
BACK_WITHIN_S = 60.0
ENDED_BY_ITSELF = 1000
STATE_LIMIT = 1024 * 1024
KEPT_FREELY = 100
KEPT_EVERY_S = 0.5


class StateKeeper:
    """Commits the states a service gives, the newest in place of the one before.

    Each is a write to the store that all runs share: of too many a service has to wait for every one.
    """

    def __init__(self, grading: Grading) -> None:
        self._grading = grading
        self._kept_at = 0.0
        self.kept = 0
        """How many were committed."""

    async def __call__(self, state: Json) -> None:
        try:
            check_data("saved state", state, STATE_LIMIT)
        except GraderError as error:
            self._grading.log("stderr", f"{error} It is not kept.\n")
            return
        if self.kept >= KEPT_FREELY:
            await asyncio.sleep(max(0.0, self._kept_at + KEPT_EVERY_S - time.monotonic()))
        await self._grading.save({"state": state})
        self._kept_at = time.monotonic()
        self.kept += 1


async def evaluate_in_sandbox(
    client: BenchmarkServiceClient, access: SandboxProviderConfig | None, grading: Grading
) -> Any:
    """The service's result for what is in the sandbox."""
    states = StateKeeper(grading)

    def tell(text: str) -> None:
        grading.log("stdout", text if text.endswith("\n") else f"{text}\n")

    for left in reversed(range(TRIES)):
        try:
            return await client.evaluate_instance(
                grading.task.id,
                grading.sandbox.id,
                sandbox_provider=access,
                on_message=tell,
                on_error=lambda text: tell(f"error: {text}"),
                on_resume_state=states,
                dataset=grading.task.metadata["dataset"],
            )
        except StreamIdleError:
            raise
        except BenchmarkServiceConnectionError as error:
            ended = getattr(error, "close_code", None) == ENDED_BY_ITSELF
            if ended or states.kept or not await _is_back(client):
                raise
            if not left:
                raise GraderError(
                    f"{error}; it went away {TRIES} times while it graded this sandbox, and is back.",
                    cause="service_failed",
                ) from error
            tell(f"{error}; it is back, and grades the sandbox again")
            await grading.sandbox.kill_all()
    raise AssertionError("the last try returns or raises")


async def _is_back(client: BenchmarkServiceClient) -> bool:
    """Return whether the service answers again before long."""
    try:
        async with asyncio.timeout(BACK_WITHIN_S):
            while True:
                try:
                    if await client.health_check():
                        return True
                except BenchmarkServiceError:
                    pass
                await asyncio.sleep(0.5)  # nothing tells us when a service comes up
    except TimeoutError:
        return False
