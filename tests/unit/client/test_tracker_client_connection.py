"""What is sent, what is asked again, and what refusals become."""

from __future__ import annotations

import time
from typing import Any

import pytest

from sandboxes.retry import LONGEST_ASKED_S
from tests.unit.client.canned import RUN, run
from tests.unit.client.scripted_tracker import KEY, Answer, ScriptedTracker, refused, said
from valkyrie import errors
from valkyrie.client import ValkyrieClient
from valkyrie.errors import (
    AccessError,
    InfrastructureError,
    MissingSecretError,
    UnknownError,
    UsageError,
    ValkyrieError,
)
from valkyrie.views import RunFilter, RunRequest, TrialFilter

FETCH = f"/v1/runs/{RUN}"
LOST = Answer(drop=True)


async def test_the_key_goes_with_every_request_and_nowhere_else(
    client: ValkyrieClient, tracker: ScriptedTracker
) -> None:
    tracker.on("GET", FETCH, said(run()))
    await client.fetch(RUN)
    assert tracker.asked[0].headers["authorization"] == f"Bearer {KEY}"
    assert KEY not in repr(client) + repr(client.__dict__) and client.url in repr(client)
    tracker.on("GET", FETCH, refused("AccessError", 401, "Unknown API key."))
    with pytest.raises(AccessError, match="VALKYRIE_API_KEY") as caught:
        await client.fetch(RUN)
    assert KEY not in str(caught.value)


@pytest.mark.parametrize("key", ["schlüssel-4711", "two words 4711", "line\n4711"])
async def test_a_key_that_cannot_be_sent_is_not_quoted(tracker: ScriptedTracker, key: str) -> None:
    with pytest.raises(AccessError) as caught:
        ValkyrieClient(tracker.url, key)
    assert "4711" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["tracker.example.com", "ftp://x", "http://", "http://u:p@host", "http://h/?a=1", "http://h:99999"]
)
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(UsageError, match=r"address"):
        ValkyrieClient(url)


@pytest.mark.parametrize(
    ("kind", "status", "code"),
    [
        ("UnknownError", 404, 2),
        ("UsageError", 400, 2),
        ("ContractValidationError", 400, 2),
        ("BundleError", 422, 1),
        ("GraderError", 502, 1),
        ("StoreError", 503, 1),
        ("ValkyrieError", 500, 1),
        ("NobodyKnowsThisError", 500, 1),
        ("os", 500, 1),
    ],
)
async def test_errors_come_back_as_what_they_were(
    tracker: ScriptedTracker, kind: str, status: int, code: int
) -> None:
    tracker.on("GET", FETCH, refused(kind, status, "why it is so", cause="a_cause"))
    async with ValkyrieClient(tracker.url, patience=0.2) as client:
        with pytest.raises(ValkyrieError, match="why it is so") as caught:
            await client.fetch(RUN)
    expected = getattr(errors, kind) if kind in vars(errors) else ValkyrieError
    assert (type(caught.value), caught.value.cause, caught.value.exit_code) == (expected, "a_cause", code)


async def test_missing_secrets_keep_their_names(client: ValkyrieClient, tracker: ScriptedTracker) -> None:
    tracker.on("POST", "/v1/runs", refused("MissingSecretError", 422, missing={"KEY": "team/key"}))
    with pytest.raises(MissingSecretError) as caught:
        await client.start(RunRequest("a", "b"))
    assert caught.value.missing == {"KEY": "team/key"}


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (Answer(b"<html>hello</html>"), "does not speak as a tracker"),
        (Answer(b"<html>nothing here</html>", 404), "does not speak as a tracker"),
        (Answer(b"", 302, {"Location": "http://elsewhere.example/"}), "sends us to http://elsewhere"),
        (said({"id": "only"}), "Field required"),
        (said([]), "does not speak as a tracker"),
    ],
)
async def test_what_is_no_tracker(
    client: ValkyrieClient, tracker: ScriptedTracker, answer: Answer, expected: str
) -> None:
    tracker.on("GET", FETCH, answer)
    with pytest.raises(InfrastructureError, match=expected):
        await client.fetch(RUN)
    assert len(tracker.asked) == 1


