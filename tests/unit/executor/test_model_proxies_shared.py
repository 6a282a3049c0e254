"""Doors to one model, one for each attempt: what one agent holds open costs no other anything."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.unit.executor.socket_connection import Ends, open_connection
from valkyrie.errors import InfrastructureError
from valkyrie.executor.proxies import MOST_OPEN, SHARED_MEMORY, ModelProxies, ModelProxy, proxy_folder


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[ModelProxy]:
    """The way to a server that answers every line with the same."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line)
        writer.close()

    async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
        made = ModelProxies(tmp_path / "doors").to(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        assert made is not None
        yield made


async def connect(stack: AsyncExitStack, folder: Path) -> Ends:
    reader, writer = await open_connection(folder)
    stack.callback(writer.close)
    return reader, writer


async def answer(ends: Ends) -> bytes:
    reader, writer = ends
    writer.write(b"hello\n")
    async with asyncio.timeout(60):
        return await reader.readline()


async def test_an_agent_that_holds_all_it_can_get_starves_only_itself(door: ModelProxy) -> None:
    async with door.opened() as greedy, door.opened() as modest, AsyncExitStack() as stack:
        held = [await connect(stack, greedy) for _ in range(MOST_OPEN)]
        assert [await answer(one) for one in held] == [b"hello\n"] * MOST_OPEN
        too_many, _ = await connect(stack, greedy)
        async with asyncio.timeout(60):
            assert await too_many.read() == b""
        assert await answer(await connect(stack, modest)) == b"hello\n"


async def test_a_door_is_shut_on_whoever_still_speaks_through_it(door: ModelProxy) -> None:
    async with AsyncExitStack() as stack:
        async with door.opened() as folder:
            reader, writer = await connect(stack, folder)
            assert await answer((reader, writer)) == b"hello\n"
        async with asyncio.timeout(60):
            assert await reader.read() == b""
    async with door.opened() as again:
        assert again == folder  # what providers remember of folders does not grow with the trials


async def test_folders_are_cleared_away(tmp_path: Path) -> None:
    (tmp_path / "doors" / "door-of-a-killed-executor").mkdir(parents=True)
    doors = ModelProxies(tmp_path / "doors")
    await doors.clear()
    door = doors.to("http://127.0.0.1:1")
    assert door is not None and door is doors.to("http://127.0.0.1:1/v1")
    async with door.opened() as folder:
        assert list((tmp_path / "doors").iterdir()) == [folder]
    await doors.clear()
    assert list(tmp_path.iterdir()) == []


async def test_doors_are_made_in_memory_and_in_no_other_user_s_folder(tmp_path: Path) -> None:
    place = proxy_folder(tmp_path / "home-of-mine" / "doors")
    if not SHARED_MEMORY.is_mount():
        assert place == tmp_path / "home-of-mine" / "doors"
        return
    assert place.parent == SHARED_MEMORY and "home-of-mine" not in place.name and not place.exists()
    assert proxy_folder(tmp_path / "doors", memory=tmp_path) == tmp_path / "doors"
    trap = tmp_path / "trap"
    trap.mkdir()
    trap.chmod(0o777)
    door = ModelProxies(trap).to("http://127.0.0.1:1")
    assert door is not None
    with pytest.raises(InfrastructureError, match="not a folder of this user's own"):
        async with door.opened():
            pass
