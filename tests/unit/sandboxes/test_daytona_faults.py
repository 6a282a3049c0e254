"""Trouble on the line between the Daytona provider and its server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from sandboxes.daytona import DaytonaSandboxProvider
from sandboxes.daytona.sdk import LOST, DaytonaBackoff
from sandboxes.errors import (
    SandboxCapacityError,
    SandboxCommandError,
    SandboxConnectionError,
    SandboxError,
    SandboxNotFoundError,
)
from sandboxes.process import ProcessProvider
from sandboxes.retry import Backoff
from sandboxes.server import SandboxServer
from sandboxes.testing.base import output_of
from sandboxes.types import DaytonaProviderConfig, SandboxCreateRequest, SandboxQuery
from tests.ports import free_port

QUICK = DaytonaBackoff(
    lost=Backoff(first_s=0, longest_s=0, attempts=3),
    throttled=Backoff(first_s=0.01, longest_s=0.01, within_s=30),
)


@dataclass
class Fault:
    """What happens to the next requests with these bytes in their head."""

    within: bytes
    times: int = 1
    answer: bytes | None = None
    """Sent instead of the server's."""
    cut_after: int = 0
    """How much of the server's answer comes through before the line is cut."""
    forward: bool = False
    """The server gets the request although its answer is replaced."""


def answer(status: str, *headers: str) -> bytes:
    return "\r\n".join(
        [f"HTTP/1.1 {status}", "Content-Length: 0", "Connection: close", *headers, "", ""]
    ).encode()


