"""Attempts at a task, repeated when its sandbox was lost under a trial."""

from __future__ import annotations

import asyncio
import inspect
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from sandboxes.errors import SandboxNotFoundError
from sandboxes.retry import AsyncSleep

if TYPE_CHECKING:
    from benchmark_service.schemas import RetrieveTaskResponse

Result = TypeVar("Result")


@dataclass
class _Recovery:
    """What the attempts of one task share."""

    load_task: Callable[[], Awaitable[RetrieveTaskResponse]]
    default_max_attempts: int
    task: RetrieveTaskResponse | None = None
    outage: tuple[str, float] | None = None

    async def retrieve_task(self) -> RetrieveTaskResponse:
        if self.task is None:
            self.task = await self.load_task()
        return self.task

    @property
    def losses_allowed(self) -> int:
        policy = self.task.sandbox_recovery if self.task else None
        return policy.max_sandbox_attempts if policy else 1

    @property
    def max_attempts(self) -> int:
        return max(self.default_max_attempts, self.losses_allowed)


@dataclass(frozen=True)
class SandboxRecoveryAttempt:
    """One try of a task in a sandbox of its own."""

    number: int
    outage_id: str | None
    """Names the loss this attempt makes up for; the same until a replacement was set up."""
    outage_started_epoch: float | None
    _shared: _Recovery = field(repr=False, compare=False)

    @property
    def max_attempts(self) -> int:
        """How many attempts there may be, as far as the task is known."""
        return self._shared.max_attempts

    @property
    def sandbox_loss_retry_available(self) -> bool:
        """Whether losing the sandbox now would be followed by another attempt."""
        return self.number < self._shared.losses_allowed

    @property
    def environment(self) -> dict[str, str]:
        """Variables that tell the replacement sandbox what it replaces; none on the first attempt."""
        if self.outage_id is None:
            return {}
        return {
            "VALKYRIE_SANDBOX_OUTAGE_ID": self.outage_id,
            "VALKYRIE_SANDBOX_OUTAGE_STARTED_EPOCH": str(self.outage_started_epoch),
        }

    async def retrieve_task(self) -> RetrieveTaskResponse:
        """The task, asked for once however many attempts there are."""
        return await self._shared.retrieve_task()

    def mark_replacement_ready(self) -> None:
        """The replacement is set up: a further loss is a new outage."""
        self._shared.outage = None


@dataclass(frozen=True)
class RecoveryPlan:
    """What counts as worth another attempt, and who hears of it."""

    retryable: tuple[type[Exception], ...] = ()
    default_max_attempts: int = 1
    retry_delay_s: float = 2.0
    on_retry: Callable[[SandboxRecoveryAttempt, Exception], Awaitable[None] | None] | None = None
    pause: AsyncSleep = asyncio.sleep


async def run_attempts(
    name: str,
    operation: Callable[[SandboxRecoveryAttempt], Awaitable[Result]],
    load_task: Callable[[], Awaitable[RetrieveTaskResponse]],
    plan: RecoveryPlan,
) -> Result:
    """Run `operation` until it ends, again after a lost sandbox where the task's policy allows it."""
    shared = _Recovery(load_task, plan.default_max_attempts)
    worth_a_look: tuple[type[Exception], ...] = (SandboxNotFoundError, *plan.retryable)
    number = 1
    while True:
        outage_id, started = shared.outage or (None, None)
        attempt = SandboxRecoveryAttempt(number, outage_id, started, shared)
        try:
            return await operation(attempt)
        except worth_a_look as error:
            if not await _another(attempt, error, shared, plan):
                raise
            if isinstance(error, SandboxNotFoundError) and shared.outage is None:
                shared.outage = (f"{name}:{number}:{uuid.uuid4().hex}", time.time())
            if plan.on_retry is not None:
                told = plan.on_retry(attempt, error)
                if inspect.isawaitable(told):
                    await told
        await plan.pause(plan.retry_delay_s)
        number += 1


async def _another(
    attempt: SandboxRecoveryAttempt, error: Exception, shared: _Recovery, plan: RecoveryPlan
) -> bool:
    if isinstance(error, SandboxNotFoundError):
        await shared.retrieve_task()
        if attempt.sandbox_loss_retry_available:
            return True
    return isinstance(error, plan.retryable) and attempt.number < shared.max_attempts
