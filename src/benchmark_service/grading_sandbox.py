"""The fresh sandbox one submission is graded in: made, prepared, always deleted."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import re
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmark_service.context import sandbox_provider_scope
from benchmark_service.grading import ARTIFACT_PATH, GradingFailed, GradingJob
from benchmark_service.schemas import EvalSandboxSpec
from sandboxes.configs import DaytonaProviderConfig, SandboxProviderConfig
from sandboxes.threads import uninterrupted
from sandboxes.types import SandboxCreateRequest

if TYPE_CHECKING:
    from benchmark_service.base import BenchmarkService
    from sandboxes.protocol import Sandbox, SandboxProvider

__all__ = ["GradingSandbox", "GradingUnavailable", "open_grading_sandbox", "provider_config"]

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
    """Where grading sandboxes are made, from GRADING_SANDBOX_PROVIDER and the provider's own variables."""
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
