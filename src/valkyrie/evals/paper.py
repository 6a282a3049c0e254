"""Where an eval's report is printed: a stream, its colours, its signs, and one line that is rewritten."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TextIO

from valkyrie.report.formats import printable
from valkyrie.report.layout import PLAIN, Ink
from valkyrie.report.live import Region, start_deaf


@dataclass(frozen=True, slots=True)
class Signs:
    """The few characters that are not ASCII."""

    passed: str = "✔"
    failed: str = "✘"
    error: str = "!"
    aside: str = "–"
    rule: str = "━━━"
    warning: str = "⚠ "


ASCII = Signs("ok", "FAIL", "!", "-", "===", "")
_SPELT_OUT = str.maketrans({"…": "...", "–": "-", "—": "-"})


@dataclass(frozen=True, slots=True)
class Paper:
    """What people read: standard output, or standard error where JSON lines go to standard output."""

    stream: TextIO
    ink: Ink = PLAIN
    redraws: bool = False
    """A terminal whose last line can be rewritten."""
    width: int | None = None
    """Columns of a terminal; None in a pipe, where nothing is cut."""
    signs: Signs = Signs()

    @classmethod
    def of(cls, stream: TextIO, *, no_color: bool = False) -> Paper:
        """As the stream is: colour and a live line on a terminal only, ASCII where it can do no better."""
        terminal = stream.isatty()
        dumb = os.environ.get("TERM", "dumb") == "dumb"
        return cls(
            stream,
            ink=Ink(terminal and not (no_color or dumb or os.environ.get("NO_COLOR"))),
            redraws=terminal and not dumb,
            width=shutil.get_terminal_size().columns if terminal else None,
            signs=Signs() if _writes(stream, "✔✘━⚠…–") else ASCII,
        )

    def write(self, lines: Iterable[str]) -> None:
        """Lines, at once."""
        text = "".join(f"{printable(line, colors=self.ink.enabled)}\n" for line in lines)
        if self.signs is ASCII:
            encoding = self.stream.encoding or "ascii"
            text = text.translate(_SPELT_OUT).encode(encoding, "replace").decode(encoding)
        write_kept(self.stream, text)

    def region(self) -> Region | None:
        """The line below everything printed so far, where the stream has one."""
        return Region(self.stream) if self.redraws else None


def write_kept(stream: TextIO, text: str) -> None:
    """Write and flush; a reader that has left (`| head`) loses the rest, and the eval goes on."""
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def _writes(stream: TextIO, text: str) -> bool:
    try:
        text.encode(getattr(stream, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


class LiveLine:
    """One line below what is printed, with a clock; silent where there is no region."""

    def __init__(self, region: Region | None, ink: Ink, clock: Callable[[], float]) -> None:
        self._region, self._ink, self._clock = region, ink, clock
        self._began = clock()
        self._said = self._drawn = ""
        self._lock = threading.RLock()
        self._left = threading.Event()
        self._ticker: threading.Thread | None = None

    def start(self) -> None:
        """Keep the clock going."""
        if self._region is not None:
            self._ticker = threading.Thread(target=self._tick, daemon=True)
            start_deaf(self._ticker)

    def stop(self) -> None:
        """Take the line away for good."""
        self._left.set()
        if self._ticker is not None:
            self._ticker.join()
            self._ticker = None
        with self._lock:
            self._said = ""
            self._clear()

    def say(self, text: str) -> None:
        """What stands before the clock from now on."""
        with self._lock:
            self._said = text
            self._draw()

    @contextmanager
    def away(self) -> Iterator[None]:
        """Cleared while others print, then drawn again."""
        with self._lock:
            self._clear()
            yield
            self._draw()

    def _tick(self) -> None:
        while not self._left.wait(1.0):
            with self._lock:
                self._draw()

    def _draw(self) -> None:
        minutes, rest = divmod(int(self._clock() - self._began), 60)
        line = f"{self._said}; {minutes:02d}:{rest:02d}"
        if self._region is not None and self._said and line != self._drawn:
            self._region.draw([self._ink.paint(line, "dim")])
            self._drawn = line

    def _clear(self) -> None:
        if self._region is not None and self._drawn:
            self._region.clear()
            self._drawn = ""
