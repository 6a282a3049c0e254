"""A tracker that answers what a test tells it to, byte by byte, on loopback; it can also break off."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qsl, unquote, urlsplit

KEY = "vk_planted-key-4711"


@dataclass
class Answer:
    """What one request is answered with."""

    body: bytes | Sequence[bytes] = b""
    """A sequence is sent chunk by chunk."""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: bool = False
    """Break off after the last chunk, without saying that it was the last."""
    drop: bool = False
    """Hang up without a word."""
    hold: threading.Event | None = None
    """Wait for this before the end."""


@dataclass(frozen=True)
class Asked:
    """One request that came."""

    method: str
    path: str
    query: list[tuple[str, str]]
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def said(value: Any, status: int = 200, **headers: str) -> Answer:
    """An answer in JSON."""
    return Answer(json.dumps(value).encode(), status, headers)


def refused(kind: str, status: int, message: str = "no", **more: Any) -> Answer:
    """An answer that is an error of the tracker's."""
    headers = {"Retry-After": str(more["retry_after"])} if "retry_after" in more else {}
    return said({"error": {"type": kind, "message": message, "exit_code": 1, **more}}, status, **headers)


class ScriptedTracker:
    """Runs in a thread of its own. Of several answers to a request the last is given again and again."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self._answers: dict[tuple[str, str], list[Answer]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._server: asyncio.Server | None = None
        self.port = 0

    def on(self, method: str, path: str, *answers: Answer) -> None:
        """Say what to answer, over what was said before; a path may end in `*`."""
        self._answers[method, path] = list(answers)

    def requests(self, method: str, path: str) -> list[Asked]:
        return [one for one in self.asked if (one.method, one.path) == (method, path)]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        self.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def begin(self) -> None:
        """Listen, on the same port as before."""
        asyncio.run_coroutine_threadsafe(self._begin(), self._loop).result(60)

    def leave(self) -> None:
        """Refuse connections and break those there are."""
        asyncio.run_coroutine_threadsafe(self._leave(), self._loop).result(60)

    async def _begin(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _leave(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        serving = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            asked = await _read(reader)
            self.asked.append(asked)
            left = self._find(asked)
            answer = left.pop(0) if len(left) > 1 else left[0] if left else _nothing(asked)
            await _answer(writer, asked, answer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client left
        finally:
            writer.close()

    def _find(self, asked: Asked) -> list[Answer]:
        for (method, path), answers in self._answers.items():
            fits = asked.path.startswith(path[:-1]) if path.endswith("*") else asked.path == path
            if fits and asked.method == method:
                return answers
        return []


def _nothing(asked: Asked) -> Answer:
    return refused("UnknownError", 404, f"nothing was scripted for {asked.method} {asked.path}")


async def _read(reader: asyncio.StreamReader) -> Asked:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    method, target, _ = head[0].split(" ")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    parts = urlsplit(target)
    return Asked(method, unquote(parts.path), parse_qsl(parts.query), headers, body)


async def _answer(writer: asyncio.StreamWriter, asked: Asked, answer: Answer) -> None:
    if answer.drop:
        return
    chunked = not isinstance(answer.body, bytes)
    length = {"Transfer-Encoding": "chunked"} if chunked else {"Content-Length": str(len(answer.body))}
    lines = [f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}"]
    lines += [
        f"{name}: {value}" for name, value in {**length, "Connection": "close", **answer.headers}.items()
    ]
    writer.write("\r\n".join([*lines, "", ""]).encode())
    for piece in answer.body if not isinstance(answer.body, bytes) else ():
        writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        await writer.drain()
    if isinstance(answer.body, bytes) and asked.method != "HEAD":
        writer.write(answer.body)
    await writer.drain()
    if answer.hold:
        await asyncio.to_thread(answer.hold.wait)
    if chunked and not answer.cut:
        writer.write(b"0\r\n\r\n")
        await writer.drain()
