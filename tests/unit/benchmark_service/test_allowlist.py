"""The local list: where it comes from and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmark_service.allowlist import load_allowlist

GOOD = """
tenants:
  acme:
    datasets: [default, hard]
    evaluation_quota: {limit: 10, period: week}
  tiny:
    datasets: []
    trial_mode: true
"""


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DESCOPE_TENANT_ALLOWLIST_JSON", raising=False)
    monkeypatch.delenv("DESCOPE_ALLOWLIST_PATH", raising=False)


def test_no_source_lists_nobody() -> None:
    assert load_allowlist().tenants == {}


def test_yaml(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "list.yaml").write_text(GOOD)
    monkeypatch.setenv("DESCOPE_ALLOWLIST_PATH", str(tmp_path / "list.yaml"))
    tenants = load_allowlist().tenants
    assert tenants["acme"].allows(None)
    assert tenants["acme"].allows("hard")
    assert not tenants["tiny"].allows("hard")
    assert tenants["tiny"].trial_mode
    quota = tenants["acme"].evaluation_quota
    assert quota is not None
    assert (quota.limit, quota.period) == (10, "week")


def test_json_wins_over_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DESCOPE_ALLOWLIST_PATH", "/nowhere/list.yaml")
    monkeypatch.setenv("DESCOPE_TENANT_ALLOWLIST_JSON", '{"tenants": {"x": {"datasets": ["d"]}}}')
    assert set(load_allowlist().tenants) == {"x"}


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("{", "is not JSON"),
        ("[]", "expected an object"),
        ("{}", "expected an object"),
        ('{"tenants": []}', "tenants"),
        ('{"tenants": {"a": {}}}', r"tenants\.a\.datasets"),
        ('{"tenants": {"a": {"datasets": "d"}}}', r"tenants\.a\.datasets"),
        ('{"tenants": {"a": {"datasets": [1]}}}', r"tenants\.a\.datasets\.0"),
        ('{"tenants": {"a": {"datasets": [""]}}}', r"tenants\.a\.datasets\.0"),
        ('{"tenants": {"a": {"datasets": [], "trial_mode": "false"}}}', r"tenants\.a\.trial_mode"),
        ('{"tenants": {"a": {"datasets": [], "trail_mode": true}}}', r"tenants\.a\.trail_mode"),
        ('{"tenants": {"_legacy": {"datasets": []}}}', "reserved"),
        ('{"tenants": {"": {"datasets": []}}}', "tenants"),
        ('{"tenants": {}, "more": 1}', "more"),
        (
            '{"tenants": {"a": {"datasets": [], "evaluation_quota": {"limit": 0, "period": "day"}}}}',
            r"evaluation_quota\.limit",
        ),
        (
            '{"tenants": {"a": {"datasets": [], "evaluation_quota": {"limit": 3, "period": "hour"}}}}',
            r"evaluation_quota\.period",
        ),
    ],
)
def test_a_malformed_list_names_the_place(monkeypatch: pytest.MonkeyPatch, text: str, where: str) -> None:
    monkeypatch.setenv("DESCOPE_TENANT_ALLOWLIST_JSON", text)
    with pytest.raises(ValueError, match=f"DESCOPE_TENANT_ALLOWLIST_JSON.*{where}"):
        load_allowlist()


@pytest.mark.parametrize("content", [None, b"tenants: [", b"", b"\xff\xfe\x00", b"just text"])
def test_a_bad_file_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "list.yaml"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setenv("DESCOPE_ALLOWLIST_PATH", str(path))
    with pytest.raises(ValueError, match=r"DESCOPE_ALLOWLIST_PATH.*list\.yaml"):
        load_allowlist()
