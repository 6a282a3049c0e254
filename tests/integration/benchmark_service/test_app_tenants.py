"""Tenants over HTTP and over streams: who they are, what they may use, how often."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect

from benchmark_service import admission, auth
from tests.integration.benchmark_service.conftest import Live, live_app
from tests.integration.benchmark_service.test_sockets import hear, instance, listen
from tests.integration.benchmark_service.toy_service import Ground, ToyService

TENANTS = {
    "acme": {"datasets": ["default"]},
    "metered": {"datasets": ["default"], "evaluation_quota": {"limit": 2, "period": "day"}},
    "visitor": {"datasets": ["default"], "trial_mode": True},
}
GRADE = {"task_id": "t1", "response": "1"}


def key(name: str) -> dict[str, str]:
    return {"x-descope-api-key": name}


@pytest.fixture
def hosted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Live]:
    """A key is a tenant's name here; `both` is scoped to two tenants, `bad` to none."""

    def exchange(_project: str, access_key: str) -> Any:
        if access_key == "bad":
            raise PermissionError("unknown key")
        return {"tenants": {"acme": {}, "metered": {}} if access_key == "both" else {access_key: {}}}

    monkeypatch.setattr(auth, "_exchange_descope_access_key", exchange)
    auth.clear_auth_cache()
    auth.clear_allowlist_cache()
    settings = {
        "AUTH_REQUIRED": "true",
        "DESCOPE_PROJECT_ID": "P",
        "DESCOPE_TENANT_ALLOWLIST_JSON": json.dumps({"tenants": TENANTS}),
    }
    with live_app(ToyService, **settings) as live:
        yield live
    auth.clear_auth_cache()
    auth.clear_allowlist_cache()


@pytest.mark.parametrize("headers", [{}, key("bad"), key("both"), key("stranger"), key("_legacy")])
async def test_nobody_comes_in(hosted: Live, ground: Ground, headers: dict[str, str]) -> None:
    answer = httpx.get(f"{hosted.url}/verify-task-ids", headers=headers)
    assert (answer.status_code, answer.json()) == (401, {"detail": "Unauthorized"})
    async with connect(f"{hosted.ws}/ws/setup-task", additional_headers=headers, proxy=None) as socket:
        heard = await listen(socket)
    assert (heard.code, heard.reason, ground.opened) == (1008, "Unauthorized", 0)


async def test_a_tenant_uses_its_datasets_and_no_others(hosted: Live, ground: Ground) -> None:
    url = f"{hosted.url}/verify-task-ids"
    assert httpx.get(url, headers=key("acme")).status_code == 200
    refused = httpx.get(f"{url}?dataset=small", headers=key("acme"))
    assert (refused.status_code, refused.json()) == (403, {"detail": "Dataset not allowed"})
    allowed = await hear(hosted, "/ws/setup-task", instance(), key("acme"))
    assert allowed.chunks[-1]["type"] == "result"
    wrong = await hear(hosted, "/ws/setup-task", instance(dataset="small"), key("acme"))
    assert (wrong.code, wrong.reason) == (1008, "Dataset not allowed")


async def test_a_trial_tenant_is_kept_to_v1(hosted: Live) -> None:
    for path in ("/verify-task-ids", "/openapi.json", "/v1/submissions/upload-url", "/v1/evaluate/x"):
        answer = httpx.get(hosted.url + path, headers=key("visitor"))
        assert answer.status_code == 403 and "approved /v1 endpoints" in answer.json()["detail"]
    assert "approved" not in httpx.get(f"{hosted.url}/v1/datasets/default/tasks", headers=key("visitor")).text
    heard = await hear(hosted, "/ws/evaluate-response", GRADE, key("visitor"))
    assert (heard.code, heard.reason) == (1008, "Trial tenants may only access /v1/*")


async def test_a_used_up_quota(hosted: Live, ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVALUATION_QUOTA_TABLE_NAME", "quotas")
    monkeypatch.setattr(admission, "_increment", lambda *_args: False)
    answer = httpx.post(f"{hosted.url}/evaluate-response/", json=GRADE, headers=key("metered"))
    assert answer.status_code == 429
    assert "limit of 2 per day reached" in answer.json()["detail"]
    assert 0 < int(answer.headers["retry-after"]) <= 86400
    for path, request in (("/ws/evaluate-response", GRADE), ("/ws/evaluate-instance", instance())):
        heard = await hear(hosted, path, request, key("metered"))
        assert (heard.code, heard.chunks) == (1008, [])
        assert heard.reason.startswith("Evaluation quota reached; retry after ")
        assert heard.reason.endswith("T00:00:00Z.")
    setup = await hear(hosted, "/ws/setup-task", instance(), key("metered"))
    assert setup.chunks[-1]["type"] == "result"


async def test_a_quota_that_cannot_be_counted_closes_the_door(hosted: Live, ground: Ground) -> None:
    answer = httpx.post(f"{hosted.url}/evaluate-response/", json=GRADE, headers=key("metered"))
    assert answer.status_code == 503
    heard = await hear(hosted, "/ws/evaluate-instance", instance(), key("metered"))
    assert (heard.code, heard.chunks, ground.opened) == (1011, [], 0)
    unmetered = httpx.post(f"{hosted.url}/evaluate-response/", json=GRADE, headers=key("acme"))
    assert unmetered.json() == {"resolved": True}
