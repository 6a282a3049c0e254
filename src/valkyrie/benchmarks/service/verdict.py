"""A service's result, which may be any JSON, as a grade, and back again for its final score."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from typing import Any

from benchmark_service.shape import TOO_LARGE, is_overgrown
from valkyrie.errors import GraderError
from valkyrie.nouns import Grade, Json

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
    """What the service gave."""
    return grade.result[_ALONE] if set(grade.result) == {_ALONE} else grade.result


def _boxed(result: Any) -> Json:
    """Grades hold objects; anything else, and an object that looks like a box, is put in one."""
    plain = isinstance(result, dict) and set(result) != {_ALONE}
    return result if plain else {_ALONE: result}


def check_data(what: str, data: Any, most_bytes: int = RESULT_LIMIT) -> None:
    """GraderError unless it is JSON that can be walked through, masked and stored."""
    if is_overgrown(data):
        raise _unusable(f"{what} is {TOO_LARGE}")
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
