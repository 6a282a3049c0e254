"""Reading what an agent's program left: hostile data, so within bounds, and nothing in it raises."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from valkyrie.agents.protocol import Trouble, Usage
from valkyrie.trajectory import Trajectory
from valkyrie.trajectory.loose import at, dollars, items, parsed, tokens, word

__all__ = ["Ran", "Reading", "at", "dollars", "items", "json_lines", "parsed", "tokens", "word"]

MOST_LINE = 8 * 1024 * 1024
MOST_LINES = 200_000


@dataclass(frozen=True, slots=True)
class Ran:
    """How an agent's command went, for who reads its log."""

    log: Path
    """Its stdout, cut at a limit."""
    exit_code: int
    stderr: str = ""
    """The end of it."""
    instruction: str = ""
    kept: Path | None = None
    """The folder with what else was brought out of the sandbox."""
    seen: int = 0
    """Bytes of the session's own record that tell of earlier turns."""
    before: Usage | None = None
    """What earlier turns used, for programs that count from the beginning of the session."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What a log says."""

    trajectory: Trajectory | None = None
    usage: Usage | None = None
    trouble: Trouble | None = None


def json_lines(path: Path, start: int = 0) -> Iterator[dict[str, Any]]:
    """The JSON objects of a file, one a line, from a byte on; lines that are none, or too long, are passed
    over."""
    with path.open("rb") as source:
        source.seek(start)
        for _ in range(MOST_LINES):
            line = source.readline(MOST_LINE)
            if not line:
                return
            if len(line) == MOST_LINE and not line.endswith(b"\n"):
                while (rest := source.readline(MOST_LINE)) and not rest.endswith(b"\n"):
                    pass
                continue
            found = parsed(line)
            if isinstance(found, dict):
                yield found
