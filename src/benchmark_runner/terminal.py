"""The terminal printer of all commands: harmless text, colours, widths, tables, panels, lines drawn again."""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import sys
import threading
import time
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from textwrap import wrap
from types import FrameType, TracebackType
from typing import Any, Literal, NoReturn, Self, TextIO

_ESCAPES = re.compile(
    r"\x1b(?:\][^\x07\x1b]*(?:\x07|\x1b\\)?|[PX^_][^\x1b]*(?:\x1b\\)?|\[[0-?]*[ -/]*[@-~]|[ -~])?"
)
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
_COLORS = re.compile(r"(\x1b\[(?:0|(?:[12]|3[1-6])(?:;(?:[12]|3[1-6]))*)m)")
"""Those of `TerminalStyle`."""
_COMMANDS = re.compile(r"^[^\S\n]*(?=::)|#(?=#\w*\[)", re.MULTILINE)
"""`::error::` at the start of a line, after whatever is a space somewhere, and `##[error]` or `##vso[…]`
anywhere."""
_JSON_COMMANDS = re.compile(r"##(?=\w*\[)")
_JSON_ESCAPES = {
    code: f"\\u{code:04x}"
    for code in (
        *range(0x7F, 0xA0),
        0x200B,
        0x200E,
        0x200F,
        *range(0x2028, 0x202F),
        *range(0x2060, 0x206A),
        0xFEFF,
    )
}


def safe(text: object, *, keep_lines: bool = False) -> str:
    """Text from outside, harmless on a terminal: no escape sequence, control or direction character.

    Line breaks and tabs become spaces unless `keep_lines`.
    """
    text = str(text)
    if text.isascii() and text.isprintable():  # most texts are, and some commands print millions
        return text if keep_lines else text.strip()
    cleaned = _ESCAPES.sub("", text.replace("\r\n", "\n"))
    if keep_lines:
        return "\n".join(_CONTROLS.sub("", line.replace("\t", "    ")) for line in cleaned.split("\n"))
    return _CONTROLS.sub("", re.sub(r"[\n\r\t\v\f]+", " ", cleaned)).strip()


def printable(text: str, *, colors: bool = True) -> str:
    """Return text as every command prints it: tabs, line breaks and our colours are all the controls in it.

    No line of it is a command to a CI system. This is the last net, for lines in which something from outside
    stands; `safe` makes such a piece fit for its place.
    """
    pieces = _COLORS.split(text.replace("\r\n", "\n")) if colors else [text.replace("\r\n", "\n")]
    pieces[::2] = [_without_controls(piece) for piece in pieces[::2]]
    return no_command("".join(pieces))


def _without_controls(text: str) -> str:
    if text.isascii() and text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return _CONTROLS.sub(lambda found: found[0] if found[0] in "\n\t" else "", _ESCAPES.sub("", text))


def printable_json(text: str) -> str:
    """Return JSON text, the same in meaning, that neither a terminal nor a CI system takes for a command."""
    text = text if text.isascii() else text.translate(_JSON_ESCAPES)
    return _JSON_COMMANDS.sub(r"#\\u0023", text) if "##" in text else text


def no_command(line: str) -> str:
    """A line that no CI system takes for a command to it, whoever wrote what stands in it."""
    return _COMMANDS.sub(lambda found: f"{found[0]}{' ' if found[0].endswith('#') else '| '}", line)


# Colours, columns, tables and panels.

STATE_STYLES = {
    "PENDING": "yellow",
    "BUILDING": "cyan",
    "IN_PROGRESS": "blue",
    "EVALUATING": "magenta",
    "FINISHED": "green",
    "ERROR": "red",
    "STOPPED": "dim",
    "SKIPPED": "dim",
    "STOPPING": "magenta",
}
_STYLE_CODES = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "blue": "34",
    "magenta": "35",
    "cyan": "36",
}
_RESET = "\x1b[0m"
_SGR = re.compile(r"(\x1b\[[0-9;]*m)")
_GAP = "  "
BAR_CELLS = 30


@dataclass(frozen=True, slots=True)
class TerminalStyle:
    """Colours, or none."""

    enabled: bool = False

    def paint(self, text: str, style: str | None) -> str:
        """`text` in a style (`bold`, `red`, …); unchanged when there is no colour."""
        if not (self.enabled and style and text):
            return text
        return f"\x1b[{';'.join(_STYLE_CODES[word] for word in style.split())}m{text}{_RESET}"

    def state(self, state: str, text: str | None = None) -> str:
        """A state in its own colour."""
        return self.paint(state if text is None else text, STATE_STYLES.get(state))


PLAIN = TerminalStyle()


def cells(text: str) -> int:
    """Return how many columns of a terminal `text` takes, ink not counted."""
    if text.isascii() and "\x1b" not in text:
        return len(text)
    return sum(_cell(character) for character in _SGR.sub("", text))


