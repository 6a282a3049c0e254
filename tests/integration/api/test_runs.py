"""Runs over HTTP: listed, looked at, steered, forgotten, and what is wrong with requests."""

from __future__ import annotations

import io
import tarfile

import httpx
import pytest

from tests.integration.api.stage import Stage, client
from valkyrie.api.server import ApiServer
from valkyrie.views import RunRequest


async def test_health_needs_no_key_and_runs_do(server: ApiServer) -> None:
    async with client(server, None) as stranger:
        health = await stranger.get("/health")
        assert (health.status_code, health.json()["database"]) == (200, "ok")
        refused = await stranger.get("/v1/runs")
    assert refused.status_code == 401
    assert refused.headers["www-authenticate"] == "Bearer"
    assert refused.json()["error"]["type"] == "AccessError"


async def test_a_run_is_planned_started_and_listed(ours: httpx.AsyncClient) -> None:
    request = {"agent": "oracle", "benchmark": "quickstart", "slice": "0:2", "label": "first"}
    plan = (await ours.post("/v1/runs/plan", json=request)).raise_for_status().json()
    assert (len(plan["trials"]), plan["problems"]) == (2, [])
    started = await ours.post("/v1/runs", json=request)
    assert started.status_code == 201
    run = started.json()["run"]
    assert (run["total"], run["started_by"], run["org"]) == (2, "ada@example.org", "default")
    assert run["folder"] == "", "the server's folders are no caller's business"
    page = (await ours.get("/v1/runs", params={"label": "first", "started_by": ["ada@example.org"]})).json()
    assert [one["id"] for one in page["runs"]] == [run["id"]]
    assert (await ours.get("/v1/runs", params={"label": "second"})).json()["total"] == 0
    queue = (await ours.get("/v1/queue")).json()
    assert [one["run_id"] for one in queue["entries"]] == [run["id"]]


@pytest.mark.parametrize(
    "headers",
    [{"X Team": "s3cret"}, {"X-Team": "s3cret\n"}, {"X-Team": "s3cret\u2603"}, {"Content-Length": "s3cret"}],
)
async def test_headers_that_cannot_be_sent_are_refused(
    stage: Stage, ours: httpx.AsyncClient, headers: dict[str, str]
) -> None:
    url = "http://127.0.0.1:9"
    source = {"kind": "service", "name": "quiz", "url": url, "where": "given"}
    run_id = stage.add_run(benchmark_source=source, arguments={"headers": [*headers]})
    for path, body in (
        ("/v1/runs/plan", {"agent": "oracle", "benchmark": url}),
        ("/v1/runs", {"agent": "oracle", "benchmark": url}),
        ("/v1/benchmarks/tasks", {"benchmark": url}),
        (f"/v1/runs/{run_id}/retry", {}),
    ):
        refused = await ours.post(path, json={**body, "headers": headers})
        assert refused.status_code == 400 and "s3cret" not in refused.text, (path, refused.text)


async def test_a_repeated_start_with_one_key_is_one_run(ours: httpx.AsyncClient) -> None:
    request = {"agent": "oracle", "benchmark": "quickstart", "slice": "0:1"}
    headers = {"Idempotency-Key": "the same start"}
    ids = {(await ours.post("/v1/runs", json=request, headers=headers)).json()["run"]["id"] for _ in range(2)}
    assert len(ids) == 1
    assert (await ours.get("/v1/runs")).json()["total"] == 1


async def test_a_run_is_stopped_changed_resumed_and_deleted(stage: Stage, ours: httpx.AsyncClient) -> None:
    run_id = stage.add_run()
    url = f"/v1/runs/{run_id[:8]}"
    changed = await ours.patch(url, json={"concurrency": 7, "label": "x", "priority": 0, "max_cost": 2.5})
    assert changed.json()["concurrency"] == 7
    stopped = (await ours.post(f"{url}/stop", json={"force": True})).json()
    assert stopped["counts"]["STOPPED"] == 4
    resumed = (await ours.post(f"{url}/resume", json={"task_ids": ["t1"]})).json()
    assert resumed["run"]["counts"]["PENDING"] == 1
    refused = await ours.delete(url)
    assert (refused.status_code, refused.json()["error"]["exit_code"]) == (422, 1)
    await ours.post(f"{url}/stop")
    stage.conclude(run_id)
    assert (await ours.delete(url)).status_code == 204
    assert (await ours.get(url)).status_code == 404


