"""Doors to models on a server: what a caller's address leads to is looked at when it is connected to."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.unit.executor.socket_connection import open_connection
from valkyrie.executor.proxies import ModelProxies


@pytest.fixture
async def port() -> AsyncIterator[int]:
    """Something that listens on loopback, and greets."""

    async def greet(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


async def heard(doors: ModelProxies, url: str) -> bytes:
    door = doors.to(url)
    assert door is not None
    async with asyncio.timeout(60), door.opened() as folder:
        reader, writer = await open_connection(folder)
        try:
            return await reader.read()
        finally:
            writer.close()
            await writer.wait_closed()


@pytest.mark.parametrize(
    ("host", "guarded", "answer"),
    [
        ("127.0.0.1", True, b"hello"),
        ("localhost", True, b"hello"),
        # Names that turn out to be loopback, as one can that pointed elsewhere when it was planned.
        ("2130706433", True, b""),
        ("0x7f.1", True, b""),
        ("2130706433", False, b"hello"),
    ],
)
async def test_a_name_that_turns_out_to_be_this_machine(
    tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch, host: str, guarded: bool, answer: bytes
) -> None:
    monkeypatch.setenv("VALKYRIE_CONFIG_PATH", str(tmp_path / "valkyrie.yaml"))
    assert socket.gethostbyname(host) == "127.0.0.1"
    doors = ModelProxies(tmp_path / "doors", guarded=guarded)
    assert await heard(doors, f"http://{host}:{port}/v1") == answer
