"""What the client sends again, and what it never does."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from benchmark_service.client import BenchmarkServiceClient
from benchmark_service.errors import (
    BenchmarkServiceConnectionError,
    BenchmarkServiceError,
)
from tests.integration.benchmark_service.scripted_service import (
    JSONResponse,
    Pauses,
    Response,
    ScriptedService,
    bound_socket,
    client_of,
    serving,
    unused_url,
)

TASK = {
    "docker_image": "python:3.12-slim",
    "problem_path": "/tmp/problem_statement.txt",
    "cwd": "/workspace",
    "resources": {"vcpu": 2, "memory": 4, "disk": 10},
}


class TestRetries:
    @pytest.mark.parametrize("status", [429, 502, 503, 504])
    async def test_a_safe_call_outlasts_a_busy_service(self, service: ScriptedService, status: int) -> None:
        service.answer("GET /retrieve-task/", Response("busy", status), JSONResponse(TASK))
        pauses = Pauses()
        async with client_of(service.url, pause=pauses, jitter=lambda: 0.5) as client:
            await client.retrieve_task("a")
        assert pauses.taken == [0.5]

    async def test_pauses_grow_and_end(self, service: ScriptedService) -> None:
        service.answer("POST /final-score/", JSONResponse({"detail": "later"}, 503))
        pauses = Pauses()
        async with client_of(service.url, pause=pauses, jitter=lambda: 1.0) as client:
            with pytest.raises(BenchmarkServiceError, match="later"):
                await client.final_score({})
        assert pauses.taken == [1, 2, 4, 8]

    async def test_retry_after_is_honoured_up_to_the_limit(self, service: ScriptedService) -> None:
        service.answer(
            "GET /retrieve-task/",
            Response("", 429, {"Retry-After": "7"}),
            Response("", 503, {"Retry-After": "Fri, 01 Jan 2100 00:00:00 GMT"}),
            JSONResponse(TASK),
        )
        pauses = Pauses()
        async with client_of(service.url, pause=pauses, jitter=lambda: 0.0, max_retry_wait=30) as client:
            await client.retrieve_task("a")
        assert pauses.taken == [7, 30]

    async def test_a_server_error_is_not_repeated(
        self, service: ScriptedService, client: BenchmarkServiceClient
    ) -> None:
        service.answer("GET /retrieve-task/", JSONResponse({"detail": "bug"}, 500))
        with pytest.raises(BenchmarkServiceError):
            await client.retrieve_task("a")
        assert len(service.asked) == 1

    async def test_health_can_be_asked_once(self) -> None:
        pauses = Pauses()
        async with client_of(unused_url(), pause=pauses) as client:
            with pytest.raises(BenchmarkServiceConnectionError):
                await client.health_check(retry=False)
        assert pauses.taken == []


class TestNoDoubleEvaluation:
    """The server counts evaluations: none of these may be begun twice."""

    async def test_a_read_timeout_is_not_repeated(self, service: ScriptedService) -> None:
        released = asyncio.Event()

        async def grade(_: Any) -> Response:
            await released.wait()
            return JSONResponse({})

        service.answer("POST /evaluate-response/", grade)
        for seconds in (0.1, 1.0, 10.0):  # it must have arrived, which takes a busy machine longer
            async with client_of(service.url, timeout=seconds) as client:
                with pytest.raises(BenchmarkServiceConnectionError):
                    await client.evaluate_response("a", "42")
            if service.count("/evaluate-response/"):
                break
        released.set()
        assert service.count("/evaluate-response/") == 1

    @pytest.mark.parametrize("status", [500, 502, 503, 504])
    async def test_an_answer_that_may_hide_work_is_not_repeated(
        self, service: ScriptedService, client: BenchmarkServiceClient, status: int
    ) -> None:
        service.answer("POST /evaluate-response/", JSONResponse({"detail": "x"}, status))
        service.answer("POST /v1/evaluate", JSONResponse({"detail": "x"}, status))
        with pytest.raises(BenchmarkServiceError):
            await client.evaluate_response("a", "42")
        with pytest.raises(BenchmarkServiceError):
            await client.v1_evaluate("r", "a", "42", "s")
        assert len(service.asked) == 2

    async def test_a_broken_answer_is_not_repeated(self) -> None:
        evaluations = 0

        async def answer_half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal evaluations
            await reader.readuntil(b"\r\n\r\n")
            evaluations += 1
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{")
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(answer_half, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, client_of(f"http://127.0.0.1:{port}") as client:
            with pytest.raises(BenchmarkServiceConnectionError):
                await client.evaluate_response("a", "42")
        assert evaluations == 1

    @pytest.mark.parametrize(("status", "headers"), [(429, {}), (503, {"Retry-After": "2"})])
    async def test_a_refusal_before_work_is_repeated(
        self, service: ScriptedService, client: BenchmarkServiceClient, status: int, headers: dict[str, str]
    ) -> None:
        service.answer("POST /evaluate-response/", Response("", status, headers), JSONResponse({"ok": 1}))
        assert await client.evaluate_response("a", "42") == {"ok": 1}

    async def test_a_service_that_was_not_up_yet_is_waited_for(self, service: ScriptedService) -> None:
        listener = bound_socket()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        service.answer("POST /evaluate-response/", JSONResponse({"ok": 1}))
        started = asyncio.Event()
        waited = asyncio.Event()

        async def pause(_: float) -> None:
            waited.set()
            await started.wait()

        async def come_up() -> None:
            await waited.wait()
            async with serving(service.app(), listener, lifespan="off"):
                started.set()
                assert await graded == {"ok": 1}

        async with client_of(url, pause=pause) as client:
            graded = asyncio.ensure_future(client.evaluate_response("a", "42"))
            await come_up()
        assert service.count("/evaluate-response/") == 1
