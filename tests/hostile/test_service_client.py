"""Services that mean harm, or are very broken: the client stays small, quick to leave, and discreet."""

from __future__ import annotations

import asyncio
import gzip
import json
import tracemalloc
from collections.abc import AsyncIterator
from typing import Any

import pytest

from benchmark_service.errors import (
    BenchmarkServiceConnectionError,
    BenchmarkServiceError,
    BenchmarkServiceProtocolError,
)
from sandboxes.types import DaytonaProviderConfig
from tests.integration.benchmark_service.scripted_service import (
    JSONResponse,
    Response,
    ScriptedService,
    WebSocketDisconnect,
    chunks,
    client_of,
    scripted,
)

EVALUATE = "/ws/evaluate-instance"
MIB = 1024 * 1024
SECRET = "dtn-secret-4711"
DAYTONA = DaytonaProviderConfig(DAYTONA_API_KEY=SECRET, DAYTONA_API_URL="url", DAYTONA_TARGET="us")


@pytest.fixture
async def service() -> AsyncIterator[ScriptedService]:
    async with scripted() as running:
        yield running


def result_of(size: int) -> str:
    return json.dumps({"type": "result", "data": "x" * size})


async def test_a_chunk_of_50_mb_is_taken(service: ScriptedService) -> None:
    service.stream(EVALUATE, chunks(result_of(50 * MIB)))
    async with client_of(service.url) as client:
        assert len(await client.evaluate_instance("a", "i")) == 50 * MIB


async def test_a_chunk_of_100_mb_is_refused_by_name(service: ScriptedService) -> None:
    service.stream(EVALUATE, chunks(result_of(100 * MIB)))
    async with client_of(service.url) as client:
        with pytest.raises(BenchmarkServiceProtocolError, match=f"larger than {64 * MIB} bytes"):
            await client.evaluate_instance("a", "i")


async def test_the_limit_of_a_chunk_is_the_caller_s(service: ScriptedService) -> None:
    service.stream(EVALUATE, chunks(result_of(2000)))
    async with client_of(service.url, max_chunk_bytes=1000) as client:
        with pytest.raises(BenchmarkServiceProtocolError, match="larger than 1000 bytes"):
            await client.evaluate_instance("a", "i")


async def endless(ws: Any) -> None:
    await ws.begin()
    frame = json.dumps({"type": "message", "data": "x" * 10_000})
    try:
        while True:
            await ws.send_text(frame)
    except WebSocketDisconnect:
        pass


@pytest.mark.slow
async def test_an_endless_stream_is_left_at_once_and_leaves_nothing_behind(service: ScriptedService) -> None:
    service.stream(EVALUATE, endless)
    heard = 0
    enough = asyncio.Event()

    def hear(_: str) -> None:
        nonlocal heard
        heard += 1
        if heard == 1000:
            tracemalloc.start()
        if heard == 6000:
            enough.set()

    async with client_of(service.url) as client:
        listening = asyncio.create_task(client.evaluate_instance("a", "i", on_message=hear))
        try:
            await enough.wait()
            grown, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        listening.cancel()
        done, _ = await asyncio.wait([listening], timeout=60)
        assert done
        assert listening.cancelled()
    # 50 MB went by.
    assert grown < 5 * MIB


async def test_a_slow_listener_holds_the_sender_back(service: ScriptedService) -> None:
    sent = 0

    async def flood(ws: Any) -> None:
        nonlocal sent
        await ws.begin()
        try:
            while True:
                await ws.send_text(json.dumps({"type": "message", "data": "x" * MIB}))
                sent += 1
        except WebSocketDisconnect:
            pass

    service.stream(EVALUATE, flood)
    stuck = asyncio.Event()

    async def hang(_: str) -> None:
        stuck.set()
        await asyncio.Event().wait()

    async with client_of(service.url) as client:
        listening = asyncio.create_task(client.evaluate_instance("a", "i", on_message=hang))
        await stuck.wait()
        before = -1
        while before != sent:
            before = sent
            await asyncio.sleep(0.2)
        assert sent < 40
        listening.cancel()
        await asyncio.wait([listening], timeout=60)
        assert listening.cancelled()


async def test_endless_errors_and_unknown_types_are_not_collected(service: ScriptedService) -> None:
    async def play(ws: Any) -> None:
        await ws.begin()
        for number in range(2000):
            await ws.send_json({"type": "error", "data": f"{number} " + "x" * 5000})
            await ws.send_json({"type": f"kind-{number}" + "y" * 5000})
        await ws.close()

    service.stream(EVALUATE, play)
    async with client_of(service.url) as client:
        with pytest.raises(BenchmarkServiceError, match="1999 x") as caught:
            await client.evaluate_instance("a", "i")
    assert len(str(caught.value)) < 5000


async def test_an_endless_answer_is_cut(service: ScriptedService) -> None:
    from starlette.responses import StreamingResponse

    async def forever() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * MIB
            await asyncio.sleep(0)

    service.answer("GET /retrieve-task/", StreamingResponse(forever(), media_type="application/json"))
    async with client_of(service.url, max_chunk_bytes=8 * MIB) as client:
        with pytest.raises(BenchmarkServiceProtocolError, match="answered more than"):
            await client.retrieve_task("a")


