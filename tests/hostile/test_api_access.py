"""Who may talk to a tracker on this machine, and in what name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.integration.api.stage import Stage, client, open_stage, serving
from valkyrie.api.capacity import ApiSettings, settings_for
from valkyrie.domain import Identity
from valkyrie.errors import UsageError


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = open_stage(tmp_path / "home")
    yield made
    made.tracker_app.close()


async def test_only_names_of_loopback_are_answered_on_loopback(stage: Stage) -> None:
    async with serving(stage) as server, client(server, stage.ours) as http:
        for host in ("evil.example", "evil.example:8000", "127.0.0.1.evil.example", "", "[::1"):
            for path in ("/health", "/v1/me"):
                answer = await http.get(path, headers={"Host": host})
                assert (answer.status_code, "loopback" in answer.text) == (400, True), host
        for host in ("localhost", "127.0.0.1", "[::1]:1234", "LOCALHOST:80"):
            assert (await http.get("/v1/me", headers={"Host": host})).status_code == 200, host


async def test_pages_of_other_sites_cannot_act_in_their_readers_name(stage: Stage) -> None:
    async with serving(stage, ApiSettings(auth=False)) as server, client(server, None) as http:
        run_id = stage.add_run()
        port = int(server.url.rpartition(":")[2])
        beside = f"http://127.0.0.1:{port + 1}"
        for origin in ("https://evil.example", "null", f"{server.url}.evil.example", "http://[", beside):
            headers = {"Origin": origin, "Content-Type": "text/plain"}
            for path in (f"/v1/runs/{run_id}/stop", "/v1/runs"):
                answer = await http.post(path, headers=headers, content=b"{}")
                assert answer.status_code == 403, answer.text
                assert "access-control-allow-origin" not in answer.headers
            assert (await http.get(f"/v1/runs/{run_id}", headers={"Origin": origin})).status_code == 403
            preflight = await http.options("/v1/runs", headers={"Origin": origin})
            assert preflight.status_code == 403
        assert stage.tracker_app.tracker(Identity()).fetch(run_id).state == "IN_PROGRESS"
        assert (await http.get("/v1/me", headers={"Origin": server.url})).status_code == 200


async def test_without_keys_everyone_is_the_default_organisation(stage: Stage) -> None:
    async with serving(stage, ApiSettings(auth=False)) as server, client(server, None) as http:
        me = (await http.get("/v1/me", headers={"X-Valkyrie-Person": "ada"})).json()
        assert (me["org_id"], me["person"]) == ("default", "ada")
        assert (await http.get("/v1/me")).json()["person"] is None
        forged = await http.get("/v1/me", headers={"X-Valkyrie-Person": "x" * 500})
        assert forged.json()["person"] is None


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::", "example.org"])
def test_no_auth_needs_loopback(host: str) -> None:
    with pytest.raises(UsageError, match="--no-auth"):
        settings_for(host, auth=False)
    assert settings_for(host).auth


async def test_metrics_have_a_token_of_their_own_if_one_is_set(stage: Stage) -> None:
    stage.add_run(tasks=3)
    async with serving(stage, ApiSettings(metrics_token="scrape-me")) as server:
        async with httpx.AsyncClient(verify=False, base_url=server.url) as http:
            for shown in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Bearer {stage.ours}"}):
                assert (await http.get("/metrics", headers=shown)).status_code == 401
            found = await http.get("/metrics", headers={"Authorization": "Bearer scrape-me"})
    assert found.status_code == 200
    lines = found.text.splitlines()
    assert 'valkyrie_trials{state="PENDING"} 3.0' in lines
    assert 'valkyrie_runs{state="IN_PROGRESS"} 1.0' in lines
    assert "valkyrie_database_up 1.0" in lines
    assert 'valkyrie_requests_total{method="GET",route="other",status="401"} 3.0' in lines
    assert "default" not in found.text


async def test_every_answer_has_its_request_id(stage: Stage) -> None:
    async with serving(stage) as server, client(server, stage.ours) as http:
        assert (await http.get("/health", headers={"X-Request-Id": "abc.1"})).headers[
            "x-request-id"
        ] == "abc.1"
        made = (await http.get("/v1/nowhere", headers={"X-Request-Id": "a b\tc"})).headers["x-request-id"]
    assert len(made) == 32
