"""Who is let in, as the environment says; the exchange with Descope itself is in the integration tests."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from benchmark_service import admission, auth
from benchmark_service.allowlist import Allowlist, CatalogAllowlistClient

KEY = "descope-access-key"
VARIABLES = (
    "AUTH_REQUIRED",
    "BENCHMARK_API_KEY",
    "BENCHMARK_CATALOG_API_URL",
    "DESCOPE_ALLOWLIST_PATH",
    "DESCOPE_AUTH_CACHE_TTL_SECONDS",
    "DESCOPE_PROJECT_ID",
    "DESCOPE_TENANT_ALLOWLIST_JSON",
    "SERVICE_NAME",
)


class Exchange:
    """Stands in for the identity provider: answers claims, or fails, and counts."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.calls = 0

    def __call__(self, project_id: str, access_key: str) -> Any:
        self.calls += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    auth.clear_auth_cache()
    auth.clear_allowlist_cache()
    yield
    auth.clear_auth_cache()
    auth.clear_allowlist_cache()


@pytest.fixture
def hosted(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("AUTH_REQUIRED", "true")
    monkeypatch.setenv("DESCOPE_PROJECT_ID", "P1")
    tenants = {"acme": {"datasets": ["default", "hard"]}, "tiny": {"datasets": ["lite"], "trial_mode": True}}
    monkeypatch.setenv("DESCOPE_TENANT_ALLOWLIST_JSON", json.dumps({"tenants": tenants}))
    return monkeypatch


def exchange(patch: pytest.MonkeyPatch, answer: Any) -> Exchange:
    made = Exchange(answer)
    patch.setattr(auth, "_exchange_descope_access_key", made)
    return made


async def test_nothing_set_lets_everybody_in_as_legacy() -> None:
    assert await auth.resolve_tenant({}) == auth.LEGACY_TENANT == "_legacy"


@pytest.mark.parametrize(
    ("header", "tenant"),
    [
        ("Bearer s3cret", "_legacy"),
        ("bearer s3cret", None),
        ("Bearer s3cret ", None),
        ("Bearer wrong", None),
        ("s3cret", None),
        ("Bearer sécret", None),
        ("", None),
    ],
)
async def test_static_key(monkeypatch: pytest.MonkeyPatch, header: str, tenant: str | None) -> None:
    monkeypatch.setenv("BENCHMARK_API_KEY", "s3cret")
    assert await auth.resolve_tenant({"authorization": header}) == tenant


@pytest.mark.parametrize("value", ["1", "true", "TRUE", "Yes", "on"])
async def test_auth_required_is_read_at_each_call(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    assert await auth.resolve_tenant({}) == "_legacy"
    monkeypatch.setenv("AUTH_REQUIRED", value)
    assert await auth.resolve_tenant({}) is None
    monkeypatch.setenv("AUTH_REQUIRED", "false")
    assert await auth.resolve_tenant({}) == "_legacy"


async def test_the_static_key_does_not_open_a_service_that_requires_auth(hosted: pytest.MonkeyPatch) -> None:
    hosted.setenv("BENCHMARK_API_KEY", "s3cret")
    exchange(hosted, {"tenants": {"acme": {}}})
    assert await auth.resolve_tenant({"authorization": "Bearer s3cret"}) is None


async def test_no_project_fails_closed_and_says_what_is_missing(
    hosted: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hosted.delenv("DESCOPE_PROJECT_ID")
    called = exchange(hosted, {"tenants": {"acme": {}}})
    assert await auth.resolve_tenant({"x-descope-api-key": KEY}) is None
    assert called.calls == 0
    assert "DESCOPE_PROJECT_ID" in caplog.text
    assert KEY not in caplog.text


async def test_one_tenant_is_resolved_once_and_then_remembered(hosted: pytest.MonkeyPatch) -> None:
    called = exchange(hosted, {"tenants": {"acme": {}}})
    for _ in range(3):
        assert await auth.resolve_tenant({"x-descope-api-key": KEY}) == "acme"
    assert called.calls == 1
    assert KEY not in repr(auth._tenants)
    auth.clear_auth_cache()
    assert await auth.resolve_tenant({"x-descope-api-key": KEY}) == "acme"
    assert called.calls == 2


@pytest.mark.parametrize(
    "answer",
    [
        {},
        None,
        "acme",
        {"tenants": {}},
        {"tenants": ["acme"]},
        {"tenants": {"acme": {}, "tiny": {}}},
        {"tenants": {"_legacy": {}}},
        {"tenants": {"": {}}},
        {"tenants": {"stranger": {}}},
        RuntimeError(f"rejected {KEY}"),
    ],
)
async def test_anything_but_one_listed_tenant_is_refused(
    hosted: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, answer: Any
) -> None:
    caplog.set_level(logging.DEBUG)
    called = exchange(hosted, answer)
    headers = {"x-descope-api-key": KEY}
    assert await auth.resolve_tenant(headers) is None
    assert KEY not in caplog.text
    called.answer = {"tenants": {"acme": {}}}
    known = answer == {"tenants": {"stranger": {}}}  # who they are is remembered, only not on the list
    assert await auth.resolve_tenant(headers) == (None if known else "acme")


async def test_an_absurdly_long_key_is_not_even_exchanged(hosted: pytest.MonkeyPatch) -> None:
    called = exchange(hosted, {"tenants": {"acme": {}}})
    assert await auth.resolve_tenant({"x-descope-api-key": "k" * 5000}) is None
    assert called.calls == 0


async def test_the_cache_is_bounded(hosted: pytest.MonkeyPatch) -> None:
    exchange(hosted, {"tenants": {"acme": {}}})
    for number in range(auth.AUTH_CACHE_SIZE + 10):
        assert await auth.resolve_tenant({"x-descope-api-key": f"{KEY}-{number}"}) == "acme"
    assert len(auth._tenants) == auth.AUTH_CACHE_SIZE


@pytest.mark.parametrize("value", ["0", "0.5", "-3", "soon", "inf", "nan"])
async def test_a_bad_cache_time_is_refused_at_startup(hosted: pytest.MonkeyPatch, value: str) -> None:
    hosted.setenv("DESCOPE_AUTH_CACHE_TTL_SECONDS", value)
    with pytest.raises(ValueError, match="DESCOPE_AUTH_CACHE_TTL_SECONDS"):
        auth.check_settings()


async def test_datasets_and_trials(hosted: pytest.MonkeyPatch) -> None:
    assert await auth.dataset_allowed("acme", None)
    assert await auth.dataset_allowed("acme", "")
    assert await auth.dataset_allowed("acme", "hard")
    assert not await auth.dataset_allowed("acme", "lite")
    assert not await auth.dataset_allowed("tiny", None)
    assert not await auth.dataset_allowed("stranger", None)
    assert await auth.dataset_allowed("_legacy", "anything")
    assert [await auth.is_trial(name) for name in ("acme", "tiny", "_legacy")] == [False, True, False]


async def test_a_tenant_that_left_the_list_meanwhile_is_on_trial(hosted: pytest.MonkeyPatch) -> None:
    exchange(hosted, {"tenants": {"acme": {}}})
    assert await auth.resolve_tenant({"x-descope-api-key": KEY}) == "acme"
    hosted.setenv("DESCOPE_TENANT_ALLOWLIST_JSON", '{"tenants": {}}')
    assert await auth.is_trial("acme")
    with pytest.raises(admission.QuotaUnavailable):
        await auth.consume_quota("service", "acme")


async def test_tenants_that_a_service_names_by_itself_are_not_on_trial(hosted: pytest.MonkeyPatch) -> None:
    assert not await auth.is_trial("partner")
    await auth.consume_quota("service", "partner")
    exchange(hosted, {"tenants": {"tiny": {}}})
    assert await auth.resolve_tenant({"x-descope-api-key": KEY}) == "tiny"
    assert await auth.is_trial("tiny-under-another-name"), "another name does not end a trial"


async def test_a_catalogue_that_nobody_asks_is_said_at_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("BENCHMARK_CATALOG_API_URL", "https://catalogue.example")
    auth.check_settings()
    assert "AUTH_REQUIRED is not" in caplog.text


async def test_a_catalogue_client_of_its_own_address_and_transport() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        assert str(request.url) == "https://catalogue.example/benchmark-services/quiz"
        return httpx.Response(200, json={"name": "quiz", "datasets": ["lite"], "trial_mode": False})

    client = CatalogAllowlistClient(
        "https://catalogue.example/", "quiz", transport=httpx.MockTransport(answer)
    )
    policy = await client.policy("K1")
    assert policy is not None and policy.allows("lite") and not policy.allows("hard")


async def test_a_changed_list_counts_at_once(hosted: pytest.MonkeyPatch) -> None:
    exchange(hosted, {"tenants": {"acme": {}}})
    assert await auth.resolve_tenant({"x-descope-api-key": KEY}) == "acme"
    hosted.setenv("DESCOPE_TENANT_ALLOWLIST_JSON", '{"tenants": {}}')
    assert await auth.resolve_tenant({"x-descope-api-key": KEY}) is None


async def test_the_seams_tests_of_services_replace(hosted: pytest.MonkeyPatch) -> None:
    async def asynchronous(*_: object) -> dict[str, Any]:
        return {"tenants": {"other": {}}}

    hosted.setattr(auth, "_exchange_descope_access_key", asynchronous)
    listed = Allowlist.model_validate({"tenants": {"other": {"datasets": ["default"]}}})
    hosted.setattr(auth, "load_allowlist", lambda: listed)
    assert await auth.resolve_tenant({"x-descope-api-key": KEY}) == "other"
    assert await auth.dataset_allowed("other", None)


async def test_startup_refuses_a_malformed_list(hosted: pytest.MonkeyPatch) -> None:
    hosted.setenv("DESCOPE_TENANT_ALLOWLIST_JSON", '{"tenants": {"acme": {"datasets": "default"}}}')
    with pytest.raises(ValueError, match=r"DESCOPE_TENANT_ALLOWLIST_JSON: tenants\.acme\.datasets"):
        auth.check_settings()
    hosted.setenv("BENCHMARK_CATALOG_API_URL", "http://127.0.0.1:1")
    with pytest.raises(ValueError, match="SERVICE_NAME"):
        auth.check_settings()
    hosted.setenv("AUTH_REQUIRED", "no")
    auth.check_settings()


async def test_what_a_closed_service_lacks_is_said_at_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AUTH_REQUIRED", "true")
    monkeypatch.setattr(auth, "find_spec", lambda _name: None)
    auth.check_settings()
    for missing in ("DESCOPE_TENANT_ALLOWLIST_JSON", "DESCOPE_PROJECT_ID", "pip install 'descope"):
        assert missing in caplog.text
    caplog.clear()
    monkeypatch.setattr(auth, "find_spec", lambda _name: object())
    monkeypatch.setenv("DESCOPE_PROJECT_ID", "P1")
    monkeypatch.setenv("DESCOPE_TENANT_ALLOWLIST_JSON", '{"tenants": {"acme": {"datasets": ["default"]}}}')
    auth.check_settings()
    assert caplog.text == ""
