"""How large a piece of decoded JSON is, apart from its text: small text can be a great many lists."""

from __future__ import annotations

from typing import Any

MAX_DEPTH = 100
MAX_PARTS = 500_000
TOO_LARGE = f"nested deeper than {MAX_DEPTH} levels, or more than {MAX_PARTS} lists and objects"


def is_overgrown(data: Any) -> bool:
    """Whether data has more levels, or more lists and objects, than those who walk through it can bear."""
    level, parts = [data], 0
    for _ in range(MAX_DEPTH + 1):
        # Level by level: recursion has an end before the nesting has.
        level = [one for one in level if isinstance(one, dict | list)]
        parts += len(level)
        if not level or parts > MAX_PARTS:
            return parts > MAX_PARTS
        level = [inner for one in level for inner in (one.values() if isinstance(one, dict) else one)]
    return True
