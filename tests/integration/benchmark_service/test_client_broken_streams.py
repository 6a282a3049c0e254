"""Streams that fall silent or break: the watchdog, and resuming an evaluation."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from benchmark_service.client import BenchmarkServiceClient
from benchmark_service.errors import (
    BenchmarkServiceError,
    BenchmarkServiceStreamClosedError,
    StreamIdleError,
)
from benchmark_service.schemas import RESUMABLE
from tests.integration.benchmark_service.scripted_service import (
    JSONResponse,
    Pauses,
    ScriptedService,
    WebSocketDisconnect,
    chunks,
    client_of,
)
from tests.integration.benchmark_service.stream_messages import (
    DAYTONA,
    EVALUATE,
    RESULT,
    RESUME,
    SETUP,
    error,
    message,
)


def state(step: int) -> dict[str, Any]:
    return {"type": "eval_resume_state", "data": {"step": step, "nothing": None}}


class TestWatchdog:
    @staticmethod
    async def silent(ws: Any) -> None:
        await ws.begin()
        try:
            await ws.receive_text()
        except WebSocketDisconnect:
            pass

    @pytest.mark.parametrize(("status", "said"), [(200, "still answers"), (500, "does not answer either")])
    async def test_says_whether_the_service_lives(
        self, service: ScriptedService, status: int, said: str
    ) -> None:
        service.stream(EVALUATE, self.silent)
        service.answer("GET /health", JSONResponse({"status": "ok"}, status))
        async with client_of(service.url, ws_idle_timeout_s=0.05) as client:
            with pytest.raises(StreamIdleError, match=said):
                await client.evaluate_instance("a", "i")

    async def test_is_set_by_the_environment(
        self, service: ScriptedService, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("BENCHMARK_SERVICE_WS_IDLE_TIMEOUT_S", "0.05")
        service.stream(SETUP, self.silent)
        async with client_of(service.url) as client:
            with pytest.raises(StreamIdleError):
                await client.setup_task("a", "i")

    async def test_can_be_off(self, service: ScriptedService, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("BENCHMARK_SERVICE_WS_IDLE_TIMEOUT_S", "0.001")

        async def slow(ws: Any) -> None:
            await ws.begin()
            await asyncio.sleep(0.1)
            await ws.send_json(RESULT)

        service.stream(EVALUATE, slow)
        async with client_of(service.url, ws_idle_timeout_s=0) as client:
            assert await client.evaluate_instance("a", "i") == {"resolved": True}

    async def test_nonsense_in_the_environment_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("BENCHMARK_SERVICE_WS_IDLE_TIMEOUT_S", "soon")
        with pytest.raises(ValueError, match="BENCHMARK_SERVICE_WS_IDLE_TIMEOUT_S"):
            BenchmarkServiceClient("http://localhost")


class TestResuming:
    async def test_a_break_goes_on_from_the_newest_state(
        self, service: ScriptedService, client: BenchmarkServiceClient
    ) -> None:
        service.stream(EVALUATE, chunks(state(1), state(2), close=None))
        service.stream(RESUME, chunks(state(3), close=1012), chunks(message("m"), close=None), chunks(RESULT))
        saved: list[dict[str, Any]] = []
        result = await client.evaluate_instance("a", "i", DAYTONA, on_resume_state=saved.append, dataset="d")
        assert result == {"resolved": True}
        assert [one["step"] for one in saved] == [1, 2, 3]
        first, *resumed = service.asked
        assert first.path == EVALUATE
        assert [(r.path, r.body["eval_resume_state"]["step"], r.body["dataset"]) for r in resumed] == [
            (RESUME, 2, "d"),
            (RESUME, 3, "d"),
            (RESUME, 3, "d"),
        ]
        assert {r.headers["x-api-key"] for r in service.asked} == {"dtn-secret"}

    async def test_without_a_state_nothing_is_sent_again(
        self, service: ScriptedService, client: BenchmarkServiceClient
    ) -> None:
        service.stream(EVALUATE, chunks(message("grading"), close=None))
        with pytest.raises(BenchmarkServiceStreamClosedError):
            await client.evaluate_instance("a", "i")
        assert len(service.asked) == 1

    async def test_the_service_asks_to_be_resumed(
        self, service: ScriptedService, client: BenchmarkServiceClient
    ) -> None:
        service.stream(EVALUATE, chunks(state(1), error("spot instance gone", error_code=RESUMABLE)))
        service.stream(RESUME, chunks(RESULT))
        assert await client.evaluate_instance("a", "i") == {"resolved": True}

    async def test_a_gateway_without_its_service_is_waited_for(
        self, service: ScriptedService, client: BenchmarkServiceClient
    ) -> None:
        async def gateway(ws: Any) -> None:
            await ws.send_denial_response(JSONResponse({}, 502))

        service.stream(EVALUATE, chunks(state(1), close=None))
        service.stream(RESUME, *[gateway] * 7, chunks(RESULT))
        assert await client.evaluate_instance("a", "i") == {"resolved": True}

    async def test_an_error_of_the_benchmark_is_final(
        self, service: ScriptedService, client: BenchmarkServiceClient
    ) -> None:
        service.stream(EVALUATE, chunks(state(1), error("tests do not compile")))
        with pytest.raises(BenchmarkServiceError, match="do not compile"):
            await client.evaluate_instance("a", "i")
        assert len(service.asked) == 1

    async def test_ends_after_so_many_breaks(self, service: ScriptedService) -> None:
        service.stream(EVALUATE, chunks(state(1), close=None))
        service.stream(RESUME, chunks(close=None))
        pauses = Pauses()
        async with client_of(service.url, pause=pauses, jitter=lambda: 1.0, resume_attempts=3) as client:
            with pytest.raises(BenchmarkServiceStreamClosedError):
                await client.evaluate_instance("a", "i")
        assert service.count(RESUME) == 3
        assert pauses.taken == [2, 4, 8]

    async def test_a_state_is_committed_before_the_next_chunk_is_read(
        self, service: ScriptedService, client: BenchmarkServiceClient
    ) -> None:
        service.stream(EVALUATE, chunks(state(1), message("after"), RESULT))
        order: list[str] = []

        async def commit(_: dict[str, Any]) -> None:
            order.append("begun")
            await asyncio.sleep(0.05)
            order.append("committed")

        await client.evaluate_instance("a", "i", on_message=order.append, on_resume_state=commit)
        assert order == ["begun", "committed", "after"]

    async def test_a_caller_that_cannot_commit_ends_the_stream(
        self, service: ScriptedService, client: BenchmarkServiceClient
    ) -> None:
        def fail(_: dict[str, Any]) -> None:
            raise OSError("disk full")

        service.stream(EVALUATE, chunks(state(1), RESULT))
        with pytest.raises(OSError, match="disk full"):
            await client.evaluate_instance("a", "i", on_resume_state=fail)
        assert len(service.asked) == 1
