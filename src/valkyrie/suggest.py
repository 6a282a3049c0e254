"""Did you mean …?"""

from __future__ import annotations

from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """` Did you mean 'x'?`, or nothing when no known word is near."""
    from difflib import get_close_matches  # only mistakes pay for it

    by_lower = {name.lower(): name for name in known}
    near = get_close_matches(word.lower(), by_lower, n=1, cutoff=0.55)
    return f" Did you mean {by_lower[near[0]]!r}?" if near else ""
