"""Calendar windows, and what happens when a quota cannot be counted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from benchmark_service import admission, auth
from benchmark_service.allowlist import EvaluationQuota


@pytest.mark.parametrize(
    ("period", "now", "start", "end"),
    [
        ("day", "2026-03-01T23:59:59", "2026-03-01", "2026-03-02"),
        ("week", "2026-03-01T12:00:00", "2026-02-23", "2026-03-02"),
        ("week", "2026-03-02T00:00:00", "2026-03-02", "2026-03-09"),
        ("month", "2026-01-31T10:00:00", "2026-01-01", "2026-02-01"),
        ("month", "2026-12-15T10:00:00", "2026-12-01", "2027-01-01"),
        ("year", "2028-02-29T10:00:00", "2028-01-01", "2029-01-01"),
    ],
)
def test_windows(period: str, now: str, start: str, end: str) -> None:
    found = admission.quota_window(period, datetime.fromisoformat(now).replace(tzinfo=UTC))
    assert [moment.isoformat() for moment in found] == [f"{start}T00:00:00+00:00", f"{end}T00:00:00+00:00"]


def test_windows_are_utc_wherever_the_clock_is() -> None:
    late = datetime(2026, 3, 1, 20, 0, tzinfo=timezone(timedelta(hours=-8)))
    assert admission.quota_window("day", late)[0] == datetime(2026, 3, 2, tzinfo=UTC)


def test_key_and_message() -> None:
    start, end = admission.quota_window("month", datetime(2026, 1, 31, tzinfo=UTC))
    assert (
        admission.quota_key("svc", "acme", "month", start)
        == '["svc","acme","evaluation","month","2026-01-01"]'
    )
    reached = admission.QuotaReached(5, "month", end)
    assert str(reached) == (
        "Evaluation request limit of 5 per month reached; try again after 2026-02-01T00:00:00Z."
    )
    assert reached.retry_after(end - timedelta(seconds=90.2)) == 91
    assert reached.retry_after(end + timedelta(seconds=5)) == 1


async def test_a_quota_without_a_table_closes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("EVALUATION_QUOTA_TABLE_NAME", raising=False)
    with pytest.raises(admission.QuotaUnavailable):
        await admission.consume_window("svc", "acme", EvaluationQuota(limit=1, period="day"))
    assert "EVALUATION_QUOTA_TABLE_NAME" in caplog.text


async def test_only_tenants_with_a_quota_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BENCHMARK_CATALOG_API_URL", raising=False)
    monkeypatch.delenv("EVALUATION_QUOTA_TABLE_NAME", raising=False)
    limited = '{"datasets": [], "evaluation_quota": {"limit": 1, "period": "day"}}'
    listed = '{"tenants": {"free": {"datasets": []}, "limited": ' + limited + "}}"
    monkeypatch.setenv("DESCOPE_TENANT_ALLOWLIST_JSON", listed)
    monkeypatch.setenv("AUTH_REQUIRED", "true")
    await auth.consume_quota("svc", auth.LEGACY_TENANT)
    await auth.consume_quota("svc", "free")
    for name in ("limited",):
        with pytest.raises(admission.QuotaUnavailable):
            await auth.consume_quota("svc", name)
    monkeypatch.delenv("AUTH_REQUIRED")
    await auth.consume_quota("svc", "a tenant the service itself named")
