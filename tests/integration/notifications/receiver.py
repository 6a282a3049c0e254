"""A receiver of messages on loopback: answers as told, and remembers what arrived."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Reply:
    """What a request is answered with; a silent one never is."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b"ok"
    silent: bool = False
    hang_up: bool = False


@dataclass(frozen=True)
class Arrived:
    """One request."""

    path: str
    headers: dict[str, str]
    body: bytes


class Receiver:
    """Answers `replies` in turn, and with the last one from then on."""

    def __init__(self) -> None:
        self.replies: list[Reply] = [Reply()]
        self.arrived: list[Arrived] = []
        self.at_once = 0
        self.most_at_once = 0
        self.gate: asyncio.Event | None = None
        """Answers wait for it, where there is one."""
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    @contextlib.asynccontextmanager
    async def running(self, tls: ssl.SSLContext | None = None) -> AsyncIterator[Receiver]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=tls)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def _tasks(self) -> set[asyncio.Task[None]]:
        return self.__dict__.setdefault("_held", set())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await self._answer(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # the sender gave up, or the test is over
        finally:
            self.at_once -= 1
            writer.close()
            self._tasks.discard(task)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {}
        for line in head[1:]:
            name, _, value = line.partition(": ")
            if name:
                headers[name.lower()] = value
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        self.arrived.append(Arrived(head[0].split(" ")[1], headers, body))
        if self.gate is not None:
            await self.gate.wait()
        if reply.silent:
            await reader.read()  # until the sender hangs up
            return
        if reply.hang_up:
            return
        fields = {"Content-Length": str(len(reply.body)), "Connection": "close", **reply.headers}
        lines = [f"HTTP/1.1 {reply.status} Said", *(f"{name}: {value}" for name, value in fields.items())]
        writer.write("\r\n".join([*lines, "", ""]).encode() + reply.body)
        await writer.drain()
