"""Every route of the tracker, walked with another organisation's key and our ids: nothing of ours is told.

The routes are taken from the OpenAPI description, so one that is added must be said here to be of some kind.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cache
from typing import Any

import httpx
import pytest

from tests.integration.api.stage import Stage, client
from tests.integration.api.test_limits import CONTRACT, zipped
from valkyrie.api.app import bare_app
from valkyrie.api.server import ApiServer
from valkyrie.domain import DEFAULT_ORG
from valkyrie.store import tenants

SECRET, AGENT, LABEL, VALUE = "planted/secret", "planted-agent", "planted-label", "planted-value-77aa"
JOB_NAME = "planted-job"
ARCHIVE = zipped("mine/contract.yaml", CONTRACT)
DIGEST = hashlib.sha256(ARCHIVE).hexdigest()
RESULTS = zipped(
    "mine/results.jsonl",
    '{"type": "trial-result", "stimulus": "s", "status": "error", "error": "none", "trajectory": null}',
)

OPEN = {("GET", "/health")}
OF_NOBODY = {
    ("GET", "/metrics"),
    ("GET", "/v1/me"),
    ("POST", "/v1/init"),
    ("GET", "/v1/benchmarks"),
    ("POST", "/v1/benchmarks/tasks"),
    ("POST", "/v1/runs/plan"),
    ("POST", "/v1/jobs/plan"),
}
"""They name nothing of an organisation."""
OF_ITSELF = {
    ("GET", "/v1/runs"),
    ("GET", "/v1/jobs"),
    ("GET", "/v1/queue"),
    ("GET", "/v1/disk"),
    ("GET", "/v1/executor"),
    ("GET", "/v1/agents"),
    ("GET", "/v1/secrets"),
    ("GET", "/v1/organisation"),
    ("GET", "/v1/audit"),
    ("PATCH", "/v1/organisation"),
    ("PUT", "/v1/organisation/credentials"),
    ("DELETE", "/v1/organisation/credentials"),
    ("POST", "/v1/runs"),
    ("POST", "/v1/jobs"),
    ("PUT", "/v1/ingest"),
    ("PUT", "/v1/agents/{name}"),
    ("PUT", "/v1/secrets/{name}"),
    ("PUT", "/v1/uploads/{digest}"),
}
"""They list or make what is the caller's own, also under a name that others use too."""

IN_THE_QUERY = {("GET", "/v1/runs/named")}
"""They name something of an organisation, but not in their path."""

QUERIES = {
    "/v1/runs/{ref}/attempts": "task_id=t0",
    "/v1/runs/{ref}/log": "task_id=t0",
    "/v1/runs/{ref}/shell": "task_id=t0",
    "/v1/runs/named": "ref={ref}",
}
JOB = {"agents": [{"agent": "oracle"}], "template": {"benchmark": "quickstart", "slice": "0:1"}}
BODIES: dict[str, Any] = {
    "/v1/jobs": JOB,
    "/v1/jobs/plan": JOB,
    "/v1/jobs/{ref}/resume": {"concurrency": 3},
    "/v1/runs": {"agent": "oracle", "benchmark": "quickstart", "slice": "0:1"},
    "/v1/runs/plan": {"agent": "oracle", "benchmark": "quickstart", "slice": "0:1"},
    "/v1/benchmarks/tasks": {"benchmark": "quickstart"},
    "/v1/runs/{ref}": {"label": "taken over"},
    "/v1/secrets/{name}": {"value": "theirs"},
    "/v1/organisation": {"log_retention_days": 5},
    "/v1/organisation/credentials": {"aws_access_key_id": "A", "aws_secret_access_key": "B"},
}


@cache
def operations() -> list[tuple[str, str]]:
    paths = bare_app().openapi()["paths"]
    return [(method.upper(), path) for path, methods in paths.items() for method in methods]


@dataclass
class Mine:
    """What the first organisation has."""

    run_id: str
    job_id: str
    marks: list[str]

    @property
    def ids(self) -> tuple[str, str]:
        return self.run_id, self.job_id


