"""Archives as they come in: to a file of ours, piece by piece, hashed on the way."""

from __future__ import annotations

import errno
import hashlib
import os
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from valkyrie.api.context import Asking
from valkyrie.api.lanes import Lane
from valkyrie.errors import DiskFullError, InfrastructureError
from valkyrie.evals.ingest_archive import sweep_unpacked
from valkyrie.store.layout import DataFolder

_WRITE_BYTES = 1 << 20
_STALE_S = 24 * 3600.0
_PREFIX = "part-"


@dataclass(frozen=True, slots=True)
class Received:
    """An archive that came whole."""

    file: Path
    digest: str
    """sha256, in hexadecimal."""


@asynccontextmanager
async def receive_archive(ask: Asking) -> AsyncIterator[Received]:
    """The request's body as a file, which is gone afterwards unless it was moved away."""
    context = ask.context
    with context.lanes.downloads.seat():
        writer = _Writer(context.lanes.quick, incoming(context.tracker_app.data))
        try:
            async for piece in ask.request.stream():
                await writer.write(piece)
            yield Received(writer.file, await writer.finish())
        except OSError as error:
            raise _explained(error) from error
        finally:
            writer.remove()


def incoming(data: DataFolder) -> Path:
    """Where archives are put together."""
    return data.root / "incoming"


def sweep_incoming(data: DataFolder) -> None:
    """Remove what servers that were killed were being sent."""
    for part in incoming(data).glob(f"{_PREFIX}*"):
        if part.stat().st_mtime < time.time() - _STALE_S:
            part.unlink(missing_ok=True)
    sweep_unpacked(incoming(data))


class _Writer:
    """Writes in threads, a megabyte at a time: neither a thread per packet, nor a whole archive in memory."""

    def __init__(self, lane: Lane, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, name = tempfile.mkstemp(dir=folder, prefix=_PREFIX)
        self.file = Path(name)
        self._lane = lane
        self._opened = os.fdopen(handle, "wb")
        self._hash = hashlib.sha256()
        self._held = bytearray()

    async def write(self, piece: bytes) -> None:
        self._held += piece
        if len(self._held) >= _WRITE_BYTES:
            await self._lane.run(self._flush)

    def _flush(self) -> None:
        self._hash.update(self._held)
        self._opened.write(self._held)
        self._held.clear()

    async def finish(self) -> str:
        """Its digest, once everything is on disk."""

        def close() -> str:
            self._flush()
            self._opened.close()
            return self._hash.hexdigest()

        return await self._lane.run(close)

    def remove(self) -> None:
        self._opened.close()
        self.file.unlink(missing_ok=True)


def _explained(error: OSError) -> InfrastructureError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFullError("The tracker's disk is full; whoever runs it must make room.")
    return InfrastructureError(f"The tracker cannot keep what was sent: {error.strerror or error}.")
