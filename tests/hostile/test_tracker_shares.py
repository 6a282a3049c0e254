"""One organisation's greed, or its revoked key, beside everyone else's requests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import httpx
import pytest

from tests.integration.api.stage import Stage, client, serving
from valkyrie.api.capacity import ApiSettings
from valkyrie.store import tenants

pytestmark = pytest.mark.slow


@asynccontextmanager
async def tar_pit(full: asyncio.Event, enough: int) -> AsyncIterator[str]:
    """A service that takes connections and says nothing; `full` is set when it has enough of them."""
    held: list[asyncio.StreamWriter] = []

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held.append(writer)
        if len(held) >= enough:
            full.set()
        with contextlib.suppress(ConnectionError):
            await reader.read()

    server = await asyncio.start_server(hold, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for writer in held:
            writer.close()


async def test_questions_that_hang_leave_room_for_other_organisations(stage: Stage) -> None:
    stuck = asyncio.Event()
    plan = {"agent": "oracle", "benchmark": "quickstart", "slice": "0:1"}
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(serving(stage))
        greedy = await stack.enter_async_context(client(server, stage.ours))
        other = await stack.enter_async_context(client(server, stage.theirs))
        pit = await stack.enter_async_context(tar_pit(stuck, 12))
        question = {"benchmark": pit}
        asked = [asyncio.create_task(greedy.post("/v1/benchmarks/tasks", json=question)) for _ in range(30)]
        try:
            async with asyncio.timeout(60):
                await stuck.wait()
                answer = await other.post("/v1/runs/plan", json=plan)
            assert answer.status_code == 200, answer.text
            assert not any(task.done() and not task.exception() for task in asked)
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)


async def test_streams_of_one_leave_seats_for_another(stage: Stage) -> None:
    ours, theirs = stage.add_run(), stage.add_run(stage.their_org)
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(serving(stage, ApiSettings(watchers=4)))
        greedy = await stack.enter_async_context(client(server, stage.ours))
        other = await stack.enter_async_context(client(server, stage.theirs))
        for _ in range(3):
            watched = greedy.stream("GET", f"/v1/runs/{ours}/events")
            assert (await stack.enter_async_context(watched)).status_code == 200
        one_more = await greedy.get(f"/v1/runs/{ours}/events")
        assert (one_more.status_code, "your organisation" in one_more.text) == (503, True)
        watched = other.stream("GET", f"/v1/runs/{theirs}/events")
        assert (await stack.enter_async_context(watched)).status_code == 200


@pytest.mark.parametrize("whole", [False, True], ids=["one log", "all logs"])
async def test_a_followed_log_ends_when_its_key_is_revoked(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    monkeypatch.setattr("valkyrie.api.context.REMEMBER_S", 0.0)
    run_id = stage.add_run(tasks=1)
    (leased,) = stage.lease(run_id)
    stage.write_log(run_id, leased, "before\n")
    async with serving(stage, ApiSettings(keep_alive_s=0.05)) as server, client(server, stage.ours) as http:
        following = _follow(http, run_id, whole=whole)
        async with asyncio.timeout(60), following as response:
            texts = response.aiter_text()
            assert "before" in await anext(texts)
            with stage.tracker_app.store.writing() as connection:
                tenants.revoke_key(connection, stage.ours.split("_")[1], 1.0)
            with pytest.raises(httpx.RemoteProtocolError):  # cut off: nobody takes it for the log's end
                await anext(texts)


def _follow(
    http: httpx.AsyncClient, run_id: str, *, whole: bool
) -> contextlib.AbstractAsyncContextManager[httpx.Response]:
    if whole:
        return http.stream("POST", f"/v1/runs/{run_id}/logs", json={"follow": True})
    return http.stream("GET", f"/v1/runs/{run_id}/log", params={"task_id": "t0", "follow": True})
