"""Turning pages on a terminal: h previous, l next, q quit."""

from __future__ import annotations

import os
import shutil
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from valkyrie.cli.output import Output
from valkyrie.report.formats import printable
from valkyrie.report.layout import Ink, Table
from valkyrie.report.live import Region

Page = tuple[list[str], bool]
"""Lines, and whether another page follows."""

_PREVIOUS = {b"h", b"H", b"k", b"\x1b[D", b"\x1b[5~"}
_NEXT = {b"l", b"L", b"j", b" ", b"\r", b"\n", b"\x1b[C", b"\x1b[6~"}
_QUIT = {b"q", b"Q", b"\x1b", b"\x03", b"\x04", b""}
_LINES_AROUND_ROWS = 6


def page_rows() -> int:
    """How many rows of a table one screen takes, with heading, notes and keys around them."""
    return max(3, shutil.get_terminal_size().lines - _LINES_AROUND_ROWS)


def browse(load: Callable[[int], Page], ink: Ink) -> None:
    """Show page 0; if there are more, turn pages with keys. The last page seen stays on the screen."""
    lines, more = load(0)
    if not more:
        sys.stdout.write("".join(f"{printable(line)}\n" for line in lines))
        return
    region, index = Region(), 0
    with _keys() as read_key:
        while True:
            keys = " · ".join([*(["h previous"] if index else []), *(["l next"] if more else []), "q quit"])
            region.draw([*lines, "", ink.paint(f"Page {index + 1}   {keys}", "dim")])
            step = _step(read_key(), index, more)
            if step is None:
                break
            index += step
            lines, more = load(index)
    region.draw(lines)


def _step(key: bytes, index: int, more: bool) -> int | None:
    if key in _QUIT:
        return None
    if key in _NEXT and more:
        return 1
    return -1 if key in _PREVIOUS and index else 0


@contextmanager
def _keys() -> Iterator[Callable[[], bytes]]:
    """Keys as they are pressed, not echoed; the terminal is put back as it was."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setraw(descriptor, termios.TCSADRAIN)
    settings = termios.tcgetattr(descriptor)
    settings[1] = before[1]
    termios.tcsetattr(descriptor, termios.TCSADRAIN, settings)
    try:
        yield lambda: os.read(descriptor, 8)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def show_lines(lines: Sequence[str], output: Output) -> None:
    """Show a text: printed in a pipe or when it fits, else in pages."""
    rows = page_rows()
    if not (output.interactive and output.redraws) or len(lines) <= rows:
        output.lines(lines)
        return
    browse(lambda page: (list(lines[page * rows :][:rows]), (page + 1) * rows < len(lines)), output.ink)


def show_table(table: Table, output: Output) -> None:
    """A whole table: printed in a pipe or when it fits, else in pages."""
    rows = page_rows()
    if not (output.interactive and output.redraws) or len(table.rows) <= rows:
        output.table(table)
        return

    def load(index: int) -> Page:
        part = Table(table.columns, table.rows[index * rows : (index + 1) * rows])
        return part.lines(output.ink, output.width), (index + 1) * rows < len(table.rows)

    browse(load, output.ink)
