"""One process at a time."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
from collections.abc import AsyncIterator
from pathlib import Path

from valkyrie.agents.layers.tools import Log

_POLL_S = 0.2


@contextlib.asynccontextmanager
async def locked(file: Path, log: Log) -> AsyncIterator[None]:
    """Only one process is inside; who was killed there is not."""
    with file.open("a") as held:
        told = False
        while True:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not told:
                    log("Another process is installing the same agent; waiting for it.")
                    told = True
                await asyncio.sleep(_POLL_S)
        yield