async def test_a_run_that_has_cost_what_it_may_does_not_pretend_to_go_on(
    stage: Stage, ours: httpx.AsyncClient
) -> None:
    run_id = stage.add_run(tasks=3, concurrency=1, max_cost=2.0)
    stage.finish(stage.lease(run_id)[0], cost=2.5)
    stage.lease(run_id)  # sees that the limit is reached
    stage.conclude(run_id)
    url = f"/v1/runs/{run_id}"
    assert (await ours.get(url)).json()["counts"]["STOPPED"] == 2
    for verb in ("resume", "retry"):
        refused = await ours.post(f"{url}/{verb}", json={})
        error = refused.json()["error"]
        assert (refused.status_code, error["cause"]) == (422, "max_cost")
        assert "$2.50 of --max-cost $2.00" in error["message"]
        assert f"valk run update {run_id[:8]} --max-cost N" in error["message"]
    (await ours.patch(url, json={"max_cost": 4})).raise_for_status()
    resumed = (await ours.post(f"{url}/resume", json={})).raise_for_status().json()
    assert resumed["run"]["counts"]["PENDING"] == 2


async def test_pages_of_runs_follow_the_cursor(stage: Stage, ours: httpx.AsyncClient) -> None:
    ids = [stage.add_run(created_at=float(number)) for number in range(5)]
    seen: list[str] = []
    cursor: str | None = None
    while True:
        params = {"limit": 2, "order": "asc", **({"cursor": cursor} if cursor else {})}
        page = (await ours.get("/v1/runs", params=params)).json()
        seen += [run["id"] for run in page["runs"]]
        cursor = page["cursor"]
        if cursor is None:
            break
    assert seen == ids


async def test_what_a_finished_run_left(stage: Stage, ours: httpx.AsyncClient) -> None:
    run_id = stage.finished_run()
    url = f"/v1/runs/{run_id}"
    trials = (await ours.get(f"{url}/trials", params={"states": ["FINISHED"], "limit": 1})).json()
    assert (trials["total"], trials["trials"][0]["task_id"]) == (2, "t0")
    attempts = (await ours.get(f"{url}/attempts", params={"task_id": "t1"})).json()
    assert [one["outcome"] for one in attempts] == ["graded"]
    assert (await ours.get(f"{url}/errors")).json() == []
    results = (await ours.post(f"{url}/results", json={})).json()
    assert results["run"]["id"] == run_id if "run" in results else results
    log = await ours.get(f"{url}/log", params={"task_id": "t0"})
    assert (log.text, log.headers["content-type"]) == ("log of t0\n", "text/plain; charset=utf-8")
    with tarfile.open(fileobj=io.BytesIO((await ours.post(f"{url}/outputs", json={})).content)) as tar:
        files = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
    assert files == {
        "t0/attempt.log": b"log of t0\n",
        "t0/answer.txt": b"answer to t0",
        "t1/attempt.log": b"log of t1\n",
        "t1/answer.txt": b"answer to t1",
    }
    some = await ours.post(f"{url}/outputs", json={"task_ids": ["t1"]})
    with tarfile.open(fileobj=io.BytesIO(some.content)) as tar:
        assert tar.getnames() == ["t1/attempt.log", "t1/answer.txt"]
    lines = (await ours.post(f"{url}/logs", json={"search": "T1"})).text.splitlines()
    assert len(lines) == 1 and '"log of t1"' in lines[0]


