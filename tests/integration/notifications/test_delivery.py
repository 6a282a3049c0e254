"""Messages from the outbox to real receivers: once, again, never twice, and never to the run's harm."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.notifications.notified_store import Stage
from tests.integration.notifications.receiver import Receiver, Reply
from valkyrie.domain import RunState
from valkyrie.errors import StoreError, UserError
from valkyrie.notifications.messages import verify
from valkyrie.notifications.outbox import Sender
from valkyrie.store import Store

KEY = "a-signing-key-hunter2"


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    store = Store(tmp_path / "v.db")
    writer = store.writer()
    yield Stage(store, writer)
    await writer.close()
    store.close()


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with Receiver().running() as running:
        yield running


def slack(*intervals: int) -> dict[str, Any]:
    return {"slack": {"secret": "SLACK", "intervals": list(intervals or (100,))}}


def webhook(receiver: Receiver, *intervals: int, key: str | None = None) -> dict[str, Any]:
    return {"webhook": {"url": receiver.url, "key": key, "intervals": list(intervals or (100,))}}


def texts(receiver: Receiver) -> list[str]:
    return [json.loads(one.body)["text"].splitlines()[0] for one in receiver.arrived]


async def test_an_ending_is_told_to_slack_and_signed_to_the_webhook(stage: Stage, receiver: Receiver) -> None:
    values = {"SLACK": receiver.url.replace("hook", "services/T0"), "KEY": KEY}
    run_id = stage.add(values, notify={**slack(), **webhook(receiver, key="KEY")})
    stage.end(run_id, n_finished=6, n_error=2, e_infrastructure=2)
    await stage.runner().run_once()
    by_path = {one.path: one for one in receiver.arrived}
    text = json.loads(by_path["/services/T0"].body)["text"]
    assert text.startswith("*Benchmark Complete* — swebench\n")
    assert "50.0 % to 75.0 %, depending on 2 ungraded trials — 2 errors: infrastructure 2; " in text
    assert "coverage 6/8 tasks graded, 75%" in text
    signed = by_path["/hook"]
    verify(signed.body, signed.headers, KEY)
    document = json.loads(signed.body)
    assert (document["event"], document["id"]) == ("run.finished", f"{run_id}:ended:1")
    assert document["run"]["links"] == {"artifacts": f"shelf://{run_id}/"}
    assert [(one.state, one.detail) for one in stage.told(run_id)] == [("done", "HTTP 200")] * 2
    assert stage.runs.ended == [run_id]


@pytest.mark.parametrize(("state", "header"), [(RunState.ERROR, "Error"), (RunState.STOPPED, "Stopped")])
async def test_every_ending_is_told(stage: Stage, receiver: Receiver, state: RunState, header: str) -> None:
    run_id = stage.add({"SLACK": receiver.url}, notify=slack(25))
    stage.end(run_id, state, error="no <room> left" if state == RunState.ERROR else None)
    await stage.runner().run_once()
    assert texts(receiver) == [f"*Benchmark {header}* — swebench"]


async def test_thresholds_are_told_once_over_retry_and_resume(stage: Stage, receiver: Receiver) -> None:
    run_id = stage.add({"SLACK": receiver.url}, notify=slack(25, 75))
    runner = stage.runner()
    for columns in ({"n_pending": 6, "n_finished": 2}, {"n_pending": 1, "n_finished": 4, "n_error": 3}):
        stage.stand(run_id, **columns)
        await runner.run_once()
    assert stage.runs.ended == [], "the run goes on and needs what it was handed"
    stage.end(run_id, n_finished=5, n_error=3)
    await runner.run_once()
    stage.stand(run_id, state="IN_PROGRESS", n_pending=3, n_error=0)
    stage.stand(run_id, n_pending=1, n_finished=7)
    await runner.run_once()
    stage.end(run_id, RunState.STOPPED, n_finished=7, n_stopped=1)
    await stage.runner("another").run_once()
    stage.stand(run_id, state="IN_PROGRESS", n_pending=1, n_stopped=0)
    stage.end(run_id)
    for _ in range(3):
        await runner.run_once()
    assert texts(receiver) == [
        "*Benchmark Update* — swebench",
        "*Benchmark Update* — swebench",
        "*Benchmark Complete* — swebench",
        "*Benchmark Stopped* — swebench",
        "*Benchmark Complete* — swebench",
    ]
    shares = [json.loads(one.body)["text"].splitlines()[3] for one in receiver.arrived[:2]]
    assert shares == ["*Status:* In Progress — 25% (2/8 tasks)", "*Status:* In Progress — 87% (7/8 tasks)"]


async def test_a_receiver_in_trouble_is_tried_three_times_and_the_run_stays_as_it_is(
    stage: Stage, receiver: Receiver
) -> None:
    receiver.replies = [Reply(503, body=b"inner_word")]
    run_id = stage.add({}, notify=webhook(receiver))
    stage.end(run_id)
    before = stage.row(run_id)
    runner = stage.runner()
    for _ in range(5):
        await runner.run_once()
        await runner.supplied(run_id)  # no need to sit out the pause
    (view,) = stage.told(run_id)
    assert (view.state, view.detail, view.attempts) == ("failed", "HTTP 503", 3)
    assert len(receiver.arrived) == 3
    assert len({one.headers["x-valkyrie-delivery"] for one in receiver.arrived}) == 1
    assert stage.row(run_id) == before and before.final_score == 0.5
    assert stage.runs.ended == [run_id]


async def test_a_receiver_that_recovers_is_told(stage: Stage, receiver: Receiver) -> None:
    receiver.replies = [Reply(500, body=b""), Reply(200)]
    run_id = stage.add({"SLACK": receiver.url}, notify=slack())
    stage.end(run_id)
    runner = stage.runner()
    later = await runner.run_once()
    assert later is not None and later <= 1.0
    assert runner.busy
    (view,) = stage.told(run_id)
    assert (view.state, view.detail, view.attempts) == ("pending", "HTTP 500", 1)
    await runner.supplied(run_id)
    await runner.run_once()
    (view,) = stage.told(run_id)
    assert (view.state, view.detail, view.attempts) == ("done", "HTTP 200", 2)


async def test_who_asks_to_be_left_alone_is(stage: Stage, receiver: Receiver) -> None:
    receiver.replies = [Reply(429, {"Retry-After": "42"}, b"rate_limited")]
    run_id = stage.add({"SLACK": receiver.url}, notify=slack())
    stage.end(run_id)
    later = await stage.runner().run_once()
    assert later == pytest.approx(42, abs=5)
    (view,) = stage.told(run_id)
    assert view.detail == "HTTP 429: rate_limited"
    receiver.replies = [Reply(429, {"Retry-After": "999999"})]
    other = stage.add({"SLACK": receiver.url}, notify=slack())
    stage.end(other)
    await stage.runner("second").run_once()
    later = await stage.runner("third").run_once()
    assert later is not None and later < 300


@pytest.mark.parametrize(
    ("reply", "detail"),
    [
        (Reply(404, body=b"no_service"), "HTTP 404: no_service"),
        (Reply(403, body=b"<html>Forbidden: 10.0.0.5</html>"), "HTTP 403"),
        (Reply(302, {"Location": "http://169.254.169.254/"}), "HTTP 302: redirects are not followed"),
    ],
)
async def test_a_refusal_is_final(stage: Stage, receiver: Receiver, reply: Reply, detail: str) -> None:
    receiver.replies = [reply]
    run_id = stage.add({"SLACK": receiver.url}, notify=slack())
    stage.end(run_id)
    assert await stage.runner().run_once() is None
    (view,) = stage.told(run_id)
    assert view.state == "failed" and str(view.detail).startswith(detail)
    assert len(receiver.arrived) == 1


async def test_progress_that_may_have_arrived_is_not_sent_again_but_an_ending_is(
    stage: Stage, receiver: Receiver
) -> None:
    receiver.replies = [Reply(silent=True)]
    run_id = stage.add({"SLACK": receiver.url}, notify=slack(25))
    stage.stand(run_id, n_pending=6, n_finished=2)
    runner = stage.runner(sender=Sender(True, timeout=1.0))
    assert await runner.run_once() is None
    (progress,) = stage.told(run_id)
    assert progress.state == "failed" and "may have arrived" in str(progress.detail)
    stage.end(run_id)
    assert await runner.run_once() is not None
    receiver.replies = [Reply()]
    await runner.supplied(run_id)
    await runner.run_once()
    assert [one.state for one in stage.told(run_id)] == ["failed", "done"]
    assert len(receiver.arrived) == 3


async def test_an_executor_dies_while_sending(stage: Stage, receiver: Receiver) -> None:
    receiver.gate = asyncio.Event()
    progress = stage.add({"SLACK": receiver.url}, notify=slack(25))
    ending = stage.add({"SLACK": receiver.url}, notify=slack(25))
    stage.stand(progress, n_pending=6, n_finished=2)
    stage.end(ending)
    first = asyncio.create_task(stage.runner("first").run())
    while len(receiver.arrived) < 2:
        await asyncio.sleep(0.001)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    receiver.gate.set()
    second = stage.runner("second")
    await second.run_once()
    assert len(receiver.arrived) == 2, "the first holds them while it may live"
    stage.die("first")
    await second.run_once()
    assert len(receiver.arrived) == 3
    assert [(one.trigger, one.state, one.attempts) for one in stage.told(ending)] == [("ended:1", "done", 2)]
    assert [(one.trigger, one.state, one.attempts) for one in stage.told(progress)] == [
        ("progress:25", "failed", 1)
    ]


async def test_without_its_secret_a_message_waits_and_says_so(stage: Stage, receiver: Receiver) -> None:
    run_id = stage.add(None, notify={**slack(), **webhook(receiver, key="KEY")})
    stage.end(run_id)
    runner = stage.runner()
    await runner.run_once()
    for view, secret in zip(stage.told(run_id), ["SLACK", "KEY"], strict=True):
        assert (view.state, view.attempts) == ("pending", 0)
        assert secret in str(view.detail) and f"valk run resume {run_id[:8]}" in str(view.detail)
    await runner.run_once()
    assert not runner.busy, "nothing happens without a person"
    assert stage.runs.ended == []
    stage.runs.handed[run_id] = {"hook:SLACK": receiver.url, "hook:KEY": KEY}
    await runner.supplied(run_id)
    await runner.run_once()
    assert [one.state for one in stage.told(run_id)] == ["done", "done"]
    assert stage.runs.ended == [run_id]


async def test_a_secret_that_is_json_fails_with_the_way_out(stage: Stage) -> None:
    run_id = stage.add({"SLACK": '{"url": "https://hunter2.example"}'}, notify=slack())
    stage.end(run_id)
    await stage.runner().run_once()
    (view,) = stage.told(run_id)
    assert view.state == "failed" and "plain text" in str(view.detail) and "hunter2" not in str(view.detail)


async def test_nothing_is_sent_to_this_machine_unless_allowed(stage: Stage, receiver: Receiver) -> None:
    run_id = stage.add({"SLACK": receiver.url}, notify={**slack(), **webhook(receiver)})
    stage.end(run_id)
    await stage.runner(sender=Sender(False)).run_once()
    assert receiver.arrived == []
    for view in stage.told(run_id):
        assert view.state == "failed" and "loopback" in str(view.detail)


async def test_many_messages_leave_at_once_but_not_all(stage: Stage, receiver: Receiver) -> None:
    receiver.gate = asyncio.Event()
    for n in range(20):
        run_id = stage.add({"SLACK": receiver.url}, notify=slack(), org_id=f"org{n % 10}")
        stage.end(run_id)
    runner = stage.runner()
    task = asyncio.create_task(runner.run())
    while len(receiver.arrived) < 8:
        await asyncio.sleep(0.001)
    for _ in range(40):  # several looks go by
        runner.wake()
        await stage.writer.call(lambda connection: None)
    receiver.gate.set()
    while len(receiver.arrived) < 20:
        await asyncio.sleep(0.001)
    assert receiver.most_at_once == 8
    runner.drain()
    await task


async def test_results_come_before_messages_and_are_tried_until_they_are_up(
    stage: Stage, receiver: Receiver
) -> None:
    shelf = stage.runs.society.shelf
    shelf.down = 2
    run_id = stage.add({}, notify=webhook(receiver), place={"artifacts": {"kind": "shelf"}})
    stage.end(run_id)
    runner = stage.runner()
    for _ in range(3):
        await runner.run_once()
        assert receiver.arrived == []
        await runner.supplied(run_id)
    await runner.run_once()
    assert json.loads(shelf.kept[f"benchmarks/{run_id}/swebench.json"]) == {"benchmark_id": run_id}
    results, message = stage.told(run_id)
    assert (results.kind, results.state, results.attempts) == ("results", "done", 3)
    assert results.detail == f"shelf://benchmarks/{run_id}/swebench.json"
    assert (message.kind, message.state) == ("webhook", "done")


async def test_results_of_a_run_that_went_on_are_left_to_its_next_ending(stage: Stage) -> None:
    run_id = stage.add({}, place={"artifacts": {"kind": "shelf"}})
    stage.end(run_id)
    stage.stand(run_id, state="IN_PROGRESS", n_pending=2, n_finished=6)
    runner = stage.runner()
    await runner.run_once()
    assert stage.runs.society.shelf.kept == {}
    stage.end(run_id)
    await runner.run_once()
    assert [str(one.detail).partition(":")[0] for one in stage.told(run_id)] == ["left out", "shelf"]
    assert stage.runs.ended == [run_id]


@pytest.fixture
def cloud(stage: Stage, receiver: Receiver) -> Receiver:
    """A Lambda service that answers whatever it is told to."""
    from valkyrie.aws.session import AwsAccess, AwsKeys, AwsSession

    endpoint = f"http://127.0.0.1:{receiver.port}"
    access = AwsAccess(region="us-east-1", keys=AwsKeys("test", "test"), endpoint=endpoint)
    stage.runs.society.session = AwsSession(access)
    return receiver


async def test_a_function_is_called_with_the_run_and_its_answer_kept(stage: Stage, cloud: Receiver) -> None:
    cloud.replies = [Reply(200, body=json.dumps({"stored": "hunter2-value", "text": "x" * 900}).encode())]
    run_id = stage.add({"KEY": "hunter2-value"}, notify={"lambda": "after-run"})
    stage.end(run_id)
    await stage.runner().run_once()
    (call,) = cloud.arrived
    assert "/functions/after-run/invocations" in call.path
    sent = json.loads(call.body)
    assert (sent["benchmark_id"], sent["benchmark_name"], sent["model"]) == (run_id, "swebench", "m")
    (view,) = stage.told(run_id)
    assert view.state == "done" and str(view.detail).startswith('{"stored": "***"')
    assert len(str(view.detail)) <= 500


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (Reply(200, {"X-Amz-Function-Error": "Unhandled"}, b'{"errorMessage": "no table"}'), "no table"),
        (Reply(200, body=b'{"statusCode": 500, "body": "it broke"}'), "it broke"),
        (Reply(200, hang_up=True), "AWS"),
    ],
)
async def test_a_function_that_fails_leaves_the_score_and_messages_go_on(
    stage: Stage, cloud: Receiver, reply: Reply, said: str
) -> None:
    cloud.replies = [reply, Reply(200)]
    run_id = stage.add({}, notify={"lambda": "after-run", **webhook(cloud)})
    stage.end(run_id)
    before = stage.row(run_id)
    runner = stage.runner()
    await runner.run_once()
    function, message = stage.told(run_id)
    assert (function.state, function.attempts, message.state) == ("failed", 1, "pending")
    assert said in str(function.detail)
    await runner.run_once()
    assert [one.state for one in stage.told(run_id)] == ["failed", "done"]
    assert stage.row(run_id) == before and before.final_score == 0.5


async def test_without_a_way_into_aws_a_function_waits(stage: Stage) -> None:
    run_id = stage.add({}, notify={"lambda": "after-run"})
    stage.end(run_id)
    await stage.runner().run_once()
    (view,) = stage.told(run_id)
    assert (view.state, view.attempts) == ("pending", 0) and "AWS" in str(view.detail)


@pytest.mark.parametrize(
    ("trouble", "state", "detail"),
    [
        (StoreError("the database is away"), "pending", "the database is away"),
        (UserError("the key does not fit"), "failed", "the key does not fit"),
        (RuntimeError("hunter2"), "failed", "a defect in Valkyrie (RuntimeError); please report it"),
    ],
)
async def test_trouble_of_ones_own_harms_nobody_else(
    stage: Stage, receiver: Receiver, trouble: Exception, state: str, detail: str
) -> None:
    stage.runs.trouble = trouble
    secretive = stage.add({"SLACK": receiver.url}, notify=slack())
    plain = stage.add({}, notify=webhook(receiver))
    stage.end(secretive)
    stage.end(plain)
    await stage.runner().run_once()
    (view,) = stage.told(secretive)
    assert (view.state, view.detail) == (state, detail)
    assert [one.state for one in stage.told(plain)] == ["done"]


async def test_no_secret_is_in_the_database(stage: Stage, receiver: Receiver, tmp_path: Path) -> None:
    receiver.replies = [Reply(400, body=b"hunter2")]
    values = {"SLACK": receiver.url.replace("hook", "services/hunter2"), "KEY": KEY}
    run_id = stage.add(values, notify={**slack(25), **webhook(receiver, 25, key="KEY")})
    stage.stand(run_id, n_pending=6, n_finished=2)
    stage.end(run_id)
    runner = stage.runner()
    for _ in range(3):
        await runner.run_once()
    assert len(receiver.arrived) == 4
    stored = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert run_id.encode() in stored
    assert b"services/hunter2" not in stored and KEY.encode() not in stored
    assert all("hunter2" not in str(one.detail) or one.kind == "slack" for one in stage.told(run_id))


async def test_a_runner_sends_what_comes_and_leaves_when_drained(stage: Stage, receiver: Receiver) -> None:
    runner = stage.runner()
    task = asyncio.create_task(runner.run())
    run_id = stage.add({"SLACK": receiver.url}, notify=slack())
    stage.end(run_id)
    runner.wake()
    while not stage.runs.ended:
        await asyncio.sleep(0.001)
    assert texts(receiver) == ["*Benchmark Complete* — swebench"]
    while runner.busy:
        await asyncio.sleep(0.001)
    runner.drain()
    await task
