"""Event streams: everything once, in order, resumed where they broke off, and cheap when many watch."""

from __future__ import annotations

import asyncio
import itertools
import socket
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack

import httpx
import pytest
from sqlalchemy import Connection

from tests.integration.api.stage import Event, Stage, client, read_events, serving
from valkyrie.api.capacity import ApiSettings
from valkyrie.api.server import ApiServer
from valkyrie.domain import TrialState
from valkyrie.store import tenants


async def watch(
    http: httpx.AsyncClient,
    run_id: str,
    until: Callable[[Event], bool] = lambda event: event.name == "end",
    **given: object,
) -> list[Event]:
    """Events up to the one that satisfies `until`."""
    headers = {"Last-Event-ID": str(given.pop("last"))} if "last" in given else {}
    found: list[Event] = []
    url = f"/v1/runs/{run_id}/events"
    async with asyncio.timeout(60), http.stream("GET", url, params=given, headers=headers) as response:
        assert response.status_code == 200
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        async for event in read_events(response):
            found.append(event)
            if until(event):
                break
    return found


def names(events: list[Event]) -> list[str]:
    return [event.name for event in events]


async def test_an_ended_run_says_so_and_closes(stage: Stage, ours: httpx.AsyncClient) -> None:
    run_id = stage.finished_run(tasks=3)
    url = f"/v1/runs/{run_id[:8]}/events"
    async with asyncio.timeout(60), ours.stream("GET", url) as response:
        plain = [event async for event in read_events(response)]
    assert names(plain) == ["run", "end"]
    whole = await watch(ours, run_id, trials=True)
    assert names(whole) == ["trial"] * 3 + ["run", "end"]
    assert {event.data["task_id"] for event in whole[:3]} == {"t0", "t1", "t2"}
    assert whole[3].data["score"]["final_score"] == 1.0


async def test_changes_come_as_they_happen_and_the_run_after_its_trials(
    stage: Stage, ours: httpx.AsyncClient
) -> None:
    run_id = stage.add_run(tasks=2)
    seen: list[Event] = []
    first = asyncio.Event()

    def until(event: Event) -> bool:
        seen.append(event)
        if event.name == "run":
            first.set()
        return event.name == "end"

    watching = asyncio.create_task(watch(ours, run_id, until, trials=True))
    await first.wait()
    for leased in stage.lease(run_id):
        stage.advance(leased)
        stage.finish(leased, before=TrialState.IN_PROGRESS)
    stage.conclude(run_id)
    events = await watching
    assert names(events)[0] == "run", "trials nothing happened to yet are no news"
    assert names(events)[-2:] == ["run", "end"]
    last = {event.data["task_id"]: event.data["state"] for event in events if event.name == "trial"}
    assert last == {"t0": "FINISHED", "t1": "FINISHED"}
    ids = [event.id for event in events]
    assert ids == sorted(ids)
    assert events[-1].id == events[-2].data["version"]


@pytest.mark.parametrize("how", ["header", "query"])
async def test_a_broken_stream_goes_on_where_it_was(stage: Stage, ours: httpx.AsyncClient, how: str) -> None:
    run_id = stage.add_run(tasks=4)
    before = await watch(ours, run_id, lambda event: event.name == "run", trials=True)
    assert names(before) == ["run"]
    leased = stage.lease(run_id)
    seen = before[-1].id
    stage.finish(leased[2])
    given = {"last": seen, "after": 10**6} if how == "header" else {"after": seen}
    after = await watch(ours, run_id, lambda event: event.name == "run", trials=True, **given)
    states = {event.data["task_id"]: event.data["state"] for event in after if event.name == "trial"}
    assert states == {"t0": "BUILDING", "t1": "BUILDING", "t2": "FINISHED", "t3": "BUILDING"}
    nothing = await watch(ours, run_id, lambda event: event.name == "run", trials=True, after=after[-1].id)
    assert names(nothing) == ["run"]


async def test_a_stream_cut_anywhere_loses_no_trial(stage: Stage, ours: httpx.AsyncClient) -> None:
    run_id = stage.finished_run(tasks=6)
    whole = await watch(ours, run_id, trials=True)
    final = {event.data["task_id"] for event in whole if event.name == "trial"}
    for cut in range(1, len(whole)):
        got = whole[:cut]
        rest = await watch(ours, run_id, trials=True, last=got[-1].id)
        assert {e.data["task_id"] for e in [*got, *rest] if e.name == "trial"} == final


async def test_many_watchers_see_the_same_end(stage: Stage, server: ApiServer) -> None:
    run_id = stage.add_run(tasks=20)
    limits = httpx.Limits(max_connections=None)
    headers = {"Authorization": f"Bearer {stage.ours}"}
    async with httpx.AsyncClient(
        verify=False, base_url=server.url, headers=headers, limits=limits, timeout=60
    ) as http:
        ready = asyncio.Semaphore(0)

        def until(event: Event) -> bool:
            if event.name == "run":
                ready.release()
            return event.name == "end"

        watching = [asyncio.create_task(watch(http, run_id, until, trials=n % 2 == 0)) for n in range(40)]
        for _ in watching:
            await ready.acquire()
        metrics = (await http.get("/metrics")).text
        assert 'valkyrie_streams{kind="watchers"} 40.0' in metrics
        for leased in stage.lease(run_id):
            await asyncio.to_thread(stage.finish, leased)
        stage.conclude(run_id)
        for number, events in enumerate(await asyncio.gather(*watching)):
            states = {e.data["task_id"]: e.data["state"] for e in events if e.name == "trial"}
            assert set(states.values()) == ({"FINISHED"} if number % 2 == 0 else set())
            assert len(states) == (20 if number % 2 == 0 else 0)
            assert events[-2].data["counts"]["FINISHED"] == 20