MISTAKES: list[tuple[str, str, object, int, str]] = [
    ("POST", "/v1/runs", {"agent": "a", "benchmark": "b", "concurency": 2}, 400, "'concurrency'"),
    ("POST", "/v1/runs", {"agent": "a"}, 400, "benchmark"),
    ("POST", "/v1/runs", ["a"], 400, "Content-Type: application/json"),
    ("POST", "/v1/runs", {"agent": "a", "benchmark": "b", "trials": "3"}, 400, "trials"),
    ("POST", "/v1/runs", {"agent": "a\0", "benchmark": "b"}, 400, "NUL"),
    ("POST", "/v1/runs", {"agent": "a", "benchmark": "b", "trials": 1 << 70}, 400, "too large"),
    ("POST", "/v1/runs", {"agent": "oracle", "benchmark": "quickstar"}, 400, "quickstart"),
    ("GET", "/v1/runs?lable=x", None, 400, "'label'"),
    ("GET", "/v1/runs?limit=501", None, 400, "limit"),
    ("GET", "/v1/runs?cursor=nonsense", None, 400, "cursor"),
    ("GET", "/v1/runs/zzz", None, 404, "No run or job 'zzz'"),
    ("GET", "/v1/runs/abcdef", None, 404, "No run"),
    ("GET", "/v1/nowhere", None, 404, "address"),
    ("PUT", "/v1/runs", {}, 405, "method"),
    ("PATCH", "/v1/runs/abcdef", {}, 400, "nothing to change"),
    ("POST", "/v1/init", None, 405, "self-hosted"),
    ("PUT", "/v1/uploads/abc", None, 400, "digest"),
    ("DELETE", "/v1/secrets/none", None, 404, "none"),
    ("DELETE", "/v1/agents/none", None, 404, "none"),
]


async def test_mistakes_are_named(ours: httpx.AsyncClient) -> None:
    for method, path, body, status, words in MISTAKES:
        given = {} if body is None else {"json": body}
        answer = await ours.request(method, path, **given)  # type: ignore[arg-type]
        told = answer.json()["error"]
        assert (answer.status_code, set(told) >= {"type", "cause", "exit_code"}) == (status, True), told
        assert words in told["message"]


async def test_lone_surrogates_and_nan_are_refused(ours: httpx.AsyncClient) -> None:
    for body in (
        '{"agent": "\\ud800", "benchmark": "b"}',
        '{"agent": "a", "benchmark": "b", "max_cost": NaN}',
    ):
        answer = await ours.post("/v1/runs", content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code == 400, answer.text


async def test_two_different_keys_are_refused_and_either_header_works(
    stage: Stage, server: ApiServer
) -> None:
    async with client(server, None) as stranger:
        both = {"Authorization": f"Bearer {stage.ours}", "X-Api-Key": stage.theirs}
        assert (await stranger.get("/v1/me", headers=both)).status_code == 400
        me = (await stranger.get("/v1/me", headers={"X-Api-Key": stage.ours})).json()
    assert (me["org_id"], me["person"], me["mode"]) == ("default", "ada@example.org", "self-hosted")


def test_a_request_in_the_description_has_the_fields_of_the_verb() -> None:
    from dataclasses import fields

    from valkyrie.api.app import bare_app

    described = bare_app().openapi()["components"]["schemas"]["RunRequest"]
    assert list(described["properties"]) == [field.name for field in fields(RunRequest)]
    assert described["additionalProperties"] is False


async def test_gradings_are_listed_compared_and_switched(
    stage: Stage, ours: httpx.AsyncClient, theirs: httpx.AsyncClient
) -> None:
    run_id = stage.finished_run()
    url = f"/v1/runs/{run_id}"
    (own,) = (await ours.get(f"{url}/gradings")).raise_for_status().json()
    assert (own["number"], own["in_use"], own["state"]) == (0, True, "ended")
    compared = (await ours.get(f"{url}/gradings/compare", params={"a": 0, "b": 0})).raise_for_status().json()
    assert (compared["trials"], compared["same"], compared["changes"]) == (2, 2, [])
    assert (await ours.post(f"{url}/gradings/0/use")).json()["state"] == "FINISHED"
    assert (await ours.post(f"{url}/gradings/3/use")).status_code == 404
    refused = await ours.post(f"{url}/regrade", json={"task_ids": ["t0"], "dry_run": True})
    assert (refused.status_code, refused.json()["error"]["exit_code"]) == (422, 1)
    assert "t0: no work was kept of it" in refused.json()["error"]["message"]
    assert (await ours.post(f"{url}/regrade", json={"tets": "x"})).status_code == 400
    for path in ("regrade", "gradings/0/use"):
        assert (await theirs.post(f"{url}/{path}")).status_code == 404
