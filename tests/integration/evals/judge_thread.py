"""A scripted judge in a thread of its own, for commands that bring their own event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from valkyrie.testing import ModelServer, Script


@contextmanager
def served(script: Script) -> Iterator[ModelServer]:
    """The server, ready; ended with the block."""
    loop = asyncio.new_event_loop()
    server, ready, over = ModelServer(script), threading.Event(), asyncio.Event()

    async def serve() -> None:
        async with server:
            ready.set()
            await over.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert ready.wait(60)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(60)
        loop.close()
