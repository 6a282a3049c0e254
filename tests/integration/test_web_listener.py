"""A listener and its gate on a real socket: slow heads, slow and large bodies, strangers, websockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx
import pytest
import websockets
from fastapi import Body, FastAPI, Request, WebSocket
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, Response
from starlette.types import Scope

from sandboxes.web_gate import BodyPace, RequestGate
from sandboxes.web_listener import Listener, bind

LIMIT = 1000
KEY = {"Authorization": "Bearer open"}


def make_app(pace: BodyPace) -> FastAPI:
    app = FastAPI()

    @app.post("/length")
    async def length(request: Request) -> int:
        return len(await request.body())

    @app.post("/json")
    async def json(value: dict[str, Any] = Body()) -> int:  # noqa: B008
        return len(value)

    @app.get("/slow")
    async def slow(request: Request) -> str:
        app.state.asked.set()
        await app.state.answer.wait()
        return "done"

    @app.websocket("/echo")
    async def echo(socket: WebSocket) -> None:
        await socket.accept()
        while True:
            await socket.send_text(await socket.receive_text())

    async def admit(scope: Scope, headers: Headers) -> None:
        if headers.get("authorization") != KEY["Authorization"]:
            raise HTTPException(401, "Who are you?")

    def answer(_scope: Scope, error: HTTPException) -> Response:
        return PlainTextResponse(error.detail, error.status_code)

    app.state.asked, app.state.answer = asyncio.Event(), asyncio.Event()
    app.add_middleware(RequestGate, admit=admit, answer=answer, limit=lambda _scope: LIMIT, pace=pace)
    return app


@asynccontextmanager
async def listening(head_s: float = 60.0, pace: BodyPace | None = None) -> AsyncIterator[tuple[str, FastAPI]]:
    app = make_app(pace or BodyPace())
    listener = Listener(app, bind("127.0.0.1", 0), websockets=True, grace_s=1, head_s=head_s)
    await listener.start()
    try:
        yield listener.url, app
    finally:
        await listener.close()


async def connect(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = url.removeprefix("http://").split(":")
    return await asyncio.open_connection(host, int(port))


async def read_all(reader: asyncio.StreamReader) -> bytes:
    """Return what comes until the connection ends, however it ends."""
    got = bytearray()
    with suppress(ConnectionResetError):
        async with asyncio.timeout(60):
            while piece := await reader.read(65536):
                got += piece
    return bytes(got)


def head(method: str, path: str, *lines: str) -> bytes:
    every = [f"{method} {path} HTTP/1.1", "Host: localhost", "Authorization: Bearer open", *lines, "", ""]
    return "\r\n".join(every).encode()


async def cut_head(url: str, sent: bytes = b"GET / HTTP/1.1\r\nX-Half: ") -> None:
    """Return when the listener has cut a connection on which a request's head never ends."""
    reader, writer = await connect(url)
    writer.write(sent)
    assert await read_all(reader) == b""
    writer.close()


@pytest.mark.parametrize("sent", [b"", b"G", b"GET / HTTP/1.1\r\nX-Half: "])
async def test_a_head_that_never_ends_is_cut(sent: bytes) -> None:
    async with listening(head_s=0.1) as (url, _app):
        await cut_head(url, sent)


async def test_a_second_head_that_never_ends_is_cut_too() -> None:
    async with listening(head_s=0.1) as (url, _app):
        reader, writer = await connect(url)
        writer.write(head("POST", "/length", "Content-Length: 2") + b"ab" + b"POST /length HT")
        got = await read_all(reader)
        writer.close()
    assert got.startswith(b"HTTP/1.1 200 ") and got.count(b"HTTP/1.1") == 1


