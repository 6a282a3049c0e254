"""The streams as a client meets them, on a live server."""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import suppress
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from benchmark_service import BenchmarkServiceApp
from tests.integration.benchmark_service.conftest import Live, environment, live_app
from tests.integration.benchmark_service.toy_service import Ground, ToyService

DAYTONA = {
    "type": "daytona",
    "DAYTONA_API_KEY": "key",
    "DAYTONA_API_URL": "url",
    "DAYTONA_TARGET": "target",
}
HEADERS = {"x-api-key": "key", "x-api-url": "url", "x-target": "target"}


class Heard:
    """All a socket said: chunks, then how it closed."""

    def __init__(self) -> None:
        self.chunks: list[Any] = []
        self.code: int | None = None
        self.reason = ""

    @property
    def errors(self) -> list[str]:
        return [chunk["data"] for chunk in self.chunks if chunk["type"] == "error"]


async def listen(socket: ClientConnection) -> Heard:
    heard = Heard()
    try:
        while True:
            heard.chunks.append(json.loads(await socket.recv()))
    except ConnectionClosed:
        heard.code, heard.reason = socket.close_code, socket.close_reason or ""
    return heard


async def hear(
    live: Live, path: str, request: Any = None, headers: dict[str, str] | None = None, raw: Any = None
) -> Heard:
    async with connect(live.ws + path, additional_headers=headers, max_size=None, proxy=None) as socket:
        with suppress(ConnectionClosed):  # a server that refuses does not wait for the request
            await socket.send(json.dumps(request) if raw is None else raw)
        return await listen(socket)


def instance(task_id: str = "t1", **more: Any) -> dict[str, Any]:
    return {"task_id": task_id, "instance_id": "box", "sandbox_provider": DAYTONA, **more}


async def test_setup_streams_one_frame_per_chunk_and_closes_plainly(toy: Live, ground: Ground) -> None:
    heard = await hear(toy, "/ws/setup-task", instance(dataset=None))
    assert heard.chunks == [
        {"type": "message", "data": "setting up t1 in box"},
        {"type": "result", "data": {"status": "ok", "skills_dir": "/skills"}},
    ]
    assert (heard.code, heard.reason) == (1000, "")
    assert (ground.opened, ground.closed) == (1, 1)


async def test_evaluation_goes_on_after_an_error_chunk(toy: Live, ground: Ground) -> None:
    heard = await hear(toy, "/ws/evaluate-instance", instance())
    assert heard.chunks == [
        {"type": "message", "data": "grading t1"},
        {"type": "eval_resume_state", "data": {"step": 1}},
        {"type": "error", "data": "a test was flaky"},
        {"type": "result", "data": {"resolved": True}},
    ]
    assert heard.code == 1000


@pytest.mark.parametrize(
    "headers",
    [
        HEADERS,
        {"X-API-Key": "key", "X-Api-Url": "url", "X-Target": "target"},
        {"DAYTONA_API_KEY": "key", "daytona_api_url": "url", "Daytona_Target": "target"},
    ],
)
async def test_the_provider_comes_from_headers_when_not_in_the_body(
    toy: Live, ground: Ground, headers: dict[str, str]
) -> None:
    request = {"task_id": "t1", "instance_id": "box", "sandbox_provider": None}
    heard = await hear(toy, "/ws/setup-task", request, headers)
    assert heard.chunks[-1]["type"] == "result"
    assert ground.configs[0].model_dump() == DAYTONA


async def test_the_body_wins_over_headers(toy: Live, ground: Ground) -> None:
    await hear(toy, "/ws/setup-task", instance(), {**HEADERS, "x-api-key": "other"})
    assert ground.configs[0].DAYTONA_API_KEY == "key"


async def test_no_provider_at_all_is_said(toy: Live, ground: Ground) -> None:
    partly = {"x-api-key": "key"}
    heard = await hear(toy, "/ws/evaluate-instance", {"task_id": "t1", "instance_id": "box"}, partly)
    assert heard.errors == ["Missing required headers: x-api-key, x-api-url, x-target"]
    assert (heard.code, ground.opened) == (1000, 0)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ("{not json", "Invalid request: not JSON"),
        ("[1, 2]", "Invalid request: expected one JSON object"),
        (b"{}", "Invalid request: expected a text frame"),
        ('{"task_id": "t1"}', "SetupTaskRequest is not valid: instance_id: Field required"),
        ('{"task_id": 5, "instance_id": "box"}', "task_id: Input should be a valid string"),
        ("[" * 100_000, "Invalid request: not JSON"),
    ],
)
async def test_a_malformed_request_is_named(toy: Live, raw: Any, said: str) -> None:
    heard = await hear(toy, "/ws/setup-task", raw=raw, headers=HEADERS)
    assert len(heard.errors) == 1 and said in heard.errors[0]
    assert (heard.code, heard.reason) == (1007, "Invalid request")


