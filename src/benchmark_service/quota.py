"""How often a tenant may ask for an evaluation: one conditional counter per calendar window in DynamoDB."""

from __future__ import annotations

import json
import logging
import math
import os
from datetime import UTC, datetime, timedelta

from benchmark_service.allowlist import EvaluationQuota
from benchmark_service.aws import aws_client
from benchmark_service.blocking import run_blocking

__all__ = ["QuotaReached", "QuotaUnavailable", "consume", "window"]

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


def window(period: str, now: datetime) -> tuple[datetime, datetime]:
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


async def consume(service: str, tenant: str, quota: EvaluationQuota, now: datetime | None = None) -> None:
    """Count one evaluation, or raise QuotaReached or QuotaUnavailable. Nothing is ever counted twice."""
    table = os.environ.get("EVALUATION_QUOTA_TABLE_NAME", "").strip()
    if not table:
        log.error("tenant %s has an evaluation quota, but EVALUATION_QUOTA_TABLE_NAME is not set", tenant)
        raise QuotaUnavailable("Evaluation quota is not configured on this service.")
    start, end = window(quota.period, now or datetime.now(UTC))
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
