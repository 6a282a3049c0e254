"""The whole terminal, drawn again and again on its alternate screen, and given back as it was."""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from types import FrameType, TracebackType
from typing import Any, NoReturn, Self, TextIO

from valkyrie.report.formats import printable
from valkyrie.report.layout import fit
from valkyrie.report.live import start_deaf

_ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l"
"""Alternate screen, no cursor, no wrapping of what a shrinking terminal makes too long."""
_LEAVE = "\x1b[?7h\x1b[?25h\x1b[?1049l"
_SECONDS_BETWEEN_FRAMES = 1.0

Render = Callable[[float, int], list[str]]
"""(now, rows of the terminal) to lines."""


class FullScreen:
    """Draws `render` once a second, after `refresh`, and as soon as the terminal changed its size.

    However it is left (an end, an exception, Ctrl+C, a signal to end), the terminal is as it was before.
    """

    def __init__(self, render: Render, stream: TextIO | None = None) -> None:
        self._render = render
        self._stream = stream or sys.stdout
        self._left = False
        self._painter = threading.Thread(target=self._paint, daemon=True)
        self._restore = ExitStack()
        self._trouble: Exception | None = None
        # A pipe, not an event: signal handlers wake the painter too, and a lock they find taken stays so.
        self._awake, self._wake = os.pipe()
        os.set_blocking(self._awake, False)
        os.set_blocking(self._wake, False)

    def refresh(self) -> None:
        """Draw soon; raises what drawing raised before."""
        if self._trouble is not None:
            raise self._trouble
        self._ring()

    def _ring(self, *_: object) -> None:
        try:
            os.write(self._wake, b".")
        except BlockingIOError:
            pass  # full: the painter has enough to wake up for

    def _paint(self) -> None:
        try:
            while not self._left:
                self._draw()
                if select.select([self._awake], [], [], _SECONDS_BETWEEN_FRAMES)[0]:
                    os.read(self._awake, 4096)
        except Exception as error:  # noqa: BLE001 - raised again where the watching goes on
            self._trouble = error

    def _draw(self) -> None:
        columns, rows = shutil.get_terminal_size()
        lines = [fit(printable(line), max(1, columns - 1)) for line in self._render(time.time(), rows)][:rows]
        self._stream.write("\x1b[H" + "\x1b[K\r\n".join(lines) + "\x1b[K\x1b[J")
        self._stream.flush()

    def __enter__(self) -> Self:
        try:
            self._stream.write(_ENTER)
            self._catch(signal.SIGWINCH, self._ring)
            for ending in (signal.SIGTERM, signal.SIGHUP):
                self._catch(ending, _end)
            start_deaf(self._painter)
        except BaseException:  # a signal that comes while it begins
            self._leave()
            raise
        return self

    def _catch(self, number: signal.Signals, handler: Callable[[int, FrameType | None], Any]) -> None:
        """Only the main thread may; elsewhere a resize is seen with the next frame."""
        if threading.current_thread() is threading.main_thread():
            self._restore.callback(signal.signal, number, signal.signal(number, handler))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()

    def _leave(self) -> None:
        self._left = True
        self._ring()
        if self._painter.ident is not None:
            self._painter.join()
        self._restore.close()
        os.close(self._awake)
        os.close(self._wake)
        self._stream.write(_LEAVE)
        self._stream.flush()


def _end(number: int, _frame: FrameType | None) -> NoReturn:
    """As the signal would have, after everything is tidied."""
    raise SystemExit(128 + number)