async def test_hundreds_who_come_at_once_are_let_in_and_looked_up_together(
    stage: Stage, server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = stage.add_run(tasks=2)
    reading = stage.tracker_app.store.reading
    looks, all_are_there = itertools.count(), threading.Event()

    def held_reading(*patience: float) -> AbstractContextManager[Connection]:
        next(looks)
        assert all_are_there.wait(60)
        return reading(*patience)

    monkeypatch.setattr(stage.tracker_app.store, "reading", held_reading)
    host, port = server.url.removeprefix("http://").split(":")
    head = f"GET /v1/runs/{run_id}/events HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Api-Key: {stage.ours}\r\n\r\n"

    async def begin() -> asyncio.StreamReader:
        reader, writer = await asyncio.open_connection(host, int(port))
        stack.callback(writer.close)
        writer.write(head.encode())
        return reader

    async with asyncio.timeout(60):
        with ExitStack() as stack:
            watching = [await begin() for _ in range(300)]
            async with httpx.AsyncClient(verify=False, base_url=server.url, timeout=60) as http:
                await http.get("/")  # who came before this one has been heard when it is answered
            all_are_there.set()
            told = [await reader.readuntil(b"event: run") for reader in watching]
    assert {one.partition(b"\r\n")[0] for one in told} == {b"HTTP/1.1 200 OK"}
    assert next(looks) < 30


async def test_a_slow_watcher_gets_the_newest_state_and_no_backlog(stage: Stage) -> None:
    run_id = stage.add_run(tasks=120)
    async with serving(stage, ApiSettings(update_every_s=0.01)) as server, client(server, stage.ours) as http:
        url = f"/v1/runs/{run_id}/events"
        async with asyncio.timeout(60), http.stream("GET", url, params={"trials": True}) as response:
            events = read_events(response)
            async for event in events:
                if event.name == "run":
                    break
            for leased in stage.lease(run_id):  # it reads nothing meanwhile
                await asyncio.to_thread(stage.finish, leased)
            stage.conclude(run_id)
            rest = [event async for event in events]
    states = {event.data["task_id"]: event.data["state"] for event in rest if event.name == "trial"}
    assert (len(states), set(states.values())) == (120, {"FINISHED"})
    assert names(rest)[-2:] == ["run", "end"]


async def test_a_quiet_stream_says_that_it_lives_and_a_deleted_run_ends_it(stage: Stage) -> None:
    run_id = stage.add_run(tasks=1)
    async with serving(stage, ApiSettings(keep_alive_s=0.05)) as server, client(server, stage.ours) as http:
        url = f"/v1/runs/{run_id}/events"
        async with asyncio.timeout(60), http.stream("GET", url) as response:
            lines = response.aiter_lines()
            comments = 0
            while comments < 3:
                comments += (await anext(lines)) == ": keep-alive"
            await http.post(f"/v1/runs/{run_id}/stop", json={"force": True})
            stage.conclude(run_id)
            assert "event: end" in [line async for line in lines]


async def test_a_stream_ends_when_its_key_is_revoked(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("valkyrie.api.context.REMEMBER_S", 0.0)
    run_id = stage.add_run()
    async with serving(stage, ApiSettings(keep_alive_s=0.05)) as server, client(server, stage.ours) as http:
        async with asyncio.timeout(60), http.stream("GET", f"/v1/runs/{run_id}/events") as response:
            events = read_events(response)
            assert (await anext(events)).name == "run"
            with stage.tracker_app.store.writing() as connection:
                tenants.revoke_key(connection, stage.ours.split("_")[1], 1.0)
            assert [event async for event in events] == []
        assert (await http.get("/v1/me")).status_code == 401


async def test_a_watcher_that_takes_nothing_is_dropped(stage: Stage) -> None:
    run_id = stage.add_run(arguments={"long": "x" * 400_000})
    settings = ApiSettings(stuck_s=0.2, update_every_s=0.01)
    async with serving(stage, settings) as server:
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as deaf:
            lines = [f"GET /v1/runs/{run_id}/events HTTP/1.1", "Host: 127.0.0.1", f"X-Api-Key: {stage.ours}"]
            deaf.sendall("\r\n".join([*lines, "", ""]).encode())
            seats = server.app.state.context.lanes.watchers
            async with asyncio.timeout(60):
                while not seats.taken:
                    await asyncio.sleep(0.01)
                number = 0
                while seats.taken:  # until everything between it and us is full
                    number += 1
                    await asyncio.to_thread(stage.relabel, run_id, str(number))


async def test_no_more_streams_than_there_are_places(stage: Stage) -> None:
    run_id = stage.add_run()
    async with serving(stage, ApiSettings(watchers=1)) as server, client(server, stage.ours) as http:
        async with http.stream("GET", f"/v1/runs/{run_id}/events") as response:
            events = read_events(response)
            assert (await anext(events)).name == "run"
            refused = await http.get(f"/v1/runs/{run_id}/events")
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) > 0


async def test_a_server_that_ends_ends_its_streams(stage: Stage) -> None:
    run_id = stage.add_run()
    async with serving(stage) as server, client(server, stage.ours) as http:
        async with asyncio.timeout(60), http.stream("GET", f"/v1/runs/{run_id}/events") as response:
            events = read_events(response)
            assert (await anext(events)).name == "run"
            await server.close()
            assert [event async for event in events] == []


async def test_a_wrong_last_event_id_is_refused(stage: Stage, ours: httpx.AsyncClient) -> None:
    run_id = stage.add_run()
    answer = await ours.get(f"/v1/runs/{run_id}/events", headers={"Last-Event-ID": "yesterday"})
    assert answer.status_code == 400