async def test_websockets_and_slow_answers_outlive_the_time_for_heads() -> None:
    async with listening(head_s=0.2) as (url, app), httpx.AsyncClient(verify=False, timeout=60) as http:
        async with websockets.connect(f"ws{url[4:]}/echo", additional_headers=KEY) as socket:
            slow = asyncio.create_task(http.get(f"{url}/slow", headers=KEY))
            await app.state.asked.wait()
            await cut_head(url)  # which began later than they did
            await socket.send("still here")
            assert await socket.recv() == "still here"
            app.state.answer.set()
            assert (await slow).json() == "done"


async def test_strangers_are_refused_before_they_are_read() -> None:
    async with listening() as (url, _app), httpx.AsyncClient(verify=False) as http:
        answer = await http.post(f"{url}/length", content=b"x")
        assert (answer.status_code, answer.text) == (401, "Who are you?")
        with pytest.raises(websockets.InvalidStatus) as caught:
            async with websockets.connect(f"ws{url[4:]}/echo"):
                pass
        assert (caught.value.response.status_code, caught.value.response.body) == (401, b"Who are you?")
        assert (await http.post(f"{url}/length", content=b"x", headers=KEY)).json() == 1


async def in_pieces(size: int) -> AsyncIterator[bytes]:
    for _ in range(size):
        yield b" "


@pytest.mark.parametrize("path", ["/length", "/json"])
async def test_a_body_over_the_limit_is_413_announced_or_not(path: str) -> None:
    async with listening() as (url, _app), httpx.AsyncClient(verify=False) as http:
        headers = {**KEY, "Content-Type": "application/json"}
        for content in (b" " * (LIMIT + 1), in_pieces(LIMIT + 1)):
            answer = await http.post(f"{url}{path}", content=content, headers=headers)
            assert (answer.status_code, LIMIT) == (413, 1000)
            assert "The request is larger than 1000 bytes" in answer.text
        fits = await http.post(f"{url}/length", content=in_pieces(LIMIT), headers=headers)
        assert fits.json() == LIMIT


async def test_an_unannounced_body_over_the_limit_ends_the_connection() -> None:
    async with listening() as (url, _app):
        reader, writer = await connect(url)
        body = b"7d0\r\n" + b"x" * 2000 + b"\r\n0\r\n\r\n"
        writer.write(head("POST", "/length", "Transfer-Encoding: chunked") + body)
        got = await read_all(reader)
        writer.close()
    assert got.startswith(b"HTTP/1.1 413 ") and b"connection: close" in got


@pytest.mark.parametrize(
    "pace", [BodyPace(pause_s=0.1, rate=1 << 20), BodyPace(pause_s=0.3, rate=1 << 30)], ids=["pause", "rate"]
)
async def test_a_body_that_comes_too_slowly_is_408(pace: BodyPace) -> None:
    async with listening(pace=pace) as (url, _app):
        reader, writer = await connect(url)
        writer.write(head("POST", "/json", "Content-Type: application/json", "Content-Length: 900") + b"{")
        dripping = asyncio.create_task(drip(writer, pace.pause_s / 10))
        got = await read_all(reader)
        dripping.cancel()
        writer.close()
    assert got.startswith(b"HTTP/1.1 408 ") and b"came too slowly" in got and b"connection: close" in got


async def drip(writer: asyncio.StreamWriter, every_s: float) -> None:
    while not writer.is_closing():
        writer.write(b" ")
        await asyncio.sleep(every_s)


async def test_two_lengths_are_refused_and_the_connection_ends() -> None:
    async with listening() as (url, _app):
        reader, writer = await connect(url)
        lines = ("Content-Length: 3", "Transfer-Encoding: chunked")
        writer.write(head("POST", "/length", *lines) + b"0\r\n\r\n")
        got = await read_all(reader)
        writer.close()
    assert got.startswith(b"HTTP/1.1 400 ") and b"connection: close" in got


async def test_an_address_in_use_is_an_os_error() -> None:
    with bind("127.0.0.1", 0) as bound, pytest.raises(OSError, match="in use"):
        bind("127.0.0.1", bound.getsockname()[1])
