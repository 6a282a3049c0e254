"""What a caller of `/v1/evaluate` reads of a grading, whatever came of it."""

from __future__ import annotations

import inspect
import logging
import os
from typing import Any

from benchmark_service.base import BenchmarkService
from benchmark_service.encoding import to_json
from benchmark_service.failures import message_of, record
from benchmark_service.grading import GradingFailed, GradingJob, grade
from benchmark_service.v1_schemas import V1EvalResponse, V1Status
from sandboxes.masker import Masker

__all__ = ["for_trial", "graded"]

log = logging.getLogger(__name__)

_SECRETS = ("DAYTONA_API_KEY", "BENCHMARK_API_KEY", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")


async def graded(service: BenchmarkService, job: GradingJob) -> V1EvalResponse:
    """What came of grading; whatever goes wrong in it is an answer, not a failed request."""
    try:
        result = await grade(service, job)
    except Exception as error:  # noqa: BLE001 - the boundary to the service's own code
        return V1EvalResponse(
            run_id=job.run_id, task_id=job.task_id, status=V1Status.ERROR, errors=[_told(error, job)]
        )
    return V1EvalResponse(run_id=job.run_id, task_id=job.task_id, status=V1Status.EVALUATED, result=result)


async def for_trial(service: BenchmarkService, answer: V1EvalResponse) -> V1EvalResponse:
    """What a trial tenant may see of an answer."""
    hidden: dict[str, Any] = {
        "evaluator_version": None,
        "result": None,
        "errors": ["error"] * len(answer.errors),
    }
    if answer.status is not V1Status.EVALUATED:
        return answer.model_copy(update=hidden)
    try:
        projected: Any = service.project_trial_result(answer.result)
        if inspect.isawaitable(projected):
            projected = await projected
        to_json(projected)
    except Exception:
        log.exception("project_trial_result failed for task %r", answer.task_id)
        return answer.model_copy(update={**hidden, "status": V1Status.ERROR, "errors": ["error"]})
    return answer.model_copy(update={**hidden, "result": projected})


def _told(error: Exception, job: GradingJob) -> str:
    """The error's message for the caller, with the id its traceback has in the log."""
    message = message_of(error) if not isinstance(error, GradingFailed) else str(error)
    message = Masker(os.environ.get(name, "") for name in _SECRETS).text(message)
    if isinstance(error, GradingFailed):
        log.warning("grading of task %r, run %r came to nothing: %r", job.task_id, job.run_id, message)
        return message
    error_id = record(error, f"grading of task {job.task_id!r}, run {job.run_id!r}")
    return f"{message} (error id {error_id})"