def _cell(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def fit(text: str, width: int) -> str:
    """`text` cut to `width` columns, its ink kept and closed, an ellipsis where something is missing."""
    if cells(text) <= width:
        return text
    if width <= 1:
        return "…"[:width]
    kept, used, inked = [], 0, False
    for piece in _SGR.split(text):
        if _SGR.fullmatch(piece):
            kept.append(piece)
            inked = True
            continue
        for character in piece:
            used += _cell(character)
            if used > width - 1:
                return "".join(kept) + "…" + (_RESET if inked else "")
            kept.append(character)
    raise AssertionError


def pad(text: str, width: int, align: Literal["left", "right"] = "left") -> str:
    """`text` filled up to `width` columns."""
    space = " " * max(0, width - cells(text))
    return text + space if align == "left" else space + text


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table."""

    title: str
    align: Literal["left", "right"] = "left"
    shrink: bool = False
    """May be cut when the terminal is narrow."""
    optional: bool = False
    """Left out on a terminal when no row has a value, or when there is no room."""


@dataclass(slots=True)
class Table:
    """Rows under headings; cells may carry ink."""

    columns: Sequence[Column]
    rows: list[Sequence[str]] = field(default_factory=list)

    def lines(self, ink: TerminalStyle = PLAIN, width: int | None = None) -> list[str]:
        """Heading, rule and rows; `width` None (a pipe) shows every column whole."""
        shown = self._shown(width)
        widths = self._widths(shown, width)
        total = sum(widths) + len(_GAP) * (len(widths) - 1)
        heading = self._line(shown, widths, [column.title for column in self.columns])
        body = [self._line(shown, widths, row) for row in self.rows]
        lines = [ink.paint(heading, "bold"), ink.paint("─" * total, "dim"), *body]
        return lines if width is None else [fit(line, width) for line in lines]

    def _natural(self, index: int) -> int:
        return max(cells(self.columns[index].title), *(cells(row[index]) for row in self.rows), 0)

    def _shown(self, width: int | None) -> list[int]:
        everything = list(range(len(self.columns)))
        if width is None:
            return everything
        shown = [i for i in everything if not (self.columns[i].optional and self._empty(i))]
        while self._least(shown) > width:
            spare = [i for i in shown if self.columns[i].optional]
            if not spare:
                break
            shown.remove(spare[-1])
        return shown

    def _empty(self, index: int) -> bool:
        return all(_SGR.sub("", row[index]) in ("", "—") for row in self.rows)

    def _least(self, shown: Sequence[int]) -> int:
        needed = (min(self._natural(i), 12) if self.columns[i].shrink else self._natural(i) for i in shown)
        return sum(needed) + len(_GAP) * (len(shown) - 1)

    def _widths(self, shown: Sequence[int], width: int | None) -> list[int]:
        widths = [self._natural(i) for i in shown]
        if width is None:
            return widths
        excess = sum(widths) + len(_GAP) * (len(widths) - 1) - width
        while excess > 0:
            candidates = [n for n, i in enumerate(shown) if self.columns[i].shrink and widths[n] > 8]
            if not candidates:
                break
            widths[max(candidates, key=lambda n: widths[n])] -= 1
            excess -= 1
        return widths

    def _line(self, shown: Sequence[int], widths: Sequence[int], row: Sequence[str]) -> str:
        parts = (
            pad(fit(row[i], room), room, self.columns[i].align) for i, room in zip(shown, widths, strict=True)
        )
        return _GAP.join(parts).rstrip()


def panel(
    title: str, rows: Sequence[tuple[str, str]], ink: TerminalStyle = PLAIN, width: int | None = None
) -> Iterator[str]:
    """A box open to the right, so that a value can be selected and pasted whole; long prose is wrapped."""
    room = max((cells(label) for label, _ in rows), default=0)
    rule = max(12, min(width or 72, 72) - cells(title) - 4)
    edge = ink.paint("│", "dim")
    yield f"{ink.paint('┌─', 'dim')} {ink.paint(title, 'bold')} {ink.paint('─' * rule, 'dim')}"
    for label, value in rows:
        for piece in wrapped(value, width and width - room - 5):
            yield f"{edge} {ink.paint(pad(label, room), 'dim')}{_GAP}{piece}".rstrip()
            label = ""
    yield ink.paint("└" + "─" * (rule + cells(title) + 3), "dim")


def wrapped(value: str, room: int | None) -> list[str]:
    """`value` in lines of at most `room` columns where it has spaces; commands stay whole."""
    command = value.partition(" ")[0].endswith(("valk", "valkyrie"))
    if room is None or cells(value) <= room or "\x1b" in value or command:
        return [value]
    return wrap(value, max(20, room), break_long_words=False, break_on_hyphens=False)


def bar(done: int, total: int, cells: int = BAR_CELLS) -> str:
    """`█████░░░`: full only when everything is done."""
    filled = cells if total and done >= total else int(cells * done / total) if total else 0
    return "█" * filled + "░" * (cells - filled)


# Lines that are drawn again, in place or on the whole screen, and a terminal given back as it was.

_HIDE_CURSOR, _SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
_ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l"
"""Alternate screen, no cursor, no wrapping of what a shrinking terminal makes too long."""
_LEAVE = "\x1b[?7h\x1b[?25h\x1b[?1049l"
_SECONDS_BETWEEN_FRAMES = 1.0
Render = Callable[[float, int], list[str]]
"""(now, rows of the terminal) to lines."""


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
