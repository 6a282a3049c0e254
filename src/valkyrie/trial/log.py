"""The log of one attempt: made at its first line, flushed soon, bounded in size."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TextIO

from sandboxes.types import StreamName

LOG_LIMIT = 64 * 1024 * 1024
FLUSH_AT = 32 * 1024
FLUSH_EVERY_S = 0.2


class AttemptLog:
    """Output as it came, under a heading per phase.

    Headings alone make no file: an attempt that printed nothing costs nothing. Writing to the page cache
    is quick enough for the event loop; pieces are gathered so that chatty agents stay cheap.
    """

    __slots__ = ("_buffer", "_file", "_path", "_pending", "_size", "_timer")

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: TextIO | None = None
        self._buffer: list[str] = []
        self._pending = 0
        self._size = 0
        self._timer: asyncio.TimerHandle | None = None

    def write(self, _stream: StreamName, text: str) -> None:
        """One piece of output."""
        if self._size >= LOG_LIMIT:
            return
        self._size += len(text)
        self._pending += len(text)
        self._buffer.append(text)
        if self._size >= LOG_LIMIT:
            self._buffer.append(f"\n… output beyond {LOG_LIMIT >> 20} MiB is not kept …\n")
        if self._pending > FLUSH_AT:
            self._flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_EVERY_S, self._flush)

    def heading(self, text: str) -> None:
        """A line that says which phase begins; kept back until something is printed."""
        self._buffer.append(f"── {time.strftime('%H:%M:%S')} {text}\n")

    def note(self, text: str) -> None:
        """A line of ours that is worth a file by itself."""
        self.write("stderr", f"── {text}\n")

    def close(self) -> None:
        """Write what is left, if anything was printed at all."""
        if self._size:
            self._flush()
        if self._file:
            self._file.close()
            self._file = None

    def _flush(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("a", encoding="utf-8", errors="replace")
        self._file.write("".join(self._buffer))
        self._file.flush()
        self._buffer.clear()
        self._pending = 0
