"""A run as it goes: one frame of text, and a region of the terminal that is rewritten in place."""

from __future__ import annotations

import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

from valkyrie.report.formats import (
    agent_name,
    clock,
    counts_line,
    duration,
    elapsed,
    printable,
    progress,
    safe,
    score_sentence,
    short_id,
    state_word,
    trial_name,
)
from valkyrie.report.layout import PLAIN, Ink, cells, fit, pad
from valkyrie.report.run_details import cost_text
from valkyrie.report.tables import ended, trial_error, trial_seconds

if TYPE_CHECKING:
    from valkyrie.views import RunView, TrialView

_HIDE_CURSOR, _SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a frame is drawn from."""

    run: RunView
    active: Sequence[TrialView] = ()
    failed: Sequence[TrialView] = ()
    """Latest errors first."""


def frame(shot: Snapshot, ink: Ink = PLAIN, *, now: float, height: int = 24) -> list[str]:
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


def _active_lines(active: Sequence[TrialView], ink: Ink, now: float, room: int) -> list[str]:
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