def prepare(stage: Stage) -> Mine:
    run_id = stage.finished_run(label=LABEL, agent=AGENT, started_by="ada@example.org")
    waiting = stage.add_run(label=LABEL, agent=AGENT, started_by="ada@example.org")
    job_id = stage.finished_job(name=JOB_NAME, label=LABEL, agent=AGENT, started_by="ada@example.org")
    with stage.tracker_app.store.writing() as connection:
        tenants.create_key(connection, DEFAULT_ORG, "another", "bob@example.org")
    people_of_ours = ["ada@example.org", "bob@example.org"]
    return Mine(
        run_id, job_id, [run_id, job_id, waiting, LABEL, JOB_NAME, AGENT, SECRET, VALUE, *people_of_ours]
    )


def request_for(method: str, template: str, ids: tuple[str, str]) -> dict[str, Any]:
    """A request of that kind about our run, or our job."""
    name = SECRET if "/secrets/" in template else AGENT
    query = f"?{QUERIES[template]}" if template in QUERIES else ""
    path = (
        f"{template}{query}".replace("{ref}", ids[template.startswith("/v1/jobs")])
        .replace("{name}", name)
        .replace("{digest}", DIGEST)
        .replace("{number}", "0")
    )
    if template == "/v1/ingest":
        return {"method": method, "url": path, "content": RESULTS}
    if method == "PUT" and template.startswith(("/v1/agents", "/v1/uploads")):
        return {"method": method, "url": path, "content": ARCHIVE}
    if method in ("POST", "PUT", "PATCH") and template != "/v1/init":
        return {"method": method, "url": path, "json": BODIES.get(template, {})}
    return {"method": method, "url": path}


async def own_things(http: httpx.AsyncClient) -> dict[str, Any]:
    """Everything the first organisation sees of its own."""
    pages = (
        "/v1/runs?limit=500",
        "/v1/jobs?limit=500",
        "/v1/agents",
        "/v1/secrets",
        "/v1/organisation",
        "/v1/queue",
    )
    return {page: (await http.get(page)).raise_for_status().json() for page in pages}


async def test_every_route_is_of_a_known_kind() -> None:
    named = {operation for operation in operations() if "{" in operation[1]} | IN_THE_QUERY
    assert set(operations()) - named == OPEN | OF_NOBODY | {one for one in OF_ITSELF if "{" not in one[1]}


async def test_with_the_other_key_our_ids_are_unknown_and_our_things_untouched(
    stage: Stage, server: ApiServer
) -> None:
    mine = prepare(stage)
    async with client(server, stage.ours) as ours, client(server, stage.theirs) as theirs:
        (await ours.put(f"/v1/secrets/{SECRET}", json={"value": VALUE})).raise_for_status()
        (await ours.put(f"/v1/agents/{AGENT}", content=ARCHIVE)).raise_for_status()
        (await ours.put(f"/v1/uploads/{DIGEST}", content=ARCHIVE)).raise_for_status()
        before = await own_things(ours)
        for method, template in operations():
            if (method, template) in OPEN | OF_ITSELF | OF_NOBODY:
                continue
            answer = await theirs.request(**request_for(method, template, mine.ids))
            assert answer.status_code == 404, f"{method} {template}: {answer.status_code} {answer.text}"
            told = answer.text
            for one in mine.ids:
                told = told.replace(one, "·").replace(one[:8], "·")
            for mark in mine.marks[2:]:
                asked_for = mark in (SECRET, AGENT) and "{name}" in template
                assert asked_for or mark not in told, f"{method} {template} tells {mark}: {told}"
        for method, template in sorted(OF_ITSELF | OF_NOBODY):
            if method == "GET":
                answer = await theirs.get(template)
                assert answer.status_code == 200, answer.text
                typed = (*mine.ids, SECRET, AGENT) if template == "/v1/audit" else ()  # by themselves
                for mark in set(mine.marks) - set(typed):
                    assert mark not in answer.text, f"{method} {template} tells {mark}"
        assert await own_things(ours) == before


async def test_names_are_the_callers_own(stage: Stage, server: ApiServer) -> None:
    """What they make under a name of ours is theirs, beside ours."""
    mine = prepare(stage)
    async with client(server, stage.ours) as ours, client(server, stage.theirs) as theirs:
        (await ours.put(f"/v1/secrets/{SECRET}", json={"value": VALUE})).raise_for_status()
        (await ours.put(f"/v1/agents/{AGENT}", content=ARCHIVE)).raise_for_status()
        before = await own_things(ours)
        for method, template in sorted(OF_ITSELF):
            if method != "GET":
                answer = await theirs.request(**request_for(method, template, mine.ids))
                assert answer.status_code < 500, f"{method} {template}: {answer.text}"
                assert not any(mark in answer.text for mark in (*mine.ids, VALUE, LABEL))
        assert [one["name"] for one in (await theirs.get("/v1/secrets")).json()] == [SECRET]
        assert (await theirs.delete(f"/v1/secrets/{SECRET}")).status_code == 204
        assert (await theirs.delete(f"/v1/agents/{AGENT}")).status_code == 204
        assert await own_things(ours) == before


