"""How far a run is: a line that is drawn again on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self, TextIO

from benchmark_runner.running import Watch

REDRAW_S = 0.1
LINE_S = 30.0
BAR = 24
RATE_WINDOW_S = 30.0


class Progress:
    """Follows a `Watch` until the block ends."""

    def __init__(
        self,
        watch: Watch,
        *,
        sink: TextIO | None = None,
        quiet: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._watch = watch
        self._sink = sink or sys.stderr
        self._live = self._sink.isatty()
        self._quiet = quiet
        self._clock = clock
        self._began = self._drawn = clock()
        self._marks = [(self._began, 0)]

    def __enter__(self) -> Self:
        if not self._quiet:
            self._watch.changed = self._changed
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watch.changed = lambda: None
        self.clear()

    def clear(self) -> None:
        """Take the line away, so that something else can be said."""
        if self._live and not self._quiet:
            self._sink.write("\r\x1b[2K")
            self._sink.flush()

    def _changed(self) -> None:
        now = self._clock()
        if now - self._drawn < (REDRAW_S if self._live else LINE_S):
            return
        self._drawn = now
        text = self.line(now)
        if self._live:
            # A line that wraps could not be taken away again.
            text = f"\r\x1b[2K{text[: shutil.get_terminal_size().columns - 1]}"
        self._sink.write(text if self._live else f"{text}\n")
        self._sink.flush()

    def line(self, now: float) -> str:
        """`[####    ] 120/2000   6%  98.3/s  2 errors  ETA 0:19`."""
        watch = self._watch
        share = watch.done / watch.total if watch.total else 1.0
        filled = int(share * BAR)
        rate = self._rate(now)
        parts = [f"[{'#' * filled}{' ' * (BAR - filled)}] {watch.done}/{watch.total} {share:4.0%}"]
        parts.append(f"{rate:.1f}/s" if rate >= 1 or not rate else f"{rate * 60:.1f}/min")
        parts.append(f"{watch.in_flight} running")
        if watch.errors:
            parts.append(f"{watch.errors} error{'s' if watch.errors > 1 else ''}")
        if rate and watch.done < watch.total:
            parts.append(f"ETA {_clock((watch.total - watch.done) / rate)}")
        return "  ".join(parts)

    def _rate(self, now: float) -> float:
        """Tasks a second, of late."""
        self._marks.append((now, self._watch.worked))
        while len(self._marks) > 2 and now - self._marks[1][0] > RATE_WINDOW_S:
            self._marks.pop(0)
        since, before = self._marks[0]
        return (self._watch.worked - before) / (now - since) if now > since else 0.0


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
