"""Bound how much grading one process takes on, and how often a tenant may ask for an evaluation."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
from collections import Counter
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

from benchmark_service.allowlist import EvaluationQuota
from benchmark_service.aws import aws_client, run_blocking


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


# How often a tenant may ask for an evaluation: one conditional counter per calendar window in DynamoDB.

log = logging.getLogger(__name__)

KEY_ATTRIBUTE = "quota_key"
"""Partition key of the table, a string."""


class QuotaReached(Exception):
    """The tenant has used up this window; the message says when the next one starts."""

    def __init__(self, limit: int, period: str, retry_at: datetime) -> None:
        super().__init__(
            f"Evaluation request limit of {limit} per {period} reached; try again after {iso_z(retry_at)}."
        )
        self.limit = limit
        self.period = period
        self.retry_at = retry_at

    def retry_after(self, now: datetime | None = None) -> int:
        """Whole seconds until the next window, at least one: the `Retry-After` header."""
        return max(1, math.ceil((self.retry_at - (now or datetime.now(UTC))).total_seconds()))


class QuotaUnavailable(Exception):
    """A quota is configured but cannot be counted now, so nothing is evaluated."""


def iso_z(moment: datetime) -> str:
    """A UTC moment as `2026-01-31T00:00:00Z`."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def quota_window(period: str, now: datetime) -> tuple[datetime, datetime]:
    """Start and end of the UTC calendar window `now` lies in; weeks start on Monday."""
    day = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    match period:
        case "day":
            return day, day + timedelta(days=1)
        case "week":
            monday = day - timedelta(days=day.weekday())
            return monday, monday + timedelta(days=7)
        case "month":
            first = day.replace(day=1)
            return first, (first + timedelta(days=31)).replace(day=1)
        case "year":
            first = day.replace(month=1, day=1)
            return first, first.replace(year=first.year + 1)
    raise ValueError(f"unknown quota period {period!r}: day, week, month or year")


def quota_key(service: str, tenant: str, period: str, start: datetime) -> str:
    """Name of one window's counter."""
    return json.dumps(
        [service, tenant, "evaluation", period, start.strftime("%Y-%m-%d")], separators=(",", ":")
    )


async def consume_window(
    service: str, tenant: str, quota: EvaluationQuota, now: datetime | None = None
) -> None:
    """Count one evaluation, or raise QuotaReached or QuotaUnavailable. Nothing is ever counted twice."""
    table = os.environ.get("EVALUATION_QUOTA_TABLE_NAME", "").strip()
    if not table:
        log.error("tenant %s has an evaluation quota, but EVALUATION_QUOTA_TABLE_NAME is not set", tenant)
        raise QuotaUnavailable("Evaluation quota is not configured on this service.")
    start, end = quota_window(quota.period, now or datetime.now(UTC))
    try:
        counted = await run_blocking(
            _increment, table, quota_key(service, tenant, quota.period, start), quota.limit, end
        )
    except Exception as error:  # noqa: BLE001 - whatever the SDK or the table does, it must close the door
        log.error(
            "evaluation quota cannot be counted in table %s: %s: %s", table, type(error).__name__, error
        )
        raise QuotaUnavailable("Evaluation quota cannot be checked now; try again later.") from None
    if not counted:
        raise QuotaReached(quota.limit, quota.period, end)


def _increment(table: str, key: str, limit: int, end: datetime) -> bool:
    """One conditional write; False when the counter is at its limit."""
    client = aws_client("dynamodb")
    try:
        client.update_item(
            TableName=table,
            Key={KEY_ATTRIBUTE: {"S": key}},
            UpdateExpression="ADD used :one SET expires_at = :end",
            ConditionExpression="attribute_not_exists(used) OR used < :limit",
            ExpressionAttributeValues={
                ":one": {"N": "1"},
                ":limit": {"N": str(limit)},
                ":end": {"N": str(int(end.timestamp()))},
            },
        )
    except client.exceptions.ConditionalCheckFailedException:
        return False
    return True


__all__ = [
    "Admission",
    "Busy",
    "Duplicate",
    "QuotaReached",
    "QuotaUnavailable",
    "consume_window",
    "from_environment",
    "quota_window",
]
