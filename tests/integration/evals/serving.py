"""A model server on a thread of its own, for tests whose commands have the main thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from valkyrie.testing.model_server import ModelServer, Script


@contextmanager
def serving(script: Script) -> Iterator[ModelServer]:
    """The server, gone at the end."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def enter() -> ModelServer:
        return await ModelServer(script).__aenter__()

    try:
        server = asyncio.run_coroutine_threadsafe(enter(), loop).result(60)
        try:
            yield server
        finally:
            asyncio.run_coroutine_threadsafe(server.__aexit__(None, None, None), loop).result(60)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()