async def test_a_compression_bomb_is_cut(service: ScriptedService) -> None:
    bomb = gzip.compress(b"0" * (400 * MIB), compresslevel=1)
    service.answer("GET /retrieve-task/", Response(bomb, headers={"content-encoding": "gzip"}))
    tracemalloc.start()
    try:
        async with client_of(service.url, max_chunk_bytes=8 * MIB) as client:
            with pytest.raises(BenchmarkServiceProtocolError, match="answered more than"):
                await client.retrieve_task("a")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 200 * MIB


async def test_credentials_do_not_follow_a_redirect_elsewhere(service: ScriptedService) -> None:
    async with scripted() as thief:
        moved = Response(status_code=307, headers={"Location": f"{thief.url}/retrieve-task/"})
        service.answer("GET /retrieve-task/", moved)

        async def lure(ws: Any) -> None:
            await ws.send_denial_response(
                Response(status_code=307, headers={"Location": thief.url + EVALUATE})
            )

        service.stream(EVALUATE, lure)
        async with client_of(service.url, {"X-Descope-Api-Key": SECRET}) as client:
            with pytest.raises(BenchmarkServiceError, match="redirects to"):
                await client.retrieve_task("a")
            with pytest.raises(BenchmarkServiceError, match="redirects to"):
                await client.evaluate_instance("a", "i", DAYTONA)
        assert thief.asked == []


@pytest.mark.parametrize("place", ["http://[::1", "//:99999999/", "ftp://x", "", "/ws/evaluate-instance"])
async def test_a_redirect_to_nowhere(service: ScriptedService, place: str) -> None:
    service.answer("GET /retrieve-task/", Response(status_code=302, headers={"Location": place}))

    async def lure(ws: Any) -> None:
        await ws.send_denial_response(Response(status_code=302, headers={"Location": place}))

    service.stream(EVALUATE, lure)
    async with client_of(service.url) as client:
        with pytest.raises(BenchmarkServiceError):
            await client.evaluate_instance("a", "i")
        with pytest.raises(BenchmarkServiceError):
            await client.retrieve_task("a")


async def test_a_redirect_in_circles_ends(service: ScriptedService) -> None:
    service.answer("GET /health", Response(status_code=302, headers={"Location": "/health"}))
    async with client_of(service.url) as client:
        with pytest.raises(BenchmarkServiceError, match="in circles"):
            await client.health_check()


async def test_a_service_that_echoes_credentials_does_not_get_them_into_errors(
    service: ScriptedService,
) -> None:
    echo = JSONResponse({"detail": "x" * 1990 + SECRET}, 400)
    service.answer("GET /retrieve-task/", echo)
    service.stream(
        EVALUATE,
        chunks({"type": "error", "data": f"no sandbox for {SECRET}"}),
        chunks(f"key {SECRET}"),
        chunks(close=1008, reason=f"denied {SECRET}"),
        chunks(close=1012, reason=f"gone {SECRET}"),
    )
    async with client_of(service.url, {"x-api-key": SECRET}) as client:
        with pytest.raises(BenchmarkServiceError) as caught:
            await client.retrieve_task("a")
        assert "dtn" not in str(caught.value)
        for _ in range(4):
            with pytest.raises(BenchmarkServiceError) as caught:
                await client.evaluate_instance("a", "i", DAYTONA)
            assert SECRET not in str(caught.value)


async def test_stray_surrogates_cannot_poison_what_is_stored(service: ScriptedService) -> None:
    service.stream(
        EVALUATE,
        chunks(
            '{"type": "message", "data": "a\\ud800b"}',
            '{"type": "result", "data": {"k\\udfff": ["\\ud83d\\ude00"]}}',
        ),
    )
    heard: list[str] = []
    async with client_of(service.url) as client:
        result = await client.evaluate_instance("a", "i", on_message=heard.append)
    assert heard == ["a?b"]
    assert result == {"k?": ["😀"]}


@pytest.mark.parametrize("answer", [b"SSH-2.0-OpenSSH_9.6\r\n", b"", b"HTTP/1.1 200 OK\r\n\r\n"])
async def test_what_listens_is_no_service(answer: bytes) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, client_of(f"http://127.0.0.1:{port}") as client:
        with pytest.raises((BenchmarkServiceConnectionError, BenchmarkServiceProtocolError)):
            await client.retrieve_task("a")
        with pytest.raises(BenchmarkServiceError):
            await client.evaluate_instance("a", "i")


async def test_a_hundred_streams_that_hang_do_not_hold_up_another(service: ScriptedService) -> None:
    hanging = 0
    all_hang = asyncio.Event()

    async def hang(ws: Any) -> None:
        nonlocal hanging
        await ws.begin()
        hanging += 1
        if hanging == 100:
            all_hang.set()
        try:
            await ws.receive_text()
        except WebSocketDisconnect:
            pass

    service.stream(EVALUATE, hang)
    service.stream("/ws/setup-task", chunks({"type": "result", "data": {"status": "ok"}}))
    async with client_of(service.url) as client:
        stuck = [asyncio.create_task(client.evaluate_instance(f"t{n}", "i")) for n in range(100)]
        await all_hang.wait()
        assert (await client.setup_task("a", "i")).status == "ok"
        for task in stuck:
            task.cancel()
        await asyncio.wait(stuck, timeout=60)
        assert all(task.cancelled() for task in stuck)
