"""Text laid out for a terminal or a pipe: ink, panels, tables.

Ours rather than rich's: importing rich costs some 60 ms in every command, and nothing here interprets
markup, so user text cannot style or break a line (docs/design/decisions.md).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

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
_CODES = {
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


@dataclass(frozen=True, slots=True)
class Ink:
    """Colours, or none."""

    enabled: bool = False

    def paint(self, text: str, style: str | None) -> str:
        """`text` in a style (`bold`, `red`, …); unchanged when there is no colour."""
        if not (self.enabled and style and text):
            return text
        return f"\x1b[{';'.join(_CODES[word] for word in style.split())}m{text}{_RESET}"

    def state(self, state: str, text: str | None = None) -> str:
        """A state in its own colour."""
        return self.paint(state if text is None else text, STATE_STYLES.get(state))


PLAIN = Ink()


def cells(text: str) -> int:
    """How many columns of a terminal `text` takes, ink not counted."""
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

    def lines(self, ink: Ink = PLAIN, width: int | None = None) -> list[str]:
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
    title: str, rows: Sequence[tuple[str, str]], ink: Ink = PLAIN, width: int | None = None
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
    from textwrap import wrap

    return wrap(value, max(20, room), break_long_words=False, break_on_hyphens=False)
