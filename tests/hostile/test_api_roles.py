"""Every route of the tracker, walked with keys of each role: what a role may not do is refused and not done.

The routes are taken from the OpenAPI description; one that is added is refused to readers unless it is
said here that it only looks.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.hostile.test_api_organisations import (
    AGENT,
    ARCHIVE,
    OPEN,
    SECRET,
    VALUE,
    operations,
    own_things,
    prepare,
    request_for,
)
from tests.integration.api.stage import Stage, client
from valkyrie.api.server import ApiServer
from valkyrie.domain import DEFAULT_ORG, Role
from valkyrie.store import tenants

INIT = ("POST", "/v1/init")
"""Makes an organisation of somebody who has none yet; self-hosted trackers refuse it to everyone."""
ADMINS = {
    ("PATCH", "/v1/organisation"),
    ("PUT", "/v1/organisation/credentials"),
    ("DELETE", "/v1/organisation/credentials"),
    ("GET", "/v1/audit"),
}
LOOKS = {("POST", f"/v1/runs/{{ref}}/{what}") for what in ("results", "outputs", "logs")}
MEMBERS_LOOKS = {("GET", "/v1/runs/{ref}/shell")}
UNRECORDED = {
    ("POST", "/v1/runs/plan"),
    ("POST", "/v1/jobs/plan"),
    ("POST", "/v1/benchmarks/tasks"),
    ("PUT", "/v1/uploads/{digest}"),
}


def role_for(operation: tuple[str, str]) -> Role:
    if operation in ADMINS:
        return Role.ADMIN
    looks = operation[0] in ("GET", "HEAD") or operation in LOOKS
    return Role.READER if looks and operation not in MEMBERS_LOOKS else Role.MEMBER


def key_of(stage: Stage, role: Role) -> str:
    with stage.tracker_app.store.writing() as connection:
        return tenants.create_key(connection, DEFAULT_ORG, "walk", f"{role}@example.org", role=role)[1]


async def audit(server: ApiServer, stage: Stage, **wanted: Any) -> list[dict[str, Any]]:
    async with client(server, stage.ours) as ours:
        found: list[dict[str, Any]] = (await ours.get("/v1/audit", params=wanted)).raise_for_status().json()
    return found


@pytest.mark.parametrize("role", [Role.READER, Role.MEMBER])
async def test_a_role_gets_no_further_than_it_may(stage: Stage, server: ApiServer, role: Role) -> None:
    mine = prepare(stage)
    async with client(server, stage.ours) as ours, client(server, key_of(stage, role)) as limited:
        (await ours.put(f"/v1/secrets/{SECRET}", json={"value": VALUE})).raise_for_status()
        (await ours.put(f"/v1/agents/{AGENT}", content=ARCHIVE)).raise_for_status()
        assert (await limited.get("/v1/me")).json()["role"] == role.value
        before = await own_things(ours)
        for operation in sorted(set(operations()) - OPEN - {INIT}):
            if not role.may(role_for(operation)):
                answer = await limited.request(**request_for(*operation, mine.ids))
                assert answer.status_code == 403, f"{operation}: {answer.status_code} {answer.text}"
                assert answer.json()["error"]["type"] == "RoleError"
                assert role.value in answer.text
            elif role_for(operation) is Role.READER and not operation[1].endswith("/events"):
                answer = await limited.request(**request_for(*operation, mine.ids))
                assert answer.status_code in (200, 404), f"{operation}: {answer.status_code} {answer.text}"
        assert await own_things(ours) == before


async def test_a_refused_body_is_not_read(stage: Stage, server: ApiServer) -> None:
    """Also what is no JSON, and what a route would call wrong, is refused for the role."""
    async with client(server, key_of(stage, Role.READER)) as reader:
        for content in (b"{", b"[]", b"x" * 5000):
            answer = await reader.post("/v1/runs", content=content)
            assert (answer.status_code, answer.json()["error"]["cause"]) == (403, "role")


async def test_everything_that_changes_something_is_written_down(stage: Stage, server: ApiServer) -> None:
    mine = prepare(stage)
    changes = [
        operation
        for operation in sorted(set(operations()) - {INIT} - UNRECORDED)
        if operation[0] not in ("GET", "HEAD") and operation not in LOOKS
    ]
    async with client(server, stage.ours) as ours:
        for number, operation in enumerate(changes, 1):
            await ours.request(**request_for(*operation, mine.ids))
            found = await audit(server, stage, limit=1000)
            assert len(found) == number, f"{operation} left {len(found) - number + 1} entries"
            assert found[0]["person"] == "ada@example.org" and found[0]["key_id"]
            assert found[0]["outcome"] in ("done", "refused"), operation
        for operation in (set(operations()) - set(changes)) & (LOOKS | UNRECORDED):
            await ours.request(**request_for(*operation, mine.ids))
    assert len(await audit(server, stage, limit=1000)) == len(changes)
    assert VALUE not in str(await audit(server, stage, limit=1000))
    assert await audit(server, stage, person="nobody@example.org") == []
    async with client(server, stage.theirs) as theirs:
        assert (await theirs.get("/v1/audit")).json() == []


async def test_what_was_done_names_its_subject_in_full(stage: Stage, server: ApiServer) -> None:
    mine = prepare(stage)
    async with client(server, stage.ours) as ours:
        (await ours.patch(f"/v1/runs/{mine.run_id[:8]}", json={"label": "x"})).raise_for_status()
        (await ours.delete(f"/v1/jobs/{mine.job_id[:8]}")).raise_for_status()
        assert (await ours.delete("/v1/agents/no-such-agent")).status_code == 404
    told = [(one["name"], one["subject"], one["outcome"]) for one in await audit(server, stage)]
    assert told == [
        ("agents_remove", "no-such-agent", "refused"),
        ("jobs_delete", mine.job_id, "done"),
        ("runs_update", mine.run_id, "done"),
    ]
    assert len(await audit(server, stage, subject=mine.run_id[:6])) == 1
