"""The executor's control socket: unix, mode 0600, peer's user checked; one JSON line in, one out."""

from __future__ import annotations

import asyncio
import contextlib
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
        self._ours = -1

    async def start(self) -> None:
        """Listen; a socket left by a dead executor is replaced (the caller holds the lock)."""
        self._path.unlink(missing_ok=True)
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            link.bind(str(self._path))
            self._path.chmod(0o600)  # before anyone can connect: nobody listens yet
            self._ours = self._path.stat().st_ino
            self._server = await asyncio.start_unix_server(self._serve, sock=link, limit=LONGEST_REQUEST)
        except BaseException:
            link.close()
            raise

    async def keep_up(self) -> None:
        """Listen anew when the socket's file is gone, as after a cleaning of /tmp."""
        if self._server and not self._path.exists():
            self._server.close()
            await self.start()

    async def close(self) -> None:
        """Listen no more. A socket that is not ours by now belongs to our successor."""
        if self._server:
            self._server.close()
            with contextlib.suppress(FileNotFoundError):
                if self._path.stat().st_ino == self._ours:
                    self._path.unlink()
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
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
            return {"error": "not a request this executor knows"}
        try:
            return await verb(request)
        except Exception as error:  # noqa: BLE001 - the edge: whoever asks is answered, and we go on
            # The kind alone: what was sent may be a secret.
            return {"error": f"{type(error).__name__} while it was carried out"}


def _peer_uid(writer: asyncio.StreamWriter) -> int:
    link = writer.get_extra_info("socket")
    if not hasattr(socket, "SO_PEERCRED"):
        return os.getuid()  # Where the kernel cannot say, the socket's mode is the guard.
    credentials = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])
