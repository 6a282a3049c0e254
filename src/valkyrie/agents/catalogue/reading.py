"""Reading what an agent's program left: hostile data, so within bounds, and nothing in it raises."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from valkyrie.agents.protocol import Trouble, Usage
from valkyrie.trajectory import Trajectory

MOST_LINE = 8 * 1024 * 1024
MOST_LINES = 200_000
MOST_TOKENS = 10**12
MOST_DOLLARS = 1e6


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


@dataclass(frozen=True, slots=True)
class Reading:
    """What a log says."""

    trajectory: Trajectory | None = None
    usage: Usage | None = None
    trouble: Trouble | None = None


def json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The JSON objects of a file, one a line; lines that are none, or too long, are passed over."""
    with path.open("rb") as source:
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


def parsed(text: str | bytes) -> Any:
    """JSON, or None when it is none."""
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return None


def _no_constant(word: str) -> None:
    raise ValueError(f"{word} is no number")


def at(value: Any, *keys: str | int) -> Any:
    """What stands below `keys` in plain data, or None."""
    for key in keys:
        if isinstance(key, str) and isinstance(value, dict):
            value = value.get(key)
        elif isinstance(key, int) and isinstance(value, list) and -len(value) <= key < len(value):
            value = value[key]
        else:
            return None
    return value


def items(value: Any) -> list[Any]:
    """A list, or an empty one."""
    return value if isinstance(value, list) else []


def tokens(value: Any) -> int:
    """A number of tokens, or 0 for what is none."""
    if isinstance(value, bool) or not isinstance(value, int):
        return 0
    return min(max(value, 0), MOST_TOKENS)


def dollars(value: Any) -> float | None:
    """A cost, or None for what is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= MOST_DOLLARS and math.isfinite(value) else None


def word(value: Any, most: int = 200) -> str | None:
    """A short text for a name or a message, without control characters; None for what is none."""
    if not isinstance(value, str):
        return None
    clean = "".join(letter if letter.isprintable() else " " for letter in value[:most])
    return clean.strip() or None
