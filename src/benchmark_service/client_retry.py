"""When a client tries again: pauses between attempts, and sandboxes that were lost under a trial."""

from __future__ import annotations

import asyncio
import inspect
import random
import re
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, TypeVar

from benchmark_service.retry_after import parse_retry_after_seconds
from sandboxes.errors import SandboxNotFoundError

if TYPE_CHECKING:
    from benchmark_service.schemas import RetrieveTaskResponse

Pause = Callable[[float], Awaitable[None]]
Result = TypeVar("Result")

_ISO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)")


@dataclass(frozen=True)
class Backoff:
    """Exponential pauses with full jitter; a service's own Retry-After goes before them."""

    attempts: int = 5
    base_s: float = 1.0
    max_wait_s: float = 60.0
    pause: Pause = asyncio.sleep
    jitter: Callable[[], float] = random.random
    """A number in [0, 1)."""

    async def wait(self, failed: int, retry_after: float | None = None) -> None:
        """Pause after the `failed`-th attempt (from 1)."""
        if retry_after is None:
            seconds = self.jitter() * self.base_s * 2 ** (failed - 1)
        else:
            # Many clients hear the same number at once: they come back a little apart, never earlier.
            seconds = retry_after + self.jitter() * self.base_s
        await self.pause(min(seconds, self.max_wait_s))


def parse_retry_after(value: str | None, now: Callable[[], float] = time.time) -> float | None:
    """Seconds of a Retry-After header, given as a number or an HTTP date; None when it is neither."""
    seconds = parse_retry_after_seconds(value)
    if seconds is not None:
        return seconds
    try:
        return _seconds_until(parsedate_to_datetime(value or ""), now)
    except ValueError:
        return None


def retry_after_in(reason: str, now: Callable[[], float] = time.time) -> float | None:
    """Seconds until the ISO time a closing reason names ("... retry after 2031-01-01T00:00:00Z.")."""
    found = _ISO_TIME.search(reason)
    try:
        return _seconds_until(datetime.fromisoformat(found[0]), now) if found else None
    except ValueError:
        return None


def _seconds_until(moment: datetime, now: Callable[[], float]) -> float:
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(0.0, aware.timestamp() - now())


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
    pause: Pause = asyncio.sleep


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
