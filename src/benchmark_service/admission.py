"""How much grading one process takes on at a time."""

from __future__ import annotations

import asyncio
import math
import os
from collections import Counter
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager

__all__ = ["Admission", "Busy", "Duplicate", "from_environment"]


class Busy(Exception):
    """No room now; `retry_after` seconds later there may be."""

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Duplicate(Exception):
    """The same work is already in flight."""


class Admission:
    """Runs a bounded number of gradings, lets a bounded number wait a bounded time, refuses the rest."""

    def __init__(
        self, max_concurrency: int, max_queued: int, max_per_tenant: int, queue_timeout_s: float
    ) -> None:
        self._max_admitted = max_concurrency + max_queued
        self._max_per_tenant = max_per_tenant
        self._queue_timeout_s = queue_timeout_s
        self._slots = asyncio.Semaphore(max_concurrency)
        self._admitted: Counter[str] = Counter()
        self._keys: set[tuple[str, Hashable]] = set()

    @asynccontextmanager
    async def admit(self, tenant: str, key: Hashable | None = None) -> AsyncIterator[None]:
        """Hold a place while grading; raises Busy, or Duplicate when `key` is in flight for the tenant."""
        slot = (tenant, key)
        if key is not None and slot in self._keys:
            raise Duplicate("This evaluation is already in progress.")
        if self._admitted[tenant] >= self._max_per_tenant:
            raise self._busy("Too many evaluations of this tenant are in progress.")
        if self._admitted.total() >= self._max_admitted:
            raise self._busy("The service is at its grading capacity.")
        self._admitted[tenant] += 1
        self._keys.add(slot)
        try:
            async with self._running():
                yield
        finally:
            self._keys.discard(slot)
            self._admitted[tenant] -= 1
            if not self._admitted[tenant]:
                del self._admitted[tenant]

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._queue_timeout_s):
                await self._slots.acquire()
        except TimeoutError:
            raise self._busy("The service had no room for this grading in time.") from None
        try:
            yield
        finally:
            self._slots.release()

    def _busy(self, what: str) -> Busy:
        seconds = max(1, math.ceil(self._queue_timeout_s))
        return Busy(f"{what} Try again in {seconds} s.", seconds)


def from_environment() -> Admission:
    """An Admission as the GRADING_* variables say; a malformed one is a ValueError that names it."""
    concurrency = _whole("GRADING_MAX_CONCURRENCY", 4, least=1)
    return Admission(
        max_concurrency=concurrency,
        max_queued=_whole("GRADING_MAX_QUEUED", concurrency, least=0),
        max_per_tenant=_whole("GRADING_MAX_ADMITTED_PER_TENANT", concurrency, least=1),
        queue_timeout_s=_seconds("GRADING_QUEUE_TIMEOUT_S", 30.0),
    )


def _whole(name: str, default: int, *, least: int) -> int:
    text = os.environ.get(name, "").strip()
    try:
        value = int(text) if text else default
    except ValueError:
        value = least - 1
    if value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, not {text!r}")
    return value


def _seconds(name: str, default: float) -> float:
    text = os.environ.get(name, "").strip()
    try:
        value = float(text) if text else default
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ValueError(f"{name} must be a number of seconds above 0, not {text!r}")
    return value