async def test_a_client_that_sends_nothing_and_leaves_is_no_event(
    toy: Live, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        async with connect(f"{toy.ws}/ws/setup-task", proxy=None):
            pass
        await hear(toy, "/ws/evaluate-response", {"task_id": "t1", "response": "1"})
    assert not caplog.records


async def test_an_unknown_sandbox_is_one_error(toy: Live, ground: Ground) -> None:
    heard = await hear(toy, "/ws/setup-task", instance(instance_id="gone"))
    assert len(heard.chunks) == 1 and "no sandbox gone" in heard.errors[0]
    assert (heard.code, ground.closed) == (1000, 1)


async def test_an_exception_is_its_message_and_an_id_and_no_traceback(
    toy: Live, ground: Ground, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, logger="benchmark_service"):
        heard = await hear(toy, "/ws/evaluate-instance", instance("raises"))
    message, error = heard.chunks
    assert message == {"type": "message", "data": "before"}
    assert set(error) == {"type", "data"}
    said, _, error_id = error["data"].removesuffix(")").partition(" (error id ")
    assert said == "KeyError: 'the answer'"
    assert "Traceback" not in error["data"]
    assert any(error_id in record.getMessage() and record.exc_info for record in caplog.records)
    assert (heard.code, ground.closed) == (1000, 1)


@pytest.mark.parametrize(
    ("task_id", "said"),
    [("exits", "a library called sys.exit"), ("cancels", "the service cancelled its own stream")],
)
async def test_a_service_that_gives_up_ends_its_stream_only(
    toy: Live, ground: Ground, task_id: str, said: str
) -> None:
    heard = await hear(toy, "/ws/evaluate-instance", instance(task_id))
    assert said in heard.errors[0]
    assert (await hear(toy, "/ws/evaluate-instance", instance())).chunks[-1]["type"] == "result"


async def test_what_is_not_a_chunk_becomes_an_error_and_the_stream_goes_on(toy: Live, ground: Ground) -> None:
    heard = await hear(toy, "/ws/evaluate-instance", instance("odd"))
    assert heard.chunks[:2] == [
        {"type": "message", "data": "from a dict"},
        {"type": "message", "data": "from a subclass", "colour": "blue"},
    ]
    assert "yielded str, which is not a stream chunk" in heard.errors[0]
    assert "yielded dict, which is not a stream chunk" in heard.errors[1]
    assert heard.errors[2] == "result chunk.data.bad is a set, which is not JSON; make it a list"
    assert heard.code == 1000


async def test_a_large_result_goes_in_one_frame(toy: Live, ground: Ground) -> None:
    heard = await hear(toy, "/ws/evaluate-instance", instance("big"))
    assert len(heard.chunks[0]["data"]["patch"]) == 6_000_000


@pytest.mark.parametrize("task_id", ["silent", "forever"])
async def test_the_generator_is_closed_when_the_client_leaves(
    toy: Live, ground: Ground, task_id: str
) -> None:
    service = toy.app.service
    assert isinstance(service, ToyService)
    service.started.clear()
    service.closed.clear()
    async with connect(f"{toy.ws}/ws/evaluate-instance", proxy=None, close_timeout=0.1) as socket:
        await socket.send(json.dumps(instance(task_id)))
        assert await asyncio.to_thread(service.started.wait, 60)
    assert await asyncio.to_thread(service.closed.wait, 60)
    assert await asyncio.to_thread(ground.wait_closed, 1)


async def test_docker_is_refused_unless_enabled(toy: Live) -> None:
    for path in ("/ws/setup-task", "/ws/evaluate-instance"):
        heard = await hear(toy, path, instance(sandbox_provider={"type": "docker"}))
        assert (heard.code, heard.reason, heard.chunks) == (
            1008,
            "Docker sandboxes are disabled on this service",
            [],
        )
    with environment(CBS_DOCKER_ENABLED="true"):
        heard = await hear(toy, "/ws/setup-task", instance(sandbox_provider={"type": "docker"}))
        assert heard.code == 1000


async def test_a_stuck_prelude_ends_with_the_name_of_its_stage(toy: Live, ground: Ground) -> None:
    with environment(BENCHMARK_SERVICE_STREAM_PRELUDE_TIMEOUT_S="0.2"):
        heard = await hear(toy, "/ws/setup-task", instance(instance_id="stuck"))
    assert heard.errors == ["The stream did not begin: still looking up sandbox stuck after 0.2 s"]
    assert (heard.code, ground.closed) == (1011, 1)


async def test_evaluate_response_streams_the_result(toy: Live) -> None:
    heard = await hear(toy, "/ws/evaluate-response", {"task_id": "t2", "response": "2"})
    assert (heard.chunks, heard.code) == ([{"type": "result", "data": {"resolved": True}}], 1000)
    neither = await hear(toy, "/ws/evaluate-response", {"task_id": "t2"})
    assert "exactly one of response and eval_resume_state" in neither.errors[0]
    unusable = await hear(toy, "/ws/evaluate-response", {"task_id": "t2", "response": "set"})
    assert unusable.errors == ["result chunk.data.scores[0] is a set, which is not JSON; make it a list"]


async def test_evaluate_response_takes_its_provider_from_the_headers(toy: Live) -> None:
    service = toy.app.service
    assert isinstance(service, ToyService)
    await hear(toy, "/ws/evaluate-response", {"task_id": "t2", "response": "2"}, HEADERS)
    provider = service.requests[-1].sandbox_provider
    assert provider is not None and provider.model_dump() == DAYTONA
    await hear(toy, "/ws/evaluate-response", {"task_id": "t2", "response": "2"})
    assert service.requests[-1].sandbox_provider is None


class Guarded(ToyService):
    async def check_auth(self, headers: dict[str, str]) -> bool:
        return headers.get("authorization") == "yes"

    async def check_dataset_access(self, tenant: str, dataset: str | None) -> bool:
        return dataset != "small"


@pytest.mark.parametrize("name", ["setup-task", "evaluate-instance", "evaluate-response"])
async def test_nobody_and_the_wrong_dataset_are_closed_1008(ground: Ground, name: str) -> None:
    known = {"authorization": "yes"}
    request = {**instance(dataset="small"), "response": "1"}
    with live_app(Guarded) as live:
        # Refused before anything is sent, so before any header of a provider is used.
        async with connect(f"{live.ws}/ws/{name}", additional_headers=HEADERS, proxy=None) as socket:
            nobody = await listen(socket)
        wrong = await hear(live, f"/ws/{name}", request, known)
        docker = {**request, "sandbox_provider": {"type": "docker"}}
        before = await hear(live, f"/ws/{name}", docker, known)
    assert (nobody.code, nobody.reason, nobody.chunks) == (1008, "Unauthorized", [])
    assert (wrong.code, wrong.reason, wrong.chunks) == (1008, "Dataset not allowed", [])
    assert before.reason == "Docker sandboxes are disabled on this service"
    assert ground.opened == 0


async def test_two_hundred_evaluations_on_one_process(toy: Live, ground: Ground) -> None:
    heard = await asyncio.gather(
        *(hear(toy, "/ws/evaluate-instance", instance(f"t{n % 5 + 1}")) for n in range(200))
    )
    assert [each.chunks[-1] for each in heard] == [{"type": "result", "data": {"resolved": True}}] * 200
    assert (ground.opened, ground.closed) == (200, 200)


async def test_a_client_that_does_not_read_holds_its_service_back(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An endless stream waits for each frame to be taken, so memory stays flat."""
    app = BenchmarkServiceApp(ToyService)
    app.service = await ToyService.create()
    events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    events.put_nowait({"type": "websocket.connect"})
    events.put_nowait({"type": "websocket.receive", "text": json.dumps(instance("forever"))})
    taken, full, made = 0, asyncio.Event(), 0
    scripted = app.service.evaluate_instance

    async def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal made
        async for each in scripted(*args, **kwargs):
            made += 1
            yield each

    async def send(message: dict[str, Any]) -> None:
        nonlocal taken
        if message["type"] == "websocket.send":
            taken += 1
            if taken == 3:
                full.set()
                await asyncio.Event().wait()

    monkeypatch.setattr(app.service, "evaluate_instance", counted)
    scope = {"type": "websocket", "path": "/ws/evaluate-instance", "headers": [], "query_string": b""}
    with environment():
        serving_it = asyncio.create_task(app(scope, events.get, send))  # type: ignore[arg-type]
        await full.wait()
        for _ in range(100):
            await asyncio.sleep(0)
        assert (made, taken) == (3, 3)
        events.put_nowait({"type": "websocket.disconnect", "code": 1006})
        await serving_it
    assert ground.closed == 1


async def test_a_server_that_stops_ends_its_streams(ground: Ground) -> None:
    with live_app(ToyService) as live:
        service = live.app.service
        assert isinstance(service, ToyService)
        socket = await connect(f"{live.ws}/ws/evaluate-instance", proxy=None)
        await socket.send(json.dumps(instance("silent")))
        assert await asyncio.to_thread(service.started.wait, 60)
    assert service.closed.is_set() and ground.closed == 1
    assert (await listen(socket)).code == 1012