async def test_our_upload_cannot_be_named_by_them(stage: Stage, server: ApiServer) -> None:
    async with client(server, stage.ours) as ours, client(server, stage.theirs) as theirs:
        (await ours.put(f"/v1/uploads/{DIGEST}", content=ARCHIVE)).raise_for_status()
        request = {"agent": f"upload:{DIGEST}", "benchmark": "quickstart", "slice": "0:1"}
        fine = await ours.post("/v1/runs/plan", json=request)
        assert (fine.status_code, fine.json()["agent"]) == (200, "mine")
        refused = await theirs.post("/v1/runs/plan", json=request)
        assert refused.status_code in (400, 404, 422), refused.text
        assert "mine" not in refused.text


async def test_paths_of_the_server_cannot_be_named(stage: Stage, server: ApiServer) -> None:
    paths = ("/etc", "../..", "file:///etc", "./home", "~")
    as_agent = [{"agent": path, "benchmark": "quickstart"} for path in paths]
    as_benchmark = [{"agent": "oracle", "benchmark": path} for path in paths]
    async with client(server, stage.theirs) as theirs:
        for request in as_agent + as_benchmark:
            answer = await theirs.post("/v1/runs/plan", json=request)
            problems = answer.json().get("problems", [])
            assert answer.status_code in (400, 404, 422) or problems, answer.text
            assert "root:" not in answer.text


async def test_strangers_get_nowhere(stage: Stage, server: ApiServer) -> None:
    mine = prepare(stage)
    async with httpx.AsyncClient(verify=False, base_url=server.url, timeout=60) as stranger:
        for method, template in set(operations()) - OPEN:
            answer = await stranger.request(**request_for(method, template, mine.ids))
            assert answer.status_code == 401, f"{method} {template}: {answer.status_code} {answer.text}"
            assert method == "HEAD" or answer.json()["error"]["type"] == "AccessError"
        for key in ("", "nonsense", "vk_000000000000_" + "A" * 43, "é", "x" * 9000):
            answer = await stranger.get("/v1/runs", headers={b"X-Api-Key": key.encode()})
            assert answer.status_code == 401, key


async def test_a_revoked_or_expired_key_opens_nothing(stage: Stage, server: ApiServer) -> None:
    with stage.tracker_app.store.writing() as connection:
        key_id, revoked = tenants.create_key(connection, DEFAULT_ORG, "old", "ada@example.org")
        tenants.revoke_key(connection, key_id, 1.0)
        _, expired = tenants.create_key(connection, DEFAULT_ORG, "older", "ada@example.org", expires_at=1.0)
    for key in (revoked, expired):
        async with client(server, key) as late:
            assert (await late.get("/v1/runs")).status_code == 401


async def test_keys_are_in_no_log_and_no_database(
    stage: Stage, server: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    async with client(server, stage.ours) as ours:
        await ours.get("/v1/runs", params={"label": "a-query-is-not-logged"})
        await ours.get("/v1/runs", headers={"X-Api-Key": "another-key-1234"})
        await ours.put("/v1/secrets/x", json={"value": VALUE})
        await ours.put("/v1/secrets/x", json={"value": VALUE, "more": VALUE})
        await ours.get("/v1/runs/zz%0aforged%20line")
    written = "\n".join(
        record.getMessage() for record in caplog.records if record.name.startswith("valkyrie")
    )
    assert "GET /v1/runs 200" in written and "org=default" in written
    for secret in (
        stage.ours,
        stage.ours[-20:],
        "another-key-1234",
        VALUE,
        "a-query-is-not-logged",
        "\nforged",
    ):
        assert secret not in written
    stored = b"".join(file.read_bytes() for file in stage.tracker_app.data.root.glob("valkyrie.db*"))
    assert stage.ours.encode() not in stored
    assert json.dumps(VALUE).encode() not in stored
