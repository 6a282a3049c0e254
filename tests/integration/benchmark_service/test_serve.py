"""`serve` on a real port, in a process of its own."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

import httpx

from tests.ports import free_port

SCRIPT = """
import sys
from fastapi import FastAPI
from benchmark_service.app import serve

app = FastAPI()
app.get("/health")(lambda: "up")
serve(app, port=int(sys.argv[1]), head_s=0.2)
"""


async def lines_until(stream: asyncio.StreamReader, words: bytes) -> AsyncIterator[bytes]:
    async for line in stream:
        yield line
        if words in line:
            return


async def test_a_request_head_that_never_ends_is_cut() -> None:
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SCRIPT, str(port), stderr=asyncio.subprocess.PIPE
    )
    try:
        assert process.stderr is not None
        async with asyncio.timeout(60):
            said = [line async for line in lines_until(process.stderr, b"running on")]
            assert b"running on" in said[-1], said
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Half: ")
            try:
                assert await reader.read() == b""
            except ConnectionResetError:
                pass
            writer.close()
        async with httpx.AsyncClient(verify=False) as http:
            assert (await http.get(f"http://127.0.0.1:{port}/health")).json() == "up"
    finally:
        process.terminate()
        await process.wait()
