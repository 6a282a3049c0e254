"""Logs over HTTP: whole characters, nothing twice, and on after an interruption."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.client.canned import RUN, attempt
from tests.unit.client.scripted_tracker import Answer, ScriptedTracker, refused, said
from valkyrie.client import ValkyrieClient
from valkyrie.errors import UserError
from valkyrie.views import LogQuery

LOG, ATTEMPTS = f"/v1/runs/{RUN}/log", f"/v1/runs/{RUN}/attempts"


async def read(client: ValkyrieClient, **options: Any) -> str:
    return "".join([piece async for piece in client.logs(RUN, "a/b", **options)])


async def test_a_log_whatever_its_pieces(client: ValkyrieClient, tracker: ScriptedTracker) -> None:
    whole = "grün 🌱\n".encode() + b"half \xf0\x9f"
    tracker.on("GET", ATTEMPTS, said([attempt(1), attempt(2)]))
    tracker.on("GET", LOG, Answer([whole[at : at + 1] for at in range(len(whole))]))
    assert await read(client, k=1) == "grün 🌱\nhalf \ufffd"
    assert tracker.requests("GET", LOG)[0].query == [("task_id", "a/b"), ("k", "1"), ("attempt", "2")]


async def test_an_interrupted_log_goes_on_where_it_was(
    client: ValkyrieClient, tracker: ScriptedTracker
) -> None:
    tracker.on("GET", ATTEMPTS, said([attempt(1)]))
    parts = [Answer(["ä one ".encode()], cut=True), Answer(["ä one two ".encode(), b"thr"], cut=True)]
    tracker.on("GET", LOG, *parts, Answer(drop=True), Answer(["ä one two three".encode()]))
    assert await read(client) == "ä one two three"
    assert {tuple(asked.query) for asked in tracker.requests("GET", LOG)} == {
        (("task_id", "a/b"), ("k", "0"), ("attempt", "1"))
    }


async def test_following_stays_with_the_attempt(client: ValkyrieClient, tracker: ScriptedTracker) -> None:
    tracker.on("GET", ATTEMPTS, said([attempt(1, None)]), said([attempt(1), attempt(2, None)]))
    tracker.on("GET", LOG, Answer([b"one "], cut=True), Answer([b"one two"]))
    assert await read(client, follow=True) == "one two"
    wanted = [("task_id", "a/b"), ("k", "0"), ("attempt", "1"), ("follow", "true")]
    assert [asked.query for asked in tracker.requests("GET", LOG)] == [wanted, wanted]


async def test_what_the_tracker_says_of_a_log_is_raised(
    client: ValkyrieClient, tracker: ScriptedTracker
) -> None:
    tracker.on("GET", ATTEMPTS, said([]))
    tracker.on("GET", LOG, refused("UserError", 422, "Task 'a/b' has not been attempted yet."))
    with pytest.raises(UserError, match="not been attempted"):
        await read(client)


def line(task_id: str, text: str, number: int = 1) -> bytes:
    return json.dumps({"task_id": task_id, "k": 0, "attempt": number, "text": text}).encode() + b"\n"


async def test_logs_of_a_run_are_not_given_twice(client: ValkyrieClient, tracker: ScriptedTracker) -> None:
    first = Answer([line("a", "one"), line("b", "eins"), line("a", "")], cut=True)
    again = Answer(
        [line("b", "eins"), line("a", "one"), line("a", ""), line("a", "one"), line("b", "zwei", 2)]
    )
    tracker.on("POST", f"/v1/runs/{RUN}/logs", first, again)
    query = LogQuery(search="o", follow=True)
    found = [(piece.task_id, piece.attempt, piece.text) async for piece in client.run_logs(RUN, query)]
    assert found[:3] == [("a", 1, "one"), ("b", 1, "eins"), ("a", 1, "")]
    assert found[3:] == [("a", 1, "one"), ("b", 2, "zwei")]
    assert tracker.asked[0].json == {"search": "o", "follow": True}
