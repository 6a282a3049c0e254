"""Grading one `/v1` submission: the right hook of the service, bounded in time, down to one result."""

from __future__ import annotations

import asyncio
import inspect
import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmark_service.encoding import to_json
from benchmark_service.failures import ServiceFault
from benchmark_service.schemas import (
    EvalMode,
    EvaluateResponseRequest,
    StreamErrorChunk,
    StreamResultChunk,
)

if TYPE_CHECKING:
    from benchmark_service.base import BenchmarkService

__all__ = [
    "ARTIFACT_PATH",
    "ArtifactGradingSubmission",
    "GradingFailed",
    "GradingJob",
    "GradingSubmission",
    "TextGradingSubmission",
    "grade",
]

ARTIFACT_PATH = "/tmp/submission-artifact"
"""Where an uploaded artifact lies in the sandbox it is graded in."""
GRADING_TIMEOUT_S = 1800.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GradingSubmission:
    """What `prepare_grading_sandbox` is given: one submission to one task."""

    run_id: str
    task_id: str
    schema_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TextGradingSubmission(GradingSubmission):
    """A submission that is text."""

    data: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactGradingSubmission(GradingSubmission):
    """A submission that was uploaded; it already lies in the sandbox."""

    path: str = ARTIFACT_PATH
    size: int


class GradingFailed(Exception):
    """The service graded, but did not come to a usable result; the message is fit for the caller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GradingJob:
    """One submission with all that its grading needs to know."""

    tenant: str
    dataset: str | None
    run_id: str
    task_id: str
    schema_id: str
    content: str | bytes
    """Text, or an artifact's bytes."""

    def submission(self) -> GradingSubmission:
        """The service's view of it."""
        known = {"run_id": self.run_id, "task_id": self.task_id, "schema_id": self.schema_id}
        if isinstance(self.content, str):
            return TextGradingSubmission(**known, data=self.content)
        return ArtifactGradingSubmission(**known, size=len(self.content))


async def grade(service: BenchmarkService, job: GradingJob) -> Any:
    """The raw result of grading, as plain JSON data; raises when there is none."""
    async with AsyncExitStack() as held:
        limit = GRADING_TIMEOUT_S
        if service.eval_mode == EvalMode.SANDBOX:
            from benchmark_service.grading_sandbox import open_grading_sandbox

            place = await held.enter_async_context(open_grading_sandbox(service, job))
            chunks: Any = service.evaluate_instance(job.task_id, place.sandbox, dataset=job.dataset)
            limit = place.timeout_s
        else:
            chunks = await held.enter_async_context(_without_sandbox(service, job))
        result = await _within(limit, chunks)
    return _plain(result)


@asynccontextmanager
async def _without_sandbox(service: BenchmarkService, job: GradingJob) -> AsyncIterator[Any]:
    if isinstance(job.content, str):
        request = EvaluateResponseRequest(task_id=job.task_id, response=job.content, dataset=job.dataset)
        yield service.stream_evaluate_response(request, dataset=job.dataset)
    elif service.eval_mode == EvalMode.ARTIFACT:
        yield service.evaluate_artifact(
            job.run_id, job.task_id, job.schema_id, job.content, dataset=job.dataset
        )
    else:
        with tempfile.TemporaryDirectory(prefix="submission-") as folder:
            path = Path(folder) / "artifact"
            await asyncio.to_thread(path.write_bytes, job.content)
            yield service.evaluate_materialized_artifact(
                tenant=job.tenant,
                run_id=job.run_id,
                task_id=job.task_id,
                schema_id=job.schema_id,
                artifact=path,
                dataset=job.dataset,
            )


async def _within(seconds: float, outcome: Any) -> Any:
    try:
        async with asyncio.timeout(seconds) as deadline:
            return await _result_of(outcome)
    except TimeoutError:
        if not deadline.expired():
            raise
        raise GradingFailed(f"grading did not end within {seconds:g} s") from None


async def _result_of(outcome: Any) -> Any:
    """The result at the end of a stream of chunks, or what a plain coroutine returns."""
    if not hasattr(outcome, "__aiter__"):
        value = await outcome if inspect.isawaitable(outcome) else outcome
        return value.data if isinstance(value, StreamResultChunk) else value
    last_error = ""
    try:
        async for chunk in outcome:
            if isinstance(chunk, StreamResultChunk):
                return chunk.data
            if isinstance(chunk, StreamErrorChunk):
                last_error = chunk.data
    finally:
        # Closed here and now: what the generator holds must be let go before the sandbox is.
        if hasattr(outcome, "aclose"):
            await outcome.aclose()
    raise GradingFailed(last_error or "the service ended grading without a result")


def _plain(result: Any) -> Any:
    try:
        return json.loads(to_json(result))
    except ServiceFault as error:
        raise GradingFailed(str(error)) from error
