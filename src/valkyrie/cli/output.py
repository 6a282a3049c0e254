"""What a command prints, and where: people's text or JSON on stdout, everything else on stderr."""

from __future__ import annotations

import json
import os
import re
import select
import shlex
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmark_runner.terminal import Table, TerminalStyle, panel, printable, printable_json, safe

SCHEMA_VERSION = 1
_PROGRAM = re.compile(r"(?<![^\s])(?:valk|valkyrie)(?= )")
"""The program's name where a command begins; options and texts are never called so in panels."""


def wants_color(*, no_color: bool = False) -> bool:
    """Colour only on a terminal that has it, and that nobody asked to keep plain."""
    if no_color or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return sys.stdout.isatty()


def write_json(kind: str, **fields: Any) -> str:
    """One JSON document on one line."""
    document = {"schema_version": SCHEMA_VERSION, "kind": kind, **fields}
    return printable_json(json.dumps(document, ensure_ascii=False, default=str))


def reader_left() -> bool:
    """Whether nobody reads stdout any more, as `head` does when it has enough."""
    pipe = select.poll()
    pipe.register(sys.stdout, 0)
    return bool(pipe.poll(0))


def as_typed(command: str) -> str:
    """Return a command line that begins with `valk` or `valkyrie` as it works in the caller's shell.

    Where the name on PATH is not this program, its own path stands there instead.
    """
    return _PROGRAM.sub(lambda found: _program(found[0], whole="cd " in command), command)


def _program(name: str, *, whole: bool) -> str:
    own = Path(sys.executable).parent / name
    on_path = shutil.which(name)
    if not own.exists() or (on_path is not None and Path(on_path).resolve() == own.resolve()):
        return name
    below = os.path.relpath(own)
    return shlex.quote(str(own) if whole or below.startswith(os.pardir) else below)


class Output:
    """Given to every command as its first argument."""

    def __init__(self, *, json: bool = False, no_color: bool = False) -> None:
        self.json = json
        self.terminal = sys.stdout.isatty() and not json
        """A person reads stdout on a terminal."""
        self.interactive = self.terminal and sys.stdin.isatty()
        """A person can also answer."""
        self.redraws = self.terminal and os.environ.get("TERM", "dumb") != "dumb"
        """Lines already printed can be rewritten."""
        self.ink = TerminalStyle(wants_color(no_color=no_color) and not json)

    @property
    def width(self) -> int | None:
        """Columns of the terminal; None in a pipe, where nothing is cut."""
        return shutil.get_terminal_size().columns if self.terminal else None

    def line(self, text: str = "") -> None:
        """One line for the person; silent under --json."""
        if not self.json:
            sys.stdout.write(printable(text, colors=self.ink.enabled) + "\n")

    def lines(self, lines: Iterable[str]) -> None:
        for text in lines:
            self.line(text)

    def panel(self, title: str, rows: list[tuple[str, str]]) -> None:
        if title == "Next":
            rows = [(label, as_typed(value)) for label, value in rows]
        self.lines(panel(title, rows, self.ink, self.width))

    def table(self, table: Table) -> None:
        self.lines(table.lines(self.ink, self.width))

    def emit(self, kind: str, **fields: Any) -> None:
        """One JSON document on stdout; silent without --json."""
        if self.json:
            sys.stdout.write(write_json(kind, **fields) + "\n")
            sys.stdout.flush()

    def note(self, text: str) -> None:
        """A remark beside the answer, on stderr."""
        ink = TerminalStyle(self.ink.enabled and sys.stderr.isatty())
        sys.stdout.flush()
        sys.stderr.write(ink.paint(printable(text, colors=False), "dim") + "\n")

    def notices(self, notices: Iterable[str]) -> None:
        """What the platform wants said about the request."""
        for notice in notices:
            self.note(f"Note: {safe(notice)}")