async def test_keys_of_a_later_version_are_passed_over(
    client: ValkyrieClient, tracker: ScriptedTracker
) -> None:
    tracker.on("GET", FETCH, said(run(colour="blue")))
    found = await client.fetch(RUN)
    assert found.score.interval == (0.1, 0.9) and found.started_by == "ann"


async def test_reading_is_repeated(client: ValkyrieClient, tracker: ScriptedTracker) -> None:
    cut = Answer([b'{"id": '], cut=True)
    tracker.on("GET", FETCH, LOST, cut, refused("StoreError", 503), Answer(b"", 502), said(run()))
    assert (await client.fetch(RUN)).id == RUN
    assert len(tracker.asked) == 5


@pytest.mark.parametrize(("kind", "status"), [("BenchmarkError", 502), ("InfrastructureError", 503)])
async def test_what_fails_behind_the_tracker_is_not_repeated(
    client: ValkyrieClient, tracker: ScriptedTracker, kind: str, status: int
) -> None:
    tracker.on("POST", "/v1/runs/plan", refused(kind, status, "its service is broken", cause="service"))
    with pytest.raises(ValkyrieError, match="its service is broken"):
        await client.plan(RunRequest("a", "b"))
    assert len(tracker.asked) == 1


async def test_changes_are_not_repeated(client: ValkyrieClient, tracker: ScriptedTracker) -> None:
    tracker.on("POST", f"{FETCH}/stop", LOST)
    with pytest.raises(InfrastructureError, match="is not known: look"):
        await client.stop(RUN)
    tracker.on("POST", f"{FETCH}/resume", refused("StoreError", 503))
    with pytest.raises(errors.StoreError):
        await client.resume(RUN)
    tracker.on("DELETE", FETCH, LOST)
    with pytest.raises(InfrastructureError, match="is not known"):
        await client.delete(RUN)
    assert len(tracker.asked) == 3


async def test_a_start_is_repeated_under_one_key(client: ValkyrieClient, tracker: ScriptedTracker) -> None:
    tracker.on("POST", "/v1/runs", LOST, said({"run": run(), "notices": ["n"]}, 201))
    started = await client.start(RunRequest("oracle", "quickstart"))
    assert started.notices == ["n"]
    await client.start(RunRequest("oracle", "quickstart"))
    first, again, other = [asked.headers["idempotency-key"] for asked in tracker.asked]
    assert first == again != other and len(first) >= 8


async def test_nobody_answers(tracker: ScriptedTracker) -> None:
    tracker.leave()
    async with ValkyrieClient(tracker.url, KEY, patience=0.3) as client:
        with pytest.raises(InfrastructureError, match="TRACKER_SERVICE_URL") as caught:
            await client.stop(RUN)
    assert tracker.url in str(caught.value) and caught.value.cause == "tracker_unreachable"


async def test_a_request_that_never_arrived_is_repeated(tracker: ScriptedTracker) -> None:
    import asyncio

    tracker.on("POST", f"{FETCH}/stop", said(run(2, "STOPPING")))
    tracker.leave()
    async with ValkyrieClient(tracker.url, KEY, patience=60) as client:
        asking = asyncio.create_task(client.stop(RUN))
        await asyncio.sleep(0.15)
        await asyncio.to_thread(tracker.begin)
        assert (await asking).state == "STOPPING"


@pytest.mark.parametrize(
    ("asked", "seconds"), [(600, 600), ("Fri, 01 Jan 2100 00:00:00 GMT", LONGEST_ASKED_S)]
)
async def test_a_long_retry_after_is_not_slept_through(
    client: ValkyrieClient, tracker: ScriptedTracker, asked: object, seconds: float
) -> None:
    tracker.on("GET", FETCH, refused("InfrastructureError", 503, "later", cause="busy", retry_after=asked))
    began = time.monotonic()
    with pytest.raises(InfrastructureError, match="later") as caught:
        await client.fetch(RUN)
    assert caught.value.retry_after == seconds and time.monotonic() - began < 60


@pytest.mark.parametrize("ref", ["../me", "latest", "job/agent:a/b", "%2e", "a b&ref=x"])
async def test_words_that_are_no_ids_are_looked_up(
    client: ValkyrieClient, tracker: ScriptedTracker, ref: str
) -> None:
    tracker.on("GET", "/v1/runs/named", said(run()))
    tracker.on("GET", f"{FETCH}/errors", said([]))
    assert (await client.fetch(f" {ref} ")).id == RUN
    assert await client.errors(ref) == []
    asked = tracker.requests("GET", "/v1/runs/named")
    assert [one.query for one in asked] == [[("ref", ref)], [("ref", ref)]]


