"""A connection to a socket in a folder, as a sandbox opens it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from valkyrie.trial.context import SOCKET

Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def open_connection(folder: Path) -> Ends:
    """A connection, however long the folder's path is."""
    place = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return await asyncio.open_unix_connection(f"/proc/self/fd/{place}/{SOCKET}")
    finally:
        os.close(place)
