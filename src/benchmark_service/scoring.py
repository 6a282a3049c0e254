"""What `calculate_final_score` is given and what is made of its answer, the same for every caller."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from benchmark_service.failures import ServiceFault
from benchmark_service.schemas import FinalScoreResult
from benchmark_service.v1_schemas import ENVELOPE_KEYS, V1Status

_STATUSES = frozenset(V1Status)


def is_envelope(value: object) -> bool:
    """Whether a result is wrapped as `{task_id, status, result, error}`.

    Strict, because a benchmark's own result may well own a `status` key: no other key, a task id, a known
    status, and a result or an error.
    """
    if not isinstance(value, Mapping):
        return False
    keys = set(value)
    return (
        keys <= ENVELOPE_KEYS
        and {"task_id", "status"} <= keys
        and bool(keys & {"result", "error"})
        and isinstance(value["status"], str)
        and value["status"] in _STATUSES
    )


def unwrap(value: Any) -> Any:
    """The raw result; None for an envelope whose task was not evaluated."""
    if not is_envelope(value):
        return value
    return value.get("result") if value["status"] == V1Status.EVALUATED else None


def unwrap_results(results: Mapping[str, Any]) -> dict[str, Any]:
    """Every task's raw result."""
    return {task_id: unwrap(value) for task_id, value in results.items()}


def checked_score(answer: Any) -> FinalScoreResult:
    """What `calculate_final_score` returned, or a ServiceFault that says what is wrong with it."""
    try:
        result = answer if isinstance(answer, FinalScoreResult) else FinalScoreResult.model_validate(answer)
    except ValidationError as error:
        raise ServiceFault(
            f"calculate_final_score must return a FinalScoreResult, not {type(answer).__name__}"
        ) from error
    if not math.isfinite(result.score):
        raise ServiceFault(f"calculate_final_score returned the score {result.score}, which is not a number")
    return result


def check_outcomes(results: Mapping[str, Any], outcomes: Mapping[str, Any]) -> None:
    """Outcomes speak of exactly the tasks the results do, and call evaluated what has a result."""
    if set(results) != set(outcomes):
        odd = sorted(set(results) ^ set(outcomes))[:3]
        raise ValueError(f"task_outcomes and evaluation_results differ in their tasks: {', '.join(odd)}")
    for task_id, outcome in outcomes.items():
        kind = outcome.get("kind") if isinstance(outcome, Mapping) else None
        if kind not in ("evaluated", "error", "unavailable"):
            raise ValueError(f"task_outcomes: {task_id} needs a kind: evaluated, error or unavailable")
        if (kind == "evaluated") != (results[task_id] is not None):
            raise ValueError(f"task_outcomes: {task_id} is {kind}, which its result contradicts")
