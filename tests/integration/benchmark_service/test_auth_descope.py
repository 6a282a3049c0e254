"""Hosted authentication end to end: the vendor's SDK, its tokens and keys, a live service."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator

import pytest

from benchmark_service import BenchmarkServiceApp, auth
from tests.integration.benchmark_service.quizzes import Hosted, Quiz, hosted
from tests.integration.benchmark_service.scripted_service import JSONResponse, scripted, serving

TASKS = "/v1/datasets/default/tasks"


@pytest.fixture
async def service(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Hosted]:
    async with hosted(monkeypatch) as running:
        yield running


async def test_a_good_key_is_exchanged_once(service: Hosted) -> None:
    async with service.caller() as caller:
        for _ in range(3):
            assert (await caller.get(TASKS)).status_code == 200
    assert service.descope.exchanges == 1


@pytest.mark.parametrize("key", [None, "wrong-key", "both-key", "odd-key", "k" * 5000])
async def test_other_keys_are_unauthorized(service: Hosted, key: str | None) -> None:
    async with service.caller(key) as caller:
        for path in (TASKS, "/verify-task-ids", "/docs", "/nowhere"):
            answer = await caller.get(path)
            assert (answer.status_code, answer.json()) == (401, {"detail": "Unauthorized"})
        assert (await caller.get("/health")).status_code == 200


async def test_a_failure_is_not_remembered(service: Hosted) -> None:
    async with service.caller("late-key") as caller:
        assert (await caller.get(TASKS)).status_code == 401
        service.descope.tenants_of["late-key"] = ["acme"]
        assert (await caller.get(TASKS)).status_code == 200


@pytest.mark.parametrize("how", ["forged", "expired"])
async def test_a_token_that_does_not_verify_is_refused(
    service: Hosted, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    setattr(service.descope, how, True)
    async with service.caller() as caller:
        assert (await caller.get(TASKS)).status_code == 401
    assert service.descope.exchanges == 1
    assert "acme-key" not in caplog.text


async def test_an_identity_provider_that_is_down_closes_the_door(
    service: Hosted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DESCOPE_BASE_URI", "http://127.0.0.1:1")
    async with service.caller() as caller:
        assert (await caller.get(TASKS)).status_code == 401


async def test_datasets_of_the_tenant_only(service: Hosted) -> None:
    async with service.caller() as caller:
        assert (await caller.get("/verify-task-ids?dataset=hard")).json() == {"task_ids": ["h1"]}
        refused = await caller.get("/verify-task-ids?dataset=private")
        assert (refused.status_code, refused.json()) == (403, {"detail": "Dataset not allowed"})


async def test_trial_tenants_reach_only_part_of_v1(service: Hosted) -> None:
    async with service.caller("tiny-key") as caller:
        refused = await caller.get("/verify-task-ids")
        assert refused.status_code == 403
        assert "approved /v1 endpoints" in refused.json()["detail"]
        assert (await caller.get(TASKS)).status_code == 200


async def test_a_malformed_list_stops_the_service_from_starting(
    service: Hosted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DESCOPE_TENANT_ALLOWLIST_JSON", '{"tenants": {"a": {"dataset": []}}}')
    app = BenchmarkServiceApp(Quiz)
    with pytest.raises(ValueError, match=r"DESCOPE_TENANT_ALLOWLIST_JSON: tenants\.a"):
        async with app.router.lifespan_context(app):
            pass


@pytest.mark.parametrize(
    ("header", "status"),
    [({}, 401), ({"authorization": "Bearer no"}, 401), ({"authorization": "Bearer k"}, 403)],
)
async def test_bearer_callers_have_no_v1(
    monkeypatch: pytest.MonkeyPatch, header: dict[str, str], status: int
) -> None:
    monkeypatch.delenv("AUTH_REQUIRED", raising=False)
    monkeypatch.setenv("BENCHMARK_API_KEY", "k")
    import httpx

    async with (
        serving(BenchmarkServiceApp(Quiz)) as url,
        httpx.AsyncClient(verify=False, base_url=url, headers=header) as caller,
    ):
        assert (await caller.get(TASKS)).status_code == status
        for path in ("/v1/evaluate", "/v1/score", "/v1/submissions/upload-url"):
            assert (await caller.post(path, json={})).status_code == status


GOOD_ENTRY = {"name": "quiz", "datasets": ["hard"], "trial_mode": False}


async def test_the_catalogue_decides_and_is_asked_with_the_callers_key(
    service: Hosted, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scripted() as catalogue:
        catalogue.answer("GET /benchmark-services/quiz", JSONResponse(GOOD_ENTRY))
        monkeypatch.setenv("BENCHMARK_CATALOG_API_URL", catalogue.url + "/")
        monkeypatch.setenv("SERVICE_NAME", "quiz")
        async with service.caller() as caller:
            assert (await caller.get("/v1/datasets/hard/tasks")).status_code == 200
            assert (await caller.get(TASKS)).status_code == 403
    assert [asked.headers["x-descope-api-key"] for asked in catalogue.asked] == ["acme-key"]


@pytest.mark.parametrize(
    "entry",
    [
        {**GOOD_ENTRY, "name": "other"},
        {**GOOD_ENTRY, "extra": 1},
        {**GOOD_ENTRY, "trial_mode": "no"},
        {"name": "quiz", "datasets": ["default"]},
        ["quiz"],
    ],
)
async def test_a_malformed_catalogue_closes_the_door(
    service: Hosted, monkeypatch: pytest.MonkeyPatch, entry: object
) -> None:
    async with scripted() as catalogue:
        catalogue.answer("GET /benchmark-services/quiz", JSONResponse(entry))
        monkeypatch.setenv("BENCHMARK_CATALOG_API_URL", catalogue.url)
        monkeypatch.setenv("SERVICE_NAME", "quiz")
        async with service.caller() as caller:
            assert (await caller.get(TASKS)).status_code == 401
    assert len(catalogue.asked) == 1


@pytest.mark.parametrize("status", [302, 401, 403, 404, 500])
async def test_the_catalogue_never_falls_back_to_the_local_list(
    service: Hosted, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    async with scripted() as catalogue:
        elsewhere = JSONResponse({}, status, headers={"location": "/benchmark-services/real"})
        catalogue.answer("GET /benchmark-services/quiz", elsewhere)
        catalogue.answer("GET /benchmark-services/real", JSONResponse(GOOD_ENTRY))
        monkeypatch.setenv("BENCHMARK_CATALOG_API_URL", catalogue.url)
        monkeypatch.setenv("SERVICE_NAME", "quiz")
        async with service.caller() as caller:
            assert (await caller.get(TASKS)).status_code == 401
        monkeypatch.setenv("BENCHMARK_CATALOG_API_URL", "http://127.0.0.1:1")
        async with service.caller() as caller:
            assert (await caller.get(TASKS)).status_code == 401


async def test_two_callers_at_once_keep_their_own_policies(
    service: Hosted, monkeypatch: pytest.MonkeyPatch
) -> None:
    import asyncio

    service.descope.tenants_of["second-key"] = ["acme"]

    async def entry(request: object) -> JSONResponse:
        key = request.headers["x-descope-api-key"]  # type: ignore[attr-defined]
        return JSONResponse({**GOOD_ENTRY, "datasets": ["hard"] if key == "acme-key" else ["default"]})

    async with scripted() as catalogue:
        catalogue.answer("GET /benchmark-services/quiz", entry)
        monkeypatch.setenv("BENCHMARK_CATALOG_API_URL", catalogue.url)
        monkeypatch.setenv("SERVICE_NAME", "quiz")
        async with service.caller() as first, service.caller("second-key") as second:
            answers = await asyncio.gather(
                *(
                    caller.get(f"/v1/datasets/{name}/tasks")
                    for _ in range(5)
                    for caller in (first, second)
                    for name in ("hard", "default")
                )
            )
    assert [answer.status_code for answer in answers] == [200, 403, 403, 200] * 5
    assert service.descope.exchanges == 2
    assert len(catalogue.asked) == 2


async def test_the_allowlist_file_is_read_anew_when_it_changes(
    service: Hosted, monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    from pathlib import Path

    path = Path(str(tmp_path)) / "allowlist.yaml"
    path.write_text(json.dumps({"tenants": {"acme": {"datasets": ["default"]}}}))
    monkeypatch.delenv("DESCOPE_TENANT_ALLOWLIST_JSON")
    monkeypatch.setenv("DESCOPE_ALLOWLIST_PATH", str(path))
    async with service.caller() as caller:
        assert (await caller.get(TASKS)).status_code == 200
        path.write_text(json.dumps({"tenants": {}}))
        assert (await caller.get(TASKS)).status_code == 401
    assert await auth.dataset_allowed("acme", None) is False
