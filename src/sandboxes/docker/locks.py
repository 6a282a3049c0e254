"""Locks between processes that use one engine from one data folder."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

_POLL_SECONDS = 0.2
"""Between looks at a lock another process holds: the kernel tells nobody when it is free."""


@asynccontextmanager
async def locked(path: Path) -> AsyncIterator[None]:
    """Hold a lock that ends with this process, however it ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(_POLL_SECONDS)
        yield
    finally:
        os.close(fd)
