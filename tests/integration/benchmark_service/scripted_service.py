"""A service that answers exactly what a test wrote, and remembers what it was asked."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from benchmark_service.client import BenchmarkServiceClient

Answer = Response | Callable[[Request], Awaitable[Response]]
Stream = Callable[[WebSocket], Awaitable[None]]


@dataclass
class Asked:
    """One request as the service saw it."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: Any = None


@dataclass
class ScriptedService:
    """Answers by `"GET /path"`, streams by path; of several for one key the last repeats."""

    answers: dict[str, list[Answer]] = field(default_factory=dict)
    streams: dict[str, list[Stream]] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    url: str = ""

    def answer(self, key: str, *answers: Answer) -> None:
        self.answers[key] = list(answers)

    def stream(self, path: str, *streams: Stream) -> None:
        self.streams[path] = list(streams)

    def count(self, path: str) -> int:
        return sum(asked.path == path for asked in self.asked)

    def app(self) -> Starlette:
        methods = ["GET", "POST"]
        return Starlette(
            routes=[
                Route("/{path:path}", self._http, methods=methods),
                WebSocketRoute("/{path:path}", self._socket),
            ]
        )

    async def _http(self, request: Request) -> Response:
        raw = await request.body()
        self.asked.append(
            Asked(
                request.method,
                request.url.path,
                request.url.query,
                dict(request.headers),
                json.loads(raw) if raw else None,
            )
        )
        script = self.answers.get(f"{request.method} {request.url.path}")
        if not script:
            return JSONResponse({"detail": "Not Found"}, 404)
        answer = script.pop(0) if len(script) > 1 else script[0]
        return answer if isinstance(answer, Response) else await answer(request)

    async def _socket(self, ws: WebSocket) -> None:
        asked = Asked("WS", ws.url.path, ws.url.query, dict(ws.headers))
        self.asked.append(asked)
        script = self.streams[ws.url.path]
        await (script.pop(0) if len(script) > 1 else script[0])(_Recording(ws, asked))


class _Recording(WebSocket):
    """The socket of a stream; what the client sends first is remembered."""

    def __init__(self, ws: WebSocket, asked: Asked) -> None:
        super().__init__(ws.scope, ws._receive, ws._send)
        self._asked = asked

    async def begin(self) -> Any:
        """Accept, and return the client's request."""
        await self.accept()
        self._asked.body = await self.receive_json()
        return self._asked.body


def chunks(*frames: dict[str, Any] | str | bytes, close: int | None = 1000, reason: str = "") -> Stream:
    """A stream that sends these frames and closes; `close=None` drops the connection instead."""

    async def play(ws: Any) -> None:
        await ws.begin()
        try:
            for frame in frames:
                if isinstance(frame, bytes):
                    await ws.send_bytes(frame)
                else:
                    await ws.send_text(frame if isinstance(frame, str) else json.dumps(frame))
            # A handler that returns without closing has its connection cut, as a killed process has.
            if close is not None:
                await ws.close(close, reason)
        except WebSocketDisconnect:
            pass

    return play


def bound_socket() -> socket.socket:
    """A loopback socket on a free port. asyncio sends at once only on sockets that name TCP."""
    bound = socket.socket(proto=socket.IPPROTO_TCP)
    bound.bind(("127.0.0.1", 0))
    return bound


def unused_url() -> str:
    """Where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"http://127.0.0.1:{taken.getsockname()[1]}"


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()


@asynccontextmanager
async def serving(app: Any, listener: socket.socket | None = None, **options: Any) -> AsyncIterator[str]:
    """The URL of an app served on loopback, in this process, for as long as the block lasts."""
    listener = listener or bound_socket()
    config = uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=1, **options)
    server = _Server(config)
    running = asyncio.create_task(server._serve([listener]))
    try:
        await server.up.wait()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await running
        listener.close()


@asynccontextmanager
async def scripted(**options: Any) -> AsyncIterator[ScriptedService]:
    """A scripted service, running."""
    service = ScriptedService()
    async with serving(service.app(), lifespan="off", **options) as url:
        service.url = url
        yield service


class Pauses:
    """Stands in for sleeping: remembers each pause and lets others run."""

    def __init__(self) -> None:
        self.taken: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.taken.append(seconds)
        await asyncio.sleep(0)


def client_of(url: str, headers: dict[str, str] | None = None, **options: Any) -> BenchmarkServiceClient:
    """A client that never really sleeps between attempts."""
    options = {"pause": Pauses(), "timeout": 10, **options}
    return BenchmarkServiceClient(url, headers, **options)


__all__ = [
    "JSONResponse",
    "Pauses",
    "Response",
    "ScriptedService",
    "WebSocketDisconnect",
    "bound_socket",
    "chunks",
    "client_of",
    "scripted",
    "serving",
    "unused_url",
]
