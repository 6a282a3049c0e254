"""Jobs over HTTP: planned, started, listed, watched, steered, forgotten, and what is wrong with requests."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from tests.integration.api.stage import Event, Stage, read_events
from valkyrie.domain import TrialState

TWO = [{"agent": "oracle"}, {"agent": "nop"}]
REQUEST: dict[str, Any] = {
    "agents": TWO,
    "template": {"benchmark": "quickstart", "slice": "0:2", "trials": 2},
}


async def start(http: httpx.AsyncClient, **more: Any) -> dict[str, Any]:
    answer = await http.post("/v1/jobs", json={**REQUEST, **more})
    assert answer.status_code == 201, answer.text
    job: dict[str, Any] = answer.json()["job"]
    return job


def work_off(stage: Stage, run_id: str, *, score: float = 1.0) -> None:
    """What an executor would do with one of its runs."""
    for leased in stage.lease(run_id):
        stage.advance(leased)
        stage.finish(leased, before=TrialState.IN_PROGRESS, score=score)
    stage.conclude(run_id)


async def test_a_job_is_planned_started_and_looked_at(ours: httpx.AsyncClient) -> None:
    plan = (await ours.post("/v1/jobs/plan", json=REQUEST)).raise_for_status().json()
    assert [(one["agent"], len(one["trials"])) for one in plan["plans"]] == [("oracle", 4), ("nop", 4)]
    assert plan["problems"] == [] and (await ours.get("/v1/jobs")).json()["jobs"] == []
    job = await start(ours, name="first of all", concurrency=3, metadata={"team": "blue"}, time_limit=3600)
    assert (job["state"], job["started_by"], job["org"]) == ("queued", "ada@example.org", "default")
    assert (job["concurrency"], job["metadata"], job["trials"]) == (3, {"team": "blue"}, 2)
    assert [run["agent"] for run in job["runs"]] == ["oracle", "nop"]
    assert all(run["folder"] == "" for run in job["runs"]), "the server's folders are no caller's business"
    for ref in (job["id"], job["id"][:8], "first of all"):
        assert (await ours.get(f"/v1/jobs/{ref}")).json()["id"] == job["id"]
    assert (await ours.get("/v1/runs")).json()["total"] == 2


async def test_a_job_that_stops_when_it_is_decided(ours: httpx.AsyncClient) -> None:
    rule = {"stop_when_decided": True, "margin": 0.05}
    plan = (await ours.post("/v1/jobs/plan", json={**REQUEST, **rule})).raise_for_status().json()
    assert plan["stop_rule"] == {"error": 0.05, "margin": 0.05, "comparisons": 1}
    assert plan["plans"][0]["shows"]["tasks"] == 2
    job = await start(ours, **rule)
    assert (job["digest"], job["stop_rule"], job["decision"]) == (plan["digest"], plan["stop_rule"], None)
    for wrong in ({"margin": 2.0}, {"error_rate": 0.9}, {"agents": TWO[:1]}, {"stop_when_decided": False}):
        refused = await ours.post("/v1/jobs", json={**REQUEST, **rule, **wrong})
        assert refused.status_code in (400, 422), refused.text


async def test_a_repeated_start_with_one_key_is_one_job(ours: httpx.AsyncClient) -> None:
    headers = {"Idempotency-Key": "the same start"}
    ids = {(await ours.post("/v1/jobs", json=REQUEST, headers=headers)).json()["job"]["id"] for _ in range(2)}
    run = await ours.post("/v1/runs", json={"agent": "nop", "benchmark": "quickstart"}, headers=headers)
    assert len(ids) == 1 and run.status_code == 201, "a run of the same key is another thing"
    assert len((await ours.get("/v1/jobs")).json()["jobs"]) == 1


async def test_jobs_are_listed_page_by_page(stage: Stage, ours: httpx.AsyncClient) -> None:
    small = {"agents": [{"agent": "nop"}], "template": {"benchmark": "quickstart", "slice": "0:1"}}
    jobs = [await start(ours, **small, name=f"job {number % 2}") for number in range(5)]
    newest = [job["id"] for job in reversed(jobs)]
    found, cursor = [], None
    for _ in range(3):
        page = (
            await ours.get("/v1/jobs", params={"limit": 2, **({"cursor": cursor} if cursor else {})})
        ).json()
        found += [job["id"] for job in page["jobs"]]
        cursor = page["cursor"]
    assert found == newest and cursor is None
    work_off(stage, jobs[3]["runs"][0]["id"])
    for given, wanted in (
        ({"name": "job 1"}, [3, 1]),
        ({"since": jobs[3]["created_at"]}, [4, 3]),
        ({"states": ["completed", "failed"]}, [3]),
        ({"states": "queued", "limit": 2}, [4, 2]),
        ({"name": "nobody's"}, []),
    ):
        listed = (await ours.get("/v1/jobs", params=given)).json()["jobs"]
        assert [job["id"] for job in listed] == [jobs[at]["id"] for at in wanted], given


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"agents": []},
        {"agents": TWO},
        {"agents": ["oracle"]},
        {"agents": [{"agent": "oracle", "modle": "m"}], "template": {"benchmark": "quickstart"}},
        {"agents": TWO, "template": {"benchmark": "quickstart", "trails": 2}},
        {"agents": TWO, "template": {"benchmark": "quickstart", "agent": "nop"}},
        {"agents": TWO, "template": {"benchmark": "quickstart"}, "scenarios": ["x"]},
        {"agents": [*TWO, *TWO], "template": {"benchmark": "quickstart"}},
        {"agents": [{"agent": f"a{n}"} for n in range(51)], "template": {"benchmark": "quickstart"}},
        {"agents": TWO, "scenarios": ["x" * 1001]},
        {"agents": TWO, "scenarios": "sum-of-squares"},
        {**REQUEST, "concurrency": 0},
        {**REQUEST, "concurrency": 10**9},
        {**REQUEST, "time_limit": -1},
        {**REQUEST, "time_limit": 1e300},
        {**REQUEST, "name": ""},
        {**REQUEST, "name": "x" * 201},
        {**REQUEST, "name": "a\0b"},
        {**REQUEST, "metadata": {f"k{n}": "v" for n in range(65)}},
        {**REQUEST, "metadata": {"k": "v" * 1001}},
        {**REQUEST, "metadata": {"k": 1}},
    ],
    ids=lambda body: str(body)[:60],
)
async def test_requests_that_are_no_jobs(ours: httpx.AsyncClient, body: dict[str, Any]) -> None:
    for path in ("/v1/jobs", "/v1/jobs/plan"):
        refused = await ours.post(path, json=body)
        assert refused.status_code == 400, refused.text
        assert refused.json()["error"]["exit_code"] == 2
    assert (await ours.get("/v1/jobs")).json()["jobs"] == []


async def test_everything_is_stored_or_nothing(ours: httpx.AsyncClient) -> None:
    refused = await ours.post("/v1/jobs", json={**REQUEST, "agents": [*TWO, {"agent": "orcale"}]})
    assert refused.status_code in (400, 404, 422) and "orcale" in refused.text
    assert (await ours.get("/v1/runs")).json()["total"] == 0


async def test_a_job_is_stopped_resumed_grown_retried_and_deleted(
    stage: Stage, ours: httpx.AsyncClient
) -> None:
    job = await start(ours, name="steered")
    url = f"/v1/jobs/{job['id']}"
    refused = await ours.delete(url)
    assert refused.status_code == 422 and f"valk job stop {job['id'][:8]}" in refused.text
    stopped = (await ours.post(f"{url}/stop", json={"force": True})).json()
    assert [run["counts"]["STOPPED"] for run in stopped["runs"]] == [4, 4]
    resumed = await ours.post(f"{url}/resume", json={"concurrency": 7, "trials": 3})
    assert resumed.status_code == 200, resumed.text
    again = resumed.json()["job"]
    assert (again["concurrency"], [run["counts"]["PENDING"] for run in again["runs"]]) == (7, [6, 6])
    for run in again["runs"]:
        work_off(stage, run["id"])
    ended = (await ours.get(url)).json()
    assert ended["state"] == "completed"
    more = (await ours.post(f"{url}/resume", json={"agents": [{"agent": "nop", "model": "m"}]})).json()["job"]
    assert [(run["agent"], run["model"]) for run in more["runs"]][2] == ("nop", "m")
    assert [run["counts"]["PENDING"] for run in more["runs"]] == [0, 0, 6]
    assert (await ours.post(f"{url}/retry", json={"category": "agent", "concurrency": 9})).status_code == 200
    for body in ({"trials": 1}, {"category": "agent"}, {"concurrency": 0}, {"agents": [{"agent": ""}]}):
        assert (await ours.post(f"{url}/resume", json=body)).status_code in (400, 404), body
    work_off(stage, more["runs"][2]["id"])
    assert (await ours.delete(url)).status_code == 204
    assert (await ours.get(url)).status_code == 404
    assert (await ours.get("/v1/runs")).json()["total"] == 0


async def watch(
    http: httpx.AsyncClient, job_id: str, *, most: int | None = None, **given: Any
) -> list[Event]:
    """Events to the end of the stream, or so many of them."""
    headers = {"Last-Event-ID": str(given.pop("last"))} if "last" in given else {}
    found: list[Event] = []
    url = f"/v1/jobs/{job_id}/events"
    async with asyncio.timeout(60), http.stream("GET", url, params=given, headers=headers) as response:
        assert response.status_code == 200, await response.aread()
        async for event in read_events(response):
            found.append(event)
            if len(found) == most:
                break
    return found


async def test_a_watched_job_changes_with_its_runs(stage: Stage, ours: httpx.AsyncClient) -> None:
    job = await start(ours)
    first = (await watch(ours, job["id"][:8], most=1))[0]
    assert (first.name, first.id, first.data["state"]) == ("job", job["version"], "queued")
    watching = asyncio.create_task(watch(ours, job["id"], last=first.id))
    for run in job["runs"]:
        work_off(stage, run["id"], score=1.0 if run["agent"] == "oracle" else 0.0)
    events = await watching
    assert [event.name for event in events[-2:]] == ["job", "end"]
    assert {event.name for event in events[:-1]} == {"job"}
    ids = [event.id for event in events]
    assert ids == sorted(ids) and ids[-1] == events[-2].data["version"]
    last = events[-2].data
    assert last["state"] == "completed"
    assert [run["score"]["passed"] for run in last["runs"]] == [4, 0]
    again = await watch(ours, job["id"])
    assert [event.name for event in again] == ["job", "end"]


async def test_a_run_and_a_job_are_watched_side_by_side(stage: Stage, ours: httpx.AsyncClient) -> None:
    job = await start(ours)
    run = job["runs"][0]["id"]

    async def watch_run() -> str:
        async with asyncio.timeout(60), ours.stream("GET", f"/v1/runs/{run}/events") as response:
            return [event.name async for event in read_events(response)][-1]

    both = asyncio.gather(watch_run(), watch(ours, job["id"]))
    for one in job["runs"]:
        work_off(stage, one["id"])
    ended, events = await both
    assert (ended, events[-1].name) == ("end", "end")


async def test_what_is_deleted_while_it_is_watched_ends_the_stream(
    stage: Stage, ours: httpx.AsyncClient
) -> None:
    job = await start(ours)
    async with asyncio.timeout(60), ours.stream("GET", f"/v1/jobs/{job['id']}/events") as response:
        events = read_events(response)
        assert (await anext(events)).name == "job"
        await ours.post(f"/v1/jobs/{job['id']}/stop", json={"force": True})
        for run in job["runs"]:
            stage.conclude(run["id"])
        assert (await ours.delete(f"/v1/jobs/{job['id']}")).status_code == 204
        rest = [event async for event in events]
    assert all(event.name in ("job", "end") for event in rest)


@pytest.mark.parametrize("words", [{"after": -1}, {"last": "x"}, {"last": "9" * 20}, {"trials": "true"}])
async def test_streams_that_cannot_be(ours: httpx.AsyncClient, words: dict[str, Any]) -> None:
    job = await start(ours)
    headers = {"Last-Event-ID": words.pop("last")} if "last" in words else {}
    refused = await ours.get(f"/v1/jobs/{job['id']}/events", params=words, headers=headers)
    assert refused.status_code == 400


async def test_a_job_of_another_organisation_is_none(
    ours: httpx.AsyncClient, theirs: httpx.AsyncClient
) -> None:
    job = await start(ours, name="shared name")
    for ref in (job["id"], job["id"][:8], "shared name"):
        for method, tail in (
            ("GET", ""),
            ("GET", "/events"),
            ("DELETE", ""),
            ("POST", "/stop"),
            ("POST", "/resume"),
            ("POST", "/retry"),
        ):
            answer = await theirs.request(method, f"/v1/jobs/{ref}{tail}")
            assert answer.status_code == 404, (method, tail, answer.text)
            assert "ada@" not in answer.text and "quickstart" not in answer.text
    assert (await theirs.get("/v1/jobs", params={"name": "shared name"})).json()["jobs"] == []
    their_own = await start(theirs, name="shared name")
    assert (await ours.get("/v1/jobs/shared name")).json()["id"] == job["id"]
    assert (await theirs.get("/v1/jobs/shared name")).json()["id"] == their_own["id"]


@pytest.mark.parametrize("path", ["/etc", "../..", "./home", "~", "file:///etc"])
async def test_paths_of_the_server_cannot_be_named(ours: httpx.AsyncClient, path: str) -> None:
    for body in (
        {"agents": [{"agent": path}], "template": {"benchmark": "quickstart"}},
        {"agents": TWO, "template": {"benchmark": path}},
        {"agents": TWO, "scenarios": [f"{path}/passwd"]},
    ):
        answer = await ours.post("/v1/jobs", json=body)
        assert answer.status_code in (400, 404, 422), answer.text
        assert "root:" not in answer.text
    job = await start(ours)
    added = await ours.post(f"/v1/jobs/{job['id']}/resume", json={"agents": [{"agent": path}]})
    assert added.status_code in (400, 404, 422), added.text


@pytest.mark.parametrize("path", ["/v1/runs", "/v1/jobs"])
async def test_models_are_not_looked_for_on_the_servers_side(
    ours: httpx.AsyncClient, theirs: httpx.AsyncClient, path: str
) -> None:
    def body(**more: Any) -> dict[str, Any]:
        asked = {"benchmark": "quickstart", "slice": "0:1", **more}
        return {"agent": "nop", **asked} if path == "/v1/runs" else {"agents": TWO, "template": asked}

    for url in ("http://169.254.169.254/", "http://[fe80::1]:80/", "http://user:pw@models.example.com"):
        for http in (ours, theirs):
            refused = await http.post(path, json=body(model_url=url))
            assert refused.status_code in (400, 422), refused.text
    for url in ("http://127.0.0.1:9", "http://localhost:9", "http://[::1]:9/v1"):
        refused = await theirs.post(path, json=body(model_url=url))
        assert refused.status_code in (400, 422) and "loopback" in refused.text
    for url in ("http://10.0.0.7:9", "https://192.168.1.1/v1", "https://192.0.2.1/v1", "http://[fd00::7]:9"):
        refused = await theirs.post(path, json=body(model_url=url))
        assert refused.status_code in (400, 422) and "no public address" in refused.text
    for given in ({"env_vars": {"A B": "c"}}, {"env_vars": {"A": 1}}, {"agent_timeout": 0}, {"model_url": 5}):
        assert (await ours.post(path, json=body(**given))).status_code == 400, given
    fine = body(model_url="https://8.8.8.8/v1", env_vars={"A": "b"}, agent_timeout=5, default_agent_timeout=9)
    started = await theirs.post(path, json=fine)
    assert started.status_code == 201, started.text
    run = started.json()["run"] if path == "/v1/runs" else started.json()["job"]["runs"][1]
    settings = run["arguments"]["settings"]
    assert (settings["model_url"], settings["env_vars"]) == ("https://8.8.8.8/v1", {"A": "b"})
    assert (settings["agent_timeout"], settings["default_agent_timeout"]) == (5, 9)


async def test_a_run_that_has_cost_what_it_may_does_not_hold_up_the_others(
    stage: Stage, ours: httpx.AsyncClient
) -> None:
    job = await start(ours, template={**REQUEST["template"], "max_cost": 2.0}, concurrency=1)
    dear = job["runs"][0]["id"]
    stage.finish(stage.lease(dear)[0], cost=3.0)
    await ours.post(f"/v1/jobs/{job['id']}/stop", json={"force": True})
    for run in job["runs"]:
        stage.conclude(run["id"])
    resumed = (await ours.post(f"/v1/jobs/{job['id']}/resume", json={})).raise_for_status().json()
    assert [run["counts"]["STOPPED"] for run in resumed["job"]["runs"]] == [3, 0]
    assert any(f"valk run update {dear[:8]} --max-cost N" in notice for notice in resumed["notices"])
