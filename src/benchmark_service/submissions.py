"""Grade one `/v1` submission, in a fresh sandbox where needed, down to what its caller reads."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import math
import os
import re
import secrets
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmark_service.base import BenchmarkService
from benchmark_service.context import sandbox_provider_scope
from benchmark_service.responses import ServiceFault, message_of, record_failure, to_json
from benchmark_service.schemas import (
    EvalMode,
    EvalSandboxSpec,
    EvaluateResponseRequest,
    StreamErrorChunk,
    StreamResultChunk,
)
from benchmark_service.v1_schemas import V1EvalResponse, V1Status
from sandboxes.masker import Masker
from sandboxes.streams import uninterrupted
from sandboxes.types import DaytonaProviderConfig, SandboxCreateRequest, SandboxProviderConfig

if TYPE_CHECKING:
    from sandboxes.protocol import Sandbox, SandboxProvider


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


async def grade_submission(service: BenchmarkService, job: GradingJob) -> Any:
    """The raw result of grading, as plain JSON data; raises when there is none."""
    async with AsyncExitStack() as held:
        limit = GRADING_TIMEOUT_S
        if service.eval_mode == EvalMode.SANDBOX:
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


# The fresh sandbox one submission is graded in: made, prepared, always deleted.

log = logging.getLogger(__name__)

PREPARATION_TIMEOUT_S = 600.0
TEARDOWN_TIMEOUT_S = 120.0
MAX_LABEL = 128
_SETTINGS = ("DAYTONA_API_KEY", "DAYTONA_API_URL", "DAYTONA_TARGET")


class GradingUnavailable(Exception):
    """This service is not set up to make grading sandboxes; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class GradingSandbox:
    """A prepared sandbox, and how long grading in it may take."""

    sandbox: Sandbox
    timeout_s: float


def provider_config() -> SandboxProviderConfig:
    """Return where grading sandboxes are made, from GRADING_SANDBOX_PROVIDER and the provider's own
    variables."""
    kind = os.environ.get("GRADING_SANDBOX_PROVIDER", "").strip().lower()
    if not kind:
        raise GradingUnavailable("Grading in a sandbox needs GRADING_SANDBOX_PROVIDER=daytona.")
    if kind != "daytona":
        raise GradingUnavailable(f"This version has no {kind[:40]!r} grading sandboxes; use daytona.")
    found = {name: os.environ.get(name, "").strip() for name in _SETTINGS}
    if missing := [name for name, value in found.items() if not value]:
        raise GradingUnavailable(f"Daytona grading sandboxes need {', '.join(missing)}.")
    organization = os.environ.get("DAYTONA_ORGANIZATION_ID", "").strip() or None
    return DaytonaProviderConfig(**found, DAYTONA_ORGANIZATION_ID=organization)


@asynccontextmanager
async def open_grading_sandbox(service: BenchmarkService, job: GradingJob) -> AsyncIterator[GradingSandbox]:
    """A sandbox with the submission in it, deleted at the end however that comes."""
    task = await service.retrieve_task(job.task_id, dataset=job.dataset)
    spec = task.eval_sandbox or EvalSandboxSpec()
    source = spec.source or task.source
    request = SandboxCreateRequest(
        **({"source": source} if source is not None else {}),
        resources=spec.resources or task.resources,
        name=_name(job.task_id),
        labels=_labels(service, job),
        # Should this process die, the provider ends the sandbox by itself soon after grading would have.
        auto_stop_interval=math.ceil((PREPARATION_TIMEOUT_S + spec.timeout_s) / 60) + 5,
        create_timeout=PREPARATION_TIMEOUT_S,
        network_block_all=spec.network_block_all,
    )
    provider = provider_config().create_provider()
    sandbox: Sandbox | None = None
    try:
        async with _preparing():
            sandbox = await provider.create_sandbox(request)
            await _hand_in(service, sandbox, job)
        with sandbox_provider_scope(provider):
            yield GradingSandbox(sandbox, spec.timeout_s)
    finally:
        await uninterrupted(_end(provider, sandbox))


@asynccontextmanager
async def _preparing() -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(PREPARATION_TIMEOUT_S) as deadline:
            yield
    except TimeoutError:
        if not deadline.expired():
            raise
        raise GradingFailed(f"the grading sandbox was not ready within {PREPARATION_TIMEOUT_S:g} s") from None


async def _hand_in(service: BenchmarkService, sandbox: Sandbox, job: GradingJob) -> None:
    if isinstance(job.content, bytes):
        await sandbox.upload_file(ARTIFACT_PATH, job.content)
    await service.prepare_grading_sandbox(sandbox, job.submission(), job.dataset)


async def _end(provider: SandboxProvider, sandbox: Sandbox | None) -> None:
    """Delete the sandbox and close the provider; a result is not lost because one of them will not go."""
    try:
        async with asyncio.timeout(TEARDOWN_TIMEOUT_S):
            try:
                if sandbox is not None:
                    await provider.delete_sandbox(sandbox.id)
            finally:
                await provider.close()
    except Exception:
        name = sandbox.id if sandbox is not None else "that was never made"
        log.exception("grading sandbox %s was not ended; the provider stops it when it is idle", name)


def _name(task_id: str) -> str:
    slug = re.sub(r"[^a-z0-9]+", "-", task_id.lower()).strip("-")[:40].strip("-")
    return f"grade-{slug or 'task'}-{secrets.token_hex(5)}"


def _labels(service: BenchmarkService, job: GradingJob) -> dict[str, str]:
    labels = {
        "Benchmark": os.environ.get("SERVICE_NAME", "").strip() or type(service).__name__,
        "Task": job.task_id,
        "vals-eval": "grade-instance",
        "tenant": job.tenant,
        "run-id": job.run_id,
    }
    return {name: value[:MAX_LABEL] for name, value in labels.items()}


# What a caller of `/v1/evaluate` reads of a grading, whatever came of it.

_SECRETS = ("DAYTONA_API_KEY", "BENCHMARK_API_KEY", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")


async def graded(service: BenchmarkService, job: GradingJob) -> V1EvalResponse:
    """Return what came of grading; whatever goes wrong in it is an answer, not a failed request."""
    try:
        result = await grade_submission(service, job)
    except Exception as error:  # noqa: BLE001 - the boundary to the service's own code
        return V1EvalResponse(
            run_id=job.run_id, task_id=job.task_id, status=V1Status.ERROR, errors=[_told(error, job)]
        )
    return V1EvalResponse(run_id=job.run_id, task_id=job.task_id, status=V1Status.EVALUATED, result=result)


async def for_trial(service: BenchmarkService, answer: V1EvalResponse) -> V1EvalResponse:
    """Return what a trial tenant may see of an answer."""
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
    error_id = record_failure(error, f"grading of task {job.task_id!r}, run {job.run_id!r}")
    return f"{message} (error id {error_id})"


__all__ = [
    "ARTIFACT_PATH",
    "ArtifactGradingSubmission",
    "GradingFailed",
    "GradingJob",
    "GradingSandbox",
    "GradingSubmission",
    "GradingUnavailable",
    "TextGradingSubmission",
    "for_trial",
    "grade_submission",
    "graded",
    "open_grading_sandbox",
    "provider_config",
]
