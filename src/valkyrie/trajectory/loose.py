"""Looking into data nobody vouches for: within bounds, and nothing in it raises."""

from __future__ import annotations

import json
import math
from typing import Any

MOST_TOKENS = 10**12
MOST_DOLLARS = 1e6


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
