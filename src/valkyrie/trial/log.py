"""The log of one attempt: made at its first line, flushed soon, bounded in size."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path
from typing import TextIO

from sandboxes.masker import Masker
from sandboxes.types import StreamName

LOG_LIMIT = 64 * 1024 * 1024
FLUSH_AT = 32 * 1024
FLUSH_EVERY_S = 0.2


class AttemptLog:
    """Output as it came, under a heading per phase.

    Headings alone make no file: an attempt that printed nothing costs nothing. Writing to the page cache
    is quick enough for the event loop; pieces are gathered so that chatty agents stay cheap.
    """

    __slots__ = ("_buffer", "_failed", "_file", "_masker", "_path", "_pending", "_size", "_timer")

    def __init__(self, path: Path, masker: Masker | None = None) -> None:
        self._path = path
        self._masker = masker
        self._failed: OSError | None = None
        self._file: TextIO | None = None
        self._buffer: list[str] = []
        self._pending = 0
        self._size = 0
        self._timer: asyncio.TimerHandle | None = None

    def write(self, _stream: StreamName, text: str) -> None:
        """One piece of output; OSError when the log cannot be written, which ends the attempt."""
        if self._failed:
            raise self._failed
        if self._size >= LOG_LIMIT:
            return
        self._size += len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
        self._pending += len(text)
        self._buffer.append(text)
        if self._size >= LOG_LIMIT:
            self._buffer.append(f"\n… output beyond {LOG_LIMIT >> 20} MiB is not kept …\n")
        if self._pending > FLUSH_AT:
            self._flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_EVERY_S, self._flush_late)

    def heading(self, text: str) -> None:
        """A line that says which phase begins; kept back until something is printed."""
        self._buffer.append(f"── {time.strftime('%H:%M:%S')} {text}\n")

    def note(self, text: str) -> None:
        """A line of ours that is worth a file by itself. One that cannot be written is let go."""
        with contextlib.suppress(OSError):
            self.write("stderr", f"── {self._masker.text(text) if self._masker else text}\n")

    def close(self) -> None:
        """Write what is left, if anything was printed at all. A full disk is no reason to lose a grade."""
        with contextlib.suppress(OSError):
            if self._size:
                self._flush()
        self._buffer.clear()
        file, self._file = self._file, None
        if file:
            with contextlib.suppress(OSError):
                file.close()

    def _flush_late(self) -> None:
        """From the loop, where nobody would hear of an error: who writes next does."""
        try:
            self._flush()
        except OSError as error:
            self._failed = error

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
