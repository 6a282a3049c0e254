"""Event streams: order, and going on after interruptions."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest

from tests.unit.client.canned import RUN, run, trial
from tests.unit.client.scripted_tracker import Answer, ScriptedTracker, refused, said
from valkyrie.client import RunChanged, TrialChanged, ValkyrieClient
from valkyrie.errors import InfrastructureError, UnknownError, UserError

EVENTS = f"/v1/runs/{RUN}/events"
END = b"event: end\nid: 9\ndata: {}\n\n"


def event(kind: str, version: int, data: Any) -> bytes:
    return f"event: {kind}\nid: {version}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n".encode()


async def all_events(client: ValkyrieClient, **options: Any) -> list[tuple[str, int]]:
    found = []
    async for one in client.events(RUN, **options):
        name = one.trial.task_id if isinstance(one, TrialChanged) else one.run.state
        found.append((name, one.version))
    return found


async def test_events_in_order_whatever_the_pieces(client: ValkyrieClient, tracker: ScriptedTracker) -> None:
    whole = (
        b": keep-alive\n\n"
        + event("trial", 2, trial("ä\u2028b\x85c"))
        + event("run", 2, run(2))
        + event("colour", 2, "blue")
        + event("run", 3, run(3, "FINISHED"))
        + END
    )
    tracker.on("GET", EVENTS, Answer([whole[at : at + 7] for at in range(0, len(whole), 7)]))
    assert await all_events(client) == [("ä\u2028b\x85c", 2), ("IN_PROGRESS", 2), ("FINISHED", 3)]
    assert tracker.asked[0].query == [("trials", "true")]
    assert tracker.asked[0].headers["accept"] == "text/event-stream"


async def test_a_lost_stream_goes_on_after_the_last_whole_version(
    client: ValkyrieClient, tracker: ScriptedTracker
) -> None:
    first = Answer([event("run", 4, run(4)), event("trial", 5, trial("a")), b"event: tri"], cut=True)
    second = Answer([event("trial", 5, trial("a")), event("trial", 5, trial("b")), event("run", 5, run(5))])
    third = Answer([event("run", 6, run(6, "FINISHED")), END])
    tracker.on("GET", EVENTS, first, refused("StoreError", 503), second, third)
    told = [("a", 5), ("a", 5), ("b", 5)]
    line: list[str | None] = []
    client.on_line(line.append)
    assert await all_events(client, after=3) == [
        ("IN_PROGRESS", 4),
        *told,
        ("IN_PROGRESS", 5),
        ("FINISHED", 6),
    ]
    assert [asked.headers["last-event-id"] for asked in tracker.asked] == ["3", "4", "4", "5"]
    assert line[1::2] == [None, None] and all(lost and tracker.url in lost for lost in line[::2])


async def test_the_same_view_is_not_told_twice(client: ValkyrieClient, tracker: ScriptedTracker) -> None:
    answers = [Answer([event("run", 4, run(4))]), Answer([event("run", 4, run(4))]), Answer([END])]
    tracker.on("GET", EVENTS, *answers)
    assert await all_events(client, trials=False) == [("IN_PROGRESS", 4)]


async def test_following_survives_a_restart(tracker: ScriptedTracker) -> None:
    hold = threading.Event()
    tracker.on("GET", EVENTS, Answer([event("run", 1, run(1))], hold=hold))
    seen: list[int] = []
    async with ValkyrieClient(tracker.url, patience=60) as client:

        async def follow() -> None:
            async for view in client.follow(RUN):
                seen.append(view.version)

        following = asyncio.create_task(follow())
        while not seen:
            await asyncio.sleep(0.01)
        hold.set()
        await asyncio.to_thread(tracker.leave)
        await asyncio.sleep(0.3)
        assert not following.done()
        tracker.on("GET", EVENTS, Answer([event("run", 2, run(2, "STOPPED")), END]))
        await asyncio.to_thread(tracker.begin)
        await following
    assert seen == [1, 2]


async def test_a_stream_nobody_goes_on_with_is_given_up(tracker: ScriptedTracker) -> None:
    tracker.on("GET", EVENTS, Answer([event("run", 1, run(1))], cut=True), Answer(drop=True))
    async with ValkyrieClient(tracker.url, patience=0.5) as client:
        with pytest.raises(InfrastructureError, match="does not answer"):
            await all_events(client)


async def test_a_run_that_is_deleted_meanwhile(client: ValkyrieClient, tracker: ScriptedTracker) -> None:
    gone = refused("UnknownError", 404, "No run.")
    tracker.on("GET", EVENTS, Answer([event("run", 1, run(1))], cut=True), gone)
    assert [view.version async for view in client.follow(RUN)] == [1]
    with pytest.raises(UnknownError):
        _ = [view async for view in client.follow(RUN)]


@pytest.mark.parametrize("broken", [b"event: run\nid: 1\ndata: {\n\n", b"event: run\ndata: {}\n\n"])
async def test_events_that_cannot_be_read(
    client: ValkyrieClient, tracker: ScriptedTracker, broken: bytes
) -> None:
    tracker.on("GET", EVENTS, Answer([broken]))
    with pytest.raises(InfrastructureError, match="does not speak as a tracker"):
        await all_events(client)


async def test_wait_returns_the_end(client: ValkyrieClient, tracker: ScriptedTracker) -> None:
    tracker.on("GET", f"/v1/runs/{RUN}", said(run(1)))
    tracker.on(
        "GET", EVENTS, Answer([event("run", 1, run(1))], cut=True), Answer([event("run", 2, run(2, "ERROR"))])
    )
    assert (await client.wait(RUN, timeout=30)).state == "ERROR"


async def test_wait_honours_its_timeout_though_nobody_answers(tracker: ScriptedTracker) -> None:
    tracker.on("GET", f"/v1/runs/{RUN}", said(run(1)))
    tracker.on("GET", EVENTS, Answer([event("run", 1, run(1))], cut=True), Answer(drop=True))
    async with ValkyrieClient(tracker.url, patience=60) as client:
        with pytest.raises(TimeoutError, match=r"did not end within 0\.3 s"):
            await client.wait(RUN, timeout=0.3)


async def test_wait_does_not_hope_for_ever(
    client: ValkyrieClient, tracker: ScriptedTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("valkyrie.client.client.LOOK_EVERY_S", 0.05)
    monkeypatch.setattr("valkyrie.client.client.NOBODY_WORKS_S", 0.1)
    alone = run(1, executor="none", note="it waits for an executor")
    tracker.on("GET", f"/v1/runs/{RUN}", said(alone))
    hold = threading.Event()
    tracker.on("GET", EVENTS, Answer([event("run", 1, alone)], hold=hold))
    try:
        with pytest.raises(UserError, match="will not end by itself: it waits for an executor"):
            await client.wait(RUN)
    finally:
        hold.set()


async def test_events_are_typed(client: ValkyrieClient, tracker: ScriptedTracker) -> None:
    tracker.on("GET", EVENTS, Answer([event("run", 7, run(7, "FINISHED")), END]))
    (found,) = [one async for one in client.events(RUN)]
    assert isinstance(found, RunChanged) and found.run.version == found.version == 7
