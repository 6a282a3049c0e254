"""Bodies too large or too slow, clients that take nothing, followers that leave: nobody waits for them."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import json
import zipfile
from collections.abc import AsyncIterator

import httpx
import pytest

from tests.integration.api.stage import Stage, client, serving
from tests.live_folders import contents_below
from valkyrie.api.capacity import ApiSettings
from valkyrie.api.server import ApiServer
from valkyrie.client import ValkyrieClient
from valkyrie.errors import AccessError
from valkyrie.store import tenants
from valkyrie.views import LogQuery

CONTRACT = "name: mine\ninstall_cmd: 'true'\nrun_cmd: cat {problem_statement_path}\n"


def zipped(name: str, text: str) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr(name, text)
    return made.getvalue()


async def in_pieces(size: int, piece: int = 65536) -> AsyncIterator[bytes]:
    for _ in range(size // piece):
        yield b" " * piece


async def connect(server: ApiServer) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = server.url.removeprefix("http://").split(":")
    return await asyncio.open_connection(host, int(port))


def head(stage: Stage, method: str, path: str, *more: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", f"X-Api-Key: {stage.ours}", *more, "", ""]
    return "\r\n".join(lines).encode()


async def test_a_body_over_the_limit_is_413_announced_or_not(stage: Stage, ours: httpx.AsyncClient) -> None:
    announced = await ours.post("/v1/runs", content=b" " * (1 << 20) + b" ")
    chunked = await ours.post(
        "/v1/runs", content=in_pieces(2 << 20), headers={"Content-Type": "application/json"}
    )
    assert (announced.status_code, chunked.status_code) == (413, 413)
    assert chunked.json()["error"]["cause"] == "too_large"
    just_right = json.dumps({"agent": "a", "benchmark": "b", "label": "x" * 900_000}).encode()
    assert (await ours.post("/v1/runs", content=just_right)).status_code in (400, 422)


async def test_archives_have_a_limit_of_their_own(stage: Stage) -> None:
    async with (
        serving(stage, ApiSettings(upload_limit=3 << 20)) as server,
        client(server, stage.ours) as http,
    ):
        body = b"".join([b" " * 65536] * 32)
        digest = hashlib.sha256(body).hexdigest()
        fine = await http.put(f"/v1/uploads/{digest}", content=in_pieces(2 << 20))
        assert (fine.status_code, fine.json()) == (200, {"ref": f"upload:{digest}"})
        assert (await http.head(f"/v1/uploads/{digest}")).status_code == 200
        assert (await http.head(f"/v1/uploads/{'0' * 64}")).status_code == 404
        for content in (b" " * (4 << 20), in_pieces(4 << 20)):
            large = await http.put(f"/v1/uploads/{digest}", content=content)
            assert large.status_code == 413
        wrong = await http.put(f"/v1/uploads/{'0' * 64}", content=b"something else")
        assert (wrong.status_code, wrong.json()["error"]["cause"]) == (400, "digest")
    assert list((stage.tracker_app.data.root / "incoming").iterdir()) == []


async def test_an_agent_goes_in_and_comes_out(stage: Stage, ours: httpx.AsyncClient) -> None:
    contract = CONTRACT
    archive = zipped("mine/contract.yaml", contract)
    pushed = await ours.put("/v1/agents/mine", content=archive, params={"origin": "https://example.org/x@1"})
    assert pushed.status_code == 200, pushed.text
    assert (pushed.json()["name"], pushed.json()["origin"]) == ("mine", "https://example.org/x@1")
    assert [one["name"] for one in (await ours.get("/v1/agents")).json()] == ["mine"]
    back = await ours.get("/v1/agents/mine/archive")
    with zipfile.ZipFile(io.BytesIO(back.content)) as found:
        assert found.read("mine/contract.yaml").decode() == contract
    assert (await ours.delete("/v1/agents/mine")).status_code == 204
    assert (await ours.get("/v1/agents/mine/archive")).status_code == 404
    assert (await ours.put("/v1/agents/mine", content=b"no zip")).status_code in (400, 422)


async def test_secrets_are_kept_by_names_with_slashes_and_never_told(
    stage: Stage, ours: httpx.AsyncClient, theirs: httpx.AsyncClient
) -> None:
    value = "sk-planted-9f3e"
    assert (await ours.put("/v1/secrets/team/openai", json={"value": value})).status_code == 204
    listed = await ours.get("/v1/secrets")
    assert [(one["name"], one["created_by"]) for one in listed.json()] == [("team/openai", "ada@example.org")]
    assert (await theirs.get("/v1/secrets")).json() == []
    wrong = await ours.put("/v1/secrets/team/openai", json={"value": value, "valeu": value})
    bad = await ours.put("/v1/secrets/team/openai", json={"value": [value]})
    assert (wrong.status_code, bad.status_code) == (400, 400)
    assert value not in listed.text + wrong.text + bad.text
    assert not any(value.encode() in content for _, content in contents_below(stage.tracker_app.data.root))
    assert (await ours.delete("/v1/secrets/team/openai")).status_code == 204


async def test_a_body_that_comes_too_slowly_is_given_up(stage: Stage) -> None:
    async with serving(stage, ApiSettings(body_pause_s=0.2)) as server:
        reader, writer = await connect(server)
        writer.write(head(stage, "POST", "/v1/runs", "Content-Type: application/json", "Content-Length: 100"))
        writer.write(b"{")
        async with asyncio.timeout(60):
            answer = await reader.read()
        writer.close()
        await writer.wait_closed()
    assert b"408" in answer.split(b"\r\n")[0]
    assert b"too slowly" in answer


async def test_a_request_head_that_never_ends_is_cut(stage: Stage) -> None:
    server = ApiServer(stage.tracker_app, ApiSettings(), head_s=0.2)
    await server.start()
    try:
        reader, writer = await connect(server)
        writer.write(head(stage, "GET", "/v1/runs").removesuffix(b"\r\n"))
        with contextlib.suppress(ConnectionResetError):
            async with asyncio.timeout(60):
                assert await reader.read() == b""
        writer.close()
        async with client(server, stage.ours) as http:
            assert (await http.get("/v1/runs")).status_code == 200
    finally:
        await server.close()


async def test_slow_clients_hold_no_worker(stage: Stage) -> None:
    run_id = stage.finished_run(tasks=1)
    folder = stage.tracker_app.data.run(run_id).attempt("t0", 0, 1)
    (folder / "large").write_bytes(b"x" * (8 << 20))
    async with serving(stage, ApiSettings(downloads=60)) as server:
        slow = []
        for _ in range(40):  # more than any lane has threads
            reader, writer = await connect(server)
            lines = ("Content-Type: application/json", "Content-Length: 2")
            writer.write(head(stage, "POST", f"/v1/runs/{run_id}/outputs", *lines) + b"{}")
            await reader.readline()  # and not a byte more
            slow.append(writer)
        async with client(server, stage.ours) as http:
            assert (await http.get(f"/v1/runs/{run_id}")).status_code == 200
            assert (await http.post(f"/v1/runs/{run_id}/results", json={})).status_code == 200
        for writer in slow:
            writer.transport.abort()


async def test_a_client_that_takes_nothing_is_cut_off(stage: Stage) -> None:
    run_id = stage.finished_run(tasks=1)
    (stage.tracker_app.data.run(run_id).attempt("t0", 0, 1) / "large").write_bytes(b"x" * (32 << 20))
    async with serving(stage, ApiSettings(stuck_s=0.3)) as server:
        reader, writer = await connect(server)
        lines = ("Content-Type: application/json", "Content-Length: 2")
        writer.write(head(stage, "POST", f"/v1/runs/{run_id}/outputs", *lines) + b"{}")
        seats = server.app.state.context.lanes.downloads
        await until(lambda: seats.taken == 1)
        await until(lambda: seats.taken == 0)
        with pytest.raises((ConnectionResetError, BrokenPipeError, asyncio.IncompleteReadError)):
            await reader.readexactly(32 << 20)
        writer.transport.abort()


async def test_a_followed_log_grows_and_ends_with_its_attempt(stage: Stage, ours: httpx.AsyncClient) -> None:
    run_id = stage.add_run(tasks=1)
    (leased,) = stage.lease(run_id)
    stage.write_log(run_id, leased, "one\n")
    params = {"task_id": "t0", "follow": True}
    async with asyncio.timeout(60), ours.stream("GET", f"/v1/runs/{run_id}/log", params=params) as response:
        lines = response.aiter_lines()
        assert await anext(lines) == "one"
        stage.write_log(run_id, leased, "two\n")
        assert await anext(lines) == "two"
        stage.finish(leased)
        assert [line async for line in lines] == []


async def test_followers_have_places_of_their_own_and_give_them_back(stage: Stage) -> None:
    run_id = stage.add_run(tasks=1)
    (leased,) = stage.lease(run_id)
    stage.write_log(run_id, leased, "one\n")
    url, params = f"/v1/runs/{run_id}/log", {"task_id": "t0", "follow": True}
    async with serving(stage, ApiSettings(followers=1)) as server, client(server, stage.ours) as http:
        seats = server.app.state.context.lanes.followers
        async with http.stream("GET", url, params=params) as first:
            lines = first.aiter_lines()
            assert await anext(lines) == "one"
            second = await http.get(url, params=params)
            assert (second.status_code, int(second.headers["retry-after"]) > 0) == (503, True)
            assert (await http.get(url, params={"task_id": "t0"})).text == "one\n"
        await until(lambda: seats.taken == 0)  # whoever left is noticed while nothing is logged
        async with http.stream("POST", f"/v1/runs/{run_id}/logs", json={"follow": True}) as third:
            lines = third.aiter_lines()
            assert json.loads(await anext(lines))["text"] == "one"
            await server.close()  # which does not wait for the run to end
            with pytest.raises(httpx.RemoteProtocolError):  # so that nobody takes it for the log's end
                await anext(lines)


async def test_a_followed_log_breaks_off_when_its_key_is_revoked(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("valkyrie.api.context.REMEMBER_S", 0.0)
    run_id = stage.add_run(tasks=1)
    (leased,) = stage.lease(run_id)
    stage.write_log(run_id, leased, "one\n")
    async with serving(stage, ApiSettings(keep_alive_s=0.05)) as server:
        async with asyncio.timeout(60), ValkyrieClient(server.url, stage.ours) as tracker:
            lines = tracker.run_logs(run_id, LogQuery(follow=True))
            assert (await anext(lines)).text == "one"
            with stage.tracker_app.store.writing() as connection:
                tenants.revoke_key(connection, stage.ours.split("_")[1], 1.0)
            with pytest.raises(AccessError):
                await anext(lines)


async def until(condition: object) -> None:
    assert callable(condition)
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.02)