class Line:
    """A line to the server that can be made to fail; each connection carries one request."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []
        self.struck = 0
        self.port = 0
        self.upstream = free_port()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            fault = next((fault for fault in self.faults if fault.within in head and fault.times), None)
            if fault is not None:
                fault.times -= 1
                self.struck += 1
            if fault is not None and fault.answer is not None:
                if fault.forward:
                    await self._forward(head, reader, None, None)
                else:
                    await reader.read(1 << 16)
                writer.write(fault.answer)
                await writer.drain()
            else:
                await self._forward(head, reader, writer, None if fault is None else fault.cut_after)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _forward(
        self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter | None, left: int | None
    ) -> None:
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self.upstream)
        if b"Upgrade: websocket" not in head:
            head = head.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
        to_server.write(head)
        sending = asyncio.create_task(copy(reader, to_server))
        try:
            while data := await from_server.read(1 << 16):
                if writer is None:
                    continue
                piece = data if left is None else data[:left]
                writer.write(piece)
                await writer.drain()
                if left is not None:
                    left -= len(piece)
                    if left <= 0:
                        return
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            to_server.close()


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()


@pytest.fixture
async def line() -> AsyncIterator[Line]:
    line = Line()
    server = await asyncio.start_server(line.carry, "127.0.0.1", 0)
    line.port = server.sockets[0].getsockname()[1]
    yield line
    server.close()
    await server.wait_closed()


@pytest.fixture
async def config(line: Line, tmp_path: Path) -> AsyncIterator[DaytonaProviderConfig]:
    behind = ProcessProvider(tmp_path / "state")
    server = SandboxServer(port=line.upstream, public_url=f"http://127.0.0.1:{line.port}")
    await server.start()
    grant = server.grant(behind, labels={"grant": "faults"})
    yield DaytonaProviderConfig(
        DAYTONA_API_KEY=grant.api_key, DAYTONA_API_URL=grant.api_url, DAYTONA_TARGET=grant.target
    )
    await server.close()
    await behind.reap({})


@pytest.fixture
async def provider(config: DaytonaProviderConfig) -> AsyncIterator[DaytonaSandboxProvider]:
    async with DaytonaSandboxProvider(config, backoff=QUICK) as provider:
        yield provider


REQUEST = SandboxCreateRequest(labels={"Id": "r"})


@pytest.mark.parametrize("cuts", [[0], [200], [3000, 5000, 9000]])
async def test_a_dropped_stream_goes_on_where_it_broke_off(
    provider: DaytonaSandboxProvider, line: Line, cuts: list[int]
) -> None:
    sandbox = await provider.create_sandbox(REQUEST)
    line.faults = [Fault(b"/logs?follow=true", cut_after=cut) for cut in cuts]
    script = 'i=0; while [ $i -lt 800 ]; do echo "é€ $i"; i=$((i+1)); done; exit 3'
    pieces: list[str] = []
    with pytest.raises(SandboxCommandError) as caught:
        async for piece in sandbox.command(script):
            pieces.append(piece)
    assert caught.value.exit_code == 3
    assert line.struck == len(cuts)
    assert [text.split()[1] for text in "".join(pieces).splitlines()] == [str(n) for n in range(800)]


async def test_a_line_that_stays_dead_ends_the_stream(provider: DaytonaSandboxProvider, line: Line) -> None:
    sandbox = await provider.create_sandbox(REQUEST)
    line.faults = [Fault(b"/logs?follow=true", times=1000)]
    with pytest.raises(SandboxConnectionError):
        await sandbox.exec("echo never seen")


async def test_asking_too_often_is_waited_out(provider: DaytonaSandboxProvider, line: Line) -> None:
    refusal = answer("429 Too Many Requests", "Retry-After-Sandbox-Create: 0.05")
    line.faults = [Fault(b"POST /api/sandbox", times=3, answer=refusal)]
    sandbox = await provider.create_sandbox(REQUEST)
    assert line.struck == 3
    assert await output_of(sandbox, "echo here") == "here\n"


async def test_asking_too_often_for_too_long_is_a_lack_of_room(
    provider: DaytonaSandboxProvider, line: Line
) -> None:
    refusal = answer("429 Too Many Requests", "Retry-After-Sandbox-Create: 77", "Retry-After: 5")
    line.faults = [Fault(b"POST /api/sandbox", times=100, answer=refusal)]
    with pytest.raises(SandboxCapacityError) as caught:
        await provider.create_sandbox(REQUEST)
    assert caught.value.retry_after == 77
    assert line.struck == 1


async def test_a_gateways_hiccup_is_passed_over(provider: DaytonaSandboxProvider, line: Line) -> None:
    sandbox = await provider.create_sandbox(REQUEST)
    line.faults = [Fault(b"/files/bulk-upload", times=2, answer=answer("502 Bad Gateway"))]
    await sandbox.upload_file("/app/x", b"x")
    assert line.struck == 2
    assert await sandbox.download_file("/app/x") == b"x"


async def test_a_gateways_error_for_a_sandbox_that_is_gone(
    provider: DaytonaSandboxProvider, config: DaytonaProviderConfig, line: Line
) -> None:
    sandbox = await provider.create_sandbox(REQUEST)
    async with DaytonaSandboxProvider(config) as other:
        await other.delete_sandbox(sandbox.id)
    line.faults = [Fault(b"/toolbox/", times=100, answer=answer("502 Bad Gateway"))]
    with pytest.raises(SandboxNotFoundError):
        await sandbox.upload_file("/app/x", b"x")


async def test_no_server_at_all(config: DaytonaProviderConfig, line: Line) -> None:
    line.faults = [Fault(b"/api/", times=1000)]
    once = DaytonaBackoff(lost=replace(LOST, attempts=1))
    async with DaytonaSandboxProvider(config, backoff=once) as provider:
        with pytest.raises(SandboxConnectionError):
            await provider.create_sandbox(REQUEST)


async def test_a_lost_answer_does_not_lose_the_sandbox(provider: DaytonaSandboxProvider, line: Line) -> None:
    line.faults = [Fault(b"POST /api/sandbox")]
    sandbox = await provider.create_sandbox(REQUEST)
    assert await output_of(sandbox, "echo here") == "here\n"
    found = [each.id async for each in provider.list_sandboxes(SandboxQuery(labels={"Id": "r"}))]
    assert found == [sandbox.id]


async def test_a_failed_creation_leaves_nothing(provider: DaytonaSandboxProvider, line: Line) -> None:
    failure = answer("500 Internal Server Error")
    line.faults = [Fault(b"POST /api/sandbox", answer=failure, forward=True)]
    with pytest.raises(SandboxError, match="create"):
        await provider.create_sandbox(REQUEST)
    assert line.struck == 1
    assert [each.id async for each in provider.list_sandboxes()] == []
