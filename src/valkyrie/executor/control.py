"""The executor's control socket: unix, mode 0600, peer's user checked; one JSON line in, one out."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from valkyrie.nouns import Json

Verb = Callable[[Json], Awaitable[Json]]
LONGEST_REQUEST = 4 * 1024 * 1024


class ControlServer:
    """Answers the verbs it was given, to processes of the same user only."""

    def __init__(self, path: Path, verbs: Mapping[str, Verb]) -> None:
        self._path = path
        self._verbs = verbs
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen; a socket left by a dead executor is replaced (the caller holds the lock)."""
        self._path.unlink(missing_ok=True)
        before = os.umask(0o177)
        try:
            self._server = await asyncio.start_unix_server(
                self._serve, path=str(self._path), limit=LONGEST_REQUEST
            )
        finally:
            os.umask(before)

    async def close(self) -> None:
        """Listen no more."""
        if self._server:
            self._server.close()
            self._path.unlink(missing_ok=True)
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(30):
                if _peer_uid(writer) not in (os.getuid(), 0):
                    return
                answer = await self._answer(await reader.readline())
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()
        except (OSError, TimeoutError, ValueError):
            pass  # The caller went away, or sent more than a request; nobody is left to tell.
        finally:
            writer.close()

    async def _answer(self, line: bytes) -> Json:
        try:
            request = json.loads(line)
            verb = self._verbs[request.pop("verb")]
        except (ValueError, KeyError, AttributeError, TypeError):
            return {"error": "not a request this executor knows"}
        return await verb(request)


def _peer_uid(writer: asyncio.StreamWriter) -> int:
    link = writer.get_extra_info("socket")
    if not hasattr(socket, "SO_PEERCRED"):
        return os.getuid()  # Where the kernel cannot say, the socket's mode is the guard.
    credentials = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])
