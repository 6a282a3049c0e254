"""The client and the app against each other, over a real server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from benchmark_service.client import BenchmarkServiceClient
from benchmark_service.errors import (
    BenchmarkServiceError,
    BenchmarkServiceStreamClosedError,
    BenchmarkServiceUnauthenticatedError,
    StreamIdleError,
)
from sandboxes.types import DaytonaProviderConfig
from tests.integration.benchmark_service.conftest import Live, live_app
from tests.integration.benchmark_service.scripted_service import client_of
from tests.integration.benchmark_service.toy_service import Ground, ToyService

DAYTONA = DaytonaProviderConfig(DAYTONA_API_KEY="key-4711", DAYTONA_API_URL="url", DAYTONA_TARGET="us")


async def test_the_calls_of_a_run(toy: Live, ground: Ground) -> None:
    heard: list[str] = []
    said: list[str] = []
    saved: list[dict[str, Any]] = []
    async with client_of(toy.url) as client:
        assert await client.health_check()
        assert (await client.version()).framework_version
        assert (await client.verify_task_ids(slice_str="0:2")).task_ids == ["t1", "t2"]
        assert (await client.retrieve_task("t1")).docker_image == "python:3.12-slim"
        setup = await client.setup_task("t1", "box", DAYTONA, heard.append)
        assert setup.model_dump() == {"status": "ok", "skills_dir": "/skills"}
        result = await client.evaluate_instance(
            "t1", "box", DAYTONA, heard.append, saved.append, on_error=said.append
        )
        assert result == {"resolved": True}
        assert await client.evaluate_response("t1", "1") == {"resolved": True}
        score = await client.final_score({"t1": result, "t2": None})
    assert heard == ["setting up t1 in box", "grading t1"]
    assert (said, saved) == (["a test was flaky"], [{"step": 1}])
    assert score.final_score == 50.0
    assert {config.DAYTONA_API_KEY for config in ground.configs} == {"key-4711"}


async def test_ten_thousand_ids(toy: Live) -> None:
    async with client_of(toy.url) as client:
        many = [f"t{number % 5 + 1}" for number in range(10_000)]
        assert (await client.verify_task_ids(many)).task_ids == ["t1", "t2", "t3", "t4", "t5"]
        with pytest.raises(BenchmarkServiceError, match="no-such-task") as caught:
            await client.verify_task_ids([*many, "no-such-task"])
    assert caught.value.status_code == 400


@pytest.mark.parametrize("call", ["verify", "retrieve"])
async def test_an_unknown_dataset_is_the_caller_s_mistake(toy: Live, call: str) -> None:
    async with client_of(toy.url) as client:
        with pytest.raises(BenchmarkServiceError, match="nowhere") as caught:
            if call == "verify":
                await client.verify_task_ids(dataset="nowhere")
            else:
                await client.retrieve_task("t1", dataset="nowhere")
    assert caught.value.status_code == 400


async def test_a_bug_in_the_benchmark_is_told_without_its_traceback(toy: Live, ground: Ground) -> None:
    async with client_of(toy.url) as client:
        with pytest.raises(BenchmarkServiceError, match="the answer") as caught:
            await client.evaluate_instance("raises", "box", DAYTONA)
    assert "Traceback" not in str(caught.value)
    assert not isinstance(caught.value, BenchmarkServiceStreamClosedError)


async def test_a_lost_sandbox_and_missing_headers_are_told(toy: Live, ground: Ground) -> None:
    async with client_of(toy.url) as client:
        with pytest.raises(BenchmarkServiceError, match="no sandbox gone"):
            await client.evaluate_instance("t1", "gone", DAYTONA)
        with pytest.raises(BenchmarkServiceError, match="Missing required headers"):
            await client.evaluate_instance("t1", "box")


async def test_a_large_result(toy: Live, ground: Ground) -> None:
    async with client_of(toy.url) as client:
        result = await client.evaluate_instance("big", "box", DAYTONA)
    assert len(result["patch"]) == 6_000_000


async def test_a_stream_that_is_left_ends_in_the_service_too(toy: Live, ground: Ground) -> None:
    service: Any = toy.app.service
    service.closed.clear()
    heard = asyncio.Event()
    async with client_of(toy.url) as client:
        listening = asyncio.create_task(
            client.evaluate_instance("forever", "box", DAYTONA, on_message=lambda _: heard.set())
        )
        await heard.wait()
        listening.cancel()
        await asyncio.wait([listening], timeout=60)
        assert listening.cancelled()
    assert await asyncio.to_thread(service.closed.wait, 60)


async def test_a_silent_stream_of_a_living_service(toy: Live, ground: Ground) -> None:
    async with client_of(toy.url, ws_idle_timeout_s=0.2) as client:
        with pytest.raises(StreamIdleError, match="still answers"):
            await client.evaluate_instance("silent", "box", DAYTONA)


async def test_a_key(ground: Ground) -> None:
    with live_app(ToyService, BENCHMARK_API_KEY="sesame-4711") as live:
        async with client_of(live.url, {"Authorization": "Bearer sesame-4711"}) as client:
            assert (await client.verify_task_ids()).task_ids
            assert await client.evaluate_instance("t1", "box", DAYTONA) == {"resolved": True}
        async with client_of(live.url, {"Authorization": "Bearer wrong-key"}) as stranger:
            assert await stranger.health_check()
            with pytest.raises(BenchmarkServiceUnauthenticatedError, match="Authentication failed"):
                await stranger.verify_task_ids()
            with pytest.raises(BenchmarkServiceUnauthenticatedError, match="Authentication failed"):
                await stranger.evaluate_instance("t1", "box", DAYTONA)


async def test_legacy_callers_have_no_v1(toy: Live) -> None:
    async with client_of(toy.url) as client:
        assert isinstance(client, BenchmarkServiceClient)
        with pytest.raises(BenchmarkServiceError) as caught:
            await client.list_tasks()
    assert caught.value.status_code == 403