async def test_nothing_names_no_run(client: ValkyrieClient, tracker: ScriptedTracker) -> None:
    with pytest.raises(UsageError, match="A run is named by"):
        await client.fetch("  ")
    assert not tracker.asked


async def test_requests_say_no_more_than_they_must(client: ValkyrieClient, tracker: ScriptedTracker) -> None:
    tracker.on("POST", "/v1/runs", said({"run": run(), "notices": []}, 201))
    await client.start(RunRequest("a", "b", secrets={"X": "y"}, concurrency=5, task_ids=["t/1"]))
    assert tracker.asked[-1].json == {
        "agent": "a",
        "benchmark": "b",
        "secrets": {"X": "y"},
        "task_ids": ["t/1"],
    }
    tracker.on("POST", f"{FETCH}/retry", said({"run": run(), "notices": []}))
    await client.retry(RUN, category="agent")
    assert tracker.asked[-1].json == {"category": "agent"}
    tracker.on("PATCH", FETCH, said(run()))
    await client.update(RUN, label="x", max_cost=0.0)
    assert tracker.asked[-1].json == {"label": "x", "max_cost": 0.0}


async def test_filters_become_parameters(client: ValkyrieClient, tracker: ScriptedTracker) -> None:
    tracker.on("GET", "/v1/runs", said({"runs": [run()], "total": 1, "cursor": None}))
    query = RunFilter(agent="a&b", started_by=("ann", "bob"), newest_first=False, limit=7, cursor="c")
    assert (await client.list(query)).runs[0].id == RUN
    wanted = [("agent", "a&b"), ("started_by", "ann"), ("started_by", "bob"), ("order", "asc")]
    assert sorted(tracker.asked[-1].query) == sorted([*wanted, ("limit", "7"), ("cursor", "c")])
    tracker.on("GET", f"{FETCH}/trials", said({"trials": [], "total": 9}))
    assert await client.trials(RUN, TrialFilter(states=("ERROR", "STOPPED"), descending=True)) == ([], 9)
    assert tracker.asked[-1].query[:2] == [("states", "ERROR"), ("states", "STOPPED")]


async def test_secrets_travel_in_the_body(client: ValkyrieClient, tracker: ScriptedTracker) -> None:
    tracker.on("PUT", "/v1/secrets/team/key", Answer(status=204))
    await client.set_secret("team/key", "hunter2")
    asked = tracker.asked[0]
    assert asked.json == {"value": "hunter2"} and asked.path == "/v1/secrets/team/key"


async def test_every_view_can_be_read(client: ValkyrieClient, tracker: ScriptedTracker) -> None:
    plain: dict[str, Any] = {"entries": [], "executors": []}
    tracker.on("GET", "/v1/queue", said(plain))
    assert (await client.queue()).entries == []
    tracker.on("GET", "/v1/executor", said(None))
    assert await client.executor_status() is None
    tracker.on("GET", "/v1/me", said({"org_id": "o1", "org": "Team", "person": "ann", "mode": "hosted"}))
    assert (await client.me()).mode == "hosted"
    tracker.on("GET", "/health", said({"status": "ok", "version": "9"}))
    assert (await client.health())["version"] == "9"
    tracker.on("POST", f"{FETCH}/results", said({"final_evaluation": {}}))
    assert await client.results(RUN, task_ids=["a"]) == {"final_evaluation": {}}
    with pytest.raises(UnknownError):
        await client.errors(RUN)


async def test_nothing_is_configured() -> None:
    with pytest.raises(UsageError, match="TRACKER_SERVICE_URL"):
        ValkyrieClient.from_config()


async def test_the_environment_names_the_tracker(
    tracker: ScriptedTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACKER_SERVICE_URL", tracker.url)
    monkeypatch.setenv("VALKYRIE_API_KEY", KEY)
    tracker.on("GET", "/v1/agents", said([]))
    async with ValkyrieClient.from_config() as client:
        assert await client.agents() == []
    assert tracker.asked[0].headers["authorization"].endswith(KEY)
