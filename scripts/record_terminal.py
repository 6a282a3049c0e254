"""Runs a command in a terminal of its own and draws what it printed as an SVG picture.

    python scripts/record_terminal.py docs/images/demo.svg --title "make demo" -- valkyrie demo

Lines a command rewrites in place appear as they stood at the end; `--live` also draws how they stood
half-way, above it.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import sys
from pathlib import Path

import pexpect
from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

BLACK, RED, GREEN, YELLOW = (40, 44, 52), (224, 108, 117), (130, 190, 120), (229, 192, 123)
BLUE, MAGENTA, CYAN, WHITE = (97, 160, 239), (190, 132, 220), (86, 182, 194), (171, 178, 191)
COLOURS = [BLACK, RED, GREEN, YELLOW, BLUE, MAGENTA, CYAN, WHITE]
CALM = TerminalTheme(background=(24, 26, 31), foreground=(208, 212, 220), normal=COLOURS, bright=COLOURS)
FONT_FACE = re.compile(r"@font-face\s*\{.*?\}", re.DOTALL)
REWRITE = re.compile(r"\x1b\[\d+A\r\x1b\[J")
CONTROL = re.compile(r"\x1b\[(\??)(\d*)(?:;\d+)*([A-Za-ln-z])|\x1b\][^\x07]*\x07")


def run_in_terminal(command: list[str], columns: int) -> str:
    """Everything the command wrote to its terminal; its exit code must be 0."""
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": "200"}
    env.pop("NO_COLOR", None)
    child = pexpect.spawn(
        command[0], command[1:], env=env, dimensions=(200, columns), encoding="utf-8", timeout=600
    )
    child.expect(pexpect.EOF)
    child.close()
    if child.exitstatus:
        sys.exit(f"{command[0]} ended with {child.exitstatus}:\n{child.before}")
    return child.before or ""


def final_screen(output: str) -> list[str]:
    """Lines as they stand at the end, colours kept, after moves up, erasures and carriage returns."""
    lines: list[str] = [""]
    row = 0
    position = 0
    for match in re.finditer(r"\x1b\[[?\d;]*[A-Za-z]|\x1b\][^\x07]*\x07|\r|\n|[^\x1b\r\n]+", output):
        piece = match[0]
        if piece == "\n":
            row += 1
            position = 0
            if row == len(lines):
                lines.append("")
        elif piece == "\r":
            position = 0
        elif control := CONTROL.fullmatch(piece):
            if control[3] == "A":
                row = max(0, row - int(control[2] or 1))
            elif control[3] == "K" and position == 0:
                lines[row] = ""
            elif control[3] == "J":
                lines[row:] = [""]
        else:
            lines[row] = piece if position == 0 else lines[row] + piece
            position = 1
    while lines and not lines[-1].strip():
        lines.pop()
    return lines


def half_way(output: str) -> list[str]:
    """The lines a command rewrites in place, as they stood in the middle of its life."""
    frames = REWRITE.split(output)
    return final_screen(frames[len(frames) // 2])


def draw(lines: list[str], title: str, columns: int) -> str:
    """An SVG that names no host: the viewer's own monospace font is used."""
    console = Console(record=True, width=columns, file=io.StringIO(), force_terminal=True)
    for line in lines:
        console.print(Text.from_ansi(line), soft_wrap=True)
    svg = console.export_svg(title=title, theme=CALM, unique_id="terminal")
    svg = FONT_FACE.sub("", svg).replace("Fira Code, monospace", "ui-monospace, Menlo, Consolas, monospace")
    return re.sub(r"<!-- Generated with .*? -->\n?", "", svg)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("target", type=Path)
    parser.add_argument("--title", default="")
    parser.add_argument("--columns", type=int, default=100)
    parser.add_argument("--live", action="store_true", help="also draw the screen half-way")
    parser.add_argument("command", nargs="+")
    given = parser.parse_args()
    output = run_in_terminal(given.command, given.columns)
    lines = final_screen(output)
    if given.live:
        lines = [*half_way(output), "", *lines]
    given.target.parent.mkdir(parents=True, exist_ok=True)
    given.target.write_text(draw(lines, given.title, given.columns))


if __name__ == "__main__":
    main()
