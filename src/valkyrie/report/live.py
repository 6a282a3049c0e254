"""Runs and jobs as they go, drawn again and again on a terminal that is given back as it was."""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self, TextIO

from valkyrie.report.formats import (
    PLAIN,
    TerminalStyle,
    agent_name,
    cells,
    clock,
    counts_line,
    duration,
    elapsed,
    fit,
    pad,
    printable,
    progress,
    safe,
    score_sentence,
    short_id,
    state_word,
    trial_name,
)
from valkyrie.report.run_details import cost_text
from valkyrie.report.tables import ended, trial_error, trial_seconds

if TYPE_CHECKING:
    from valkyrie.views import RunView, TrialView


_HIDE_CURSOR, _SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"


@dataclass(frozen=True, slots=True)
class RunSnapshot:
    """What a frame is drawn from."""

    run: RunView
    active: Sequence[TrialView] = ()
    failed: Sequence[TrialView] = ()
    """Latest errors first."""


def frame(shot: RunSnapshot, ink: TerminalStyle = PLAIN, *, now: float, height: int = 24) -> list[str]:
    """One run: progress, counts, score, active trials with phase and time, latest errors."""
    run = shot.run
    title = f"{agent_name(run.agent, run.model)} on {safe(run.benchmark)}"
    took = duration(elapsed(run, now))
    lines = [
        f"{ink.paint(title, 'bold')}  {ink.paint(short_id(run.id), 'dim')}  {ink.paint(took, 'dim')}",
        ink.state(run.state, progress(run)),
        counts_line(run.counts),
        score_sentence(run.score, ended=ended(run)),
    ]
    if run.cost:
        lines.append(f"cost {cost_text(run.cost)}")
    if run.note:
        lines.append(ink.paint(safe(run.note), "yellow"))
    room = max(2, height - len(lines) - 4)
    failed = list(shot.failed)[: min(3, room // 2)]
    lines += _active_lines(shot.active, ink, now, room - len(failed))
    if failed:
        lines += ["", ink.paint("Latest errors", "bold")]
        lines += [ink.paint(f"  {trial_name(trial)}  {trial_error(trial, now)}", "red") for trial in failed]
    return lines


def _active_lines(active: Sequence[TrialView], ink: TerminalStyle, now: float, room: int) -> list[str]:
    if not active:
        return []
    shown = active[: max(1, room)]
    name_room = min(40, max(cells(trial_name(trial)) for trial in shown))
    lines = [""]
    for trial in shown:
        again = f" (attempt {trial.attempts})" if trial.attempts > 1 else ""
        name = pad(fit(trial_name(trial), name_room), name_room)
        word = ink.state(trial.state, pad(state_word(trial.state), 11))
        lines.append(f"  {name}  {word}  {duration(trial_seconds(trial, now))}{again}")
    if len(active) > len(shown):
        lines.append(ink.paint(f"  … and {len(active) - len(shown)} more", "dim"))
    return lines


def change_line(run: RunView, now: float) -> str:
    """One line for a log: what a pipe gets instead of the live view."""
    name = f"{safe(run.agent)} on {safe(run.benchmark)}"
    score = score_sentence(run.score, ended=ended(run))
    return f"{clock(now)}  {name}  {run.state}  {run.done}/{run.total}  {counts_line(run.counts)}  {score}"


class Region:
    """The last lines of a terminal, rewritten in place; survives a resize."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._drawn: list[str] = []

    def draw(self, lines: Sequence[str]) -> None:
        """Replace what was drawn before; lines are cut to the terminal's width, and to its height."""
        columns, rows = shutil.get_terminal_size()
        fitted = [fit(printable(line), max(1, columns - 1)) for line in lines][: max(1, rows - 1)]
        self._stream.write(self._back(columns, rows) + "".join(f"{line}\x1b[K\n" for line in fitted))
        self._stream.flush()
        self._drawn = fitted

    def clear(self) -> None:
        """Take away what was drawn."""
        self._stream.write(self._back(*shutil.get_terminal_size()))
        self._stream.flush()
        self._drawn = []

    def _back(self, columns: int, rows: int) -> str:
        """To the first drawn line: a terminal made narrower since has wrapped the old lines."""
        height = sum(max(1, -(-cells(line) // columns)) for line in self._drawn)
        up = min(height, rows - 1)
        return (f"\x1b[{up}A" if up else "") + "\r\x1b[J"


def start_deaf(thread: threading.Thread) -> None:
    """Start it with all signals blocked: one that it got would not wake the main thread."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        thread.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class LiveView:
    """Redraws `render()` once a second and whenever `refresh` is called, until left."""

    def __init__(self, render: Callable[[float], list[str]], stream: TextIO | None = None) -> None:
        self._render = render
        self._stream = stream or sys.stdout
        self._region = Region(self._stream)
        self._lock = threading.Lock()
        self._left = threading.Event()
        self._ticker = threading.Thread(target=self._tick, daemon=True)

    def refresh(self) -> None:
        """Draw now."""
        with self._lock:
            if not self._left.is_set():
                self._region.draw(self._render(time.time()))

    def _tick(self) -> None:
        while not self._left.wait(1.0):
            self.refresh()

    def __enter__(self) -> Self:
        self._stream.write(_HIDE_CURSOR)
        self.refresh()
        start_deaf(self._ticker)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left.set()
        self._ticker.join()
        with self._lock:
            self._region.clear()
            self._stream.write(_SHOW_CURSOR)
            self._stream.flush()


# The whole terminal, drawn again and again on its alternate screen, and given back as it was.

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
