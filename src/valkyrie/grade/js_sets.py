"""Sets of characters in patterns: ranges, complements, and JavaScript's idea of upper and lower case."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum

Ranges = Sequence[tuple[int, int]]

LAST = 0x10FFFF
DIGIT: Ranges = ((0x30, 0x39),)
WORD: Ranges = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
LINE_END: Ranges = ((0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029))
SPACE: Ranges = (
    (0x09, 0x0D),
    (0x20, 0x20),
    (0xA0, 0xA0),
    (0x1680, 0x1680),
    (0x2000, 0x200A),
    (0x2028, 0x2029),
    (0x202F, 0x202F),
    (0x205F, 0x205F),
    (0x3000, 0x3000),
    (0xFEFF, 0xFEFF),
)
STRANGE = (0x130, 0x131, 0x17F, 0x212A)
"""Letters that fold to i, s and k elsewhere when case does not matter; in JavaScript they never do."""
STAND_INS = {code: 0xF0000 + code for code in STRANGE}
"""Characters without case, put in their place in patterns and texts where the engine folds."""
_SPECIAL = frozenset("\\^$.|?*+()[]{}-&~#:<>=!/ ")
_FEW = 1024


class Fold(Enum):
    """Who sees to it that upper and lower case are the same."""

    NOBODY = "nobody"
    ENGINE = "engine"
    """The engine's flag, with stand-ins for the strange letters."""
    SETS = "sets"
    """Every letter is a set of both: for a pattern in which case matters in parts."""


def complement(ranges: Ranges) -> Ranges:
    """Everything else."""
    found: list[tuple[int, int]] = []
    start = 0
    for low, high in sorted(ranges):
        if low > start:
            found.append((start, low - 1))
        start = max(start, high + 1)
    return [*found, (start, LAST)] if start <= LAST else found


def spelled(ranges: Iterable[tuple[int, int]]) -> str:
    """The inside of a class."""
    return "".join(literal(low) if low == high else f"{literal(low)}-{literal(high)}" for low, high in ranges)


def literal(code: int) -> str:
    """One character, inside a class or out."""
    character = chr(code)
    return f"\\{character}" if character in _SPECIAL else character


def one_of(ranges: Ranges, fold: Fold = Fold.NOBODY, *, negated: bool = False) -> str:
    """A pattern for one character that is, or is not, in these ranges."""
    if not ranges:
        return "(?s:.)" if negated else "(?!)"
    if fold is Fold.ENGINE:
        ranges = [part for low, high in ranges for part in _with_stand_ins(low, high)]
    elif fold is Fold.SETS:
        ranges = [part for low, high in ranges for part in _both_cases(low, high)]
    return f"[{'^' if negated else ''}{spelled(ranges)}]"


def _both_cases(low: int, high: int) -> list[tuple[int, int]]:
    found = [(low, high)]
    for first, last, other in ((0x41, 0x5A, 0x20), (0x61, 0x7A, -0x20)):
        start, end = max(low, first), min(high, last)
        if start <= end:
            found.append((start + other, end + other))
    for code in range(max(low, 128), min(high, max(low, 128) + _FEW) + 1):
        for other_case in (chr(code).upper(), chr(code).lower()):
            if len(other_case) == 1 and other_case != chr(code) and ord(other_case) > 127:
                found.append((ord(other_case), ord(other_case)))
    return found


def _with_stand_ins(low: int, high: int) -> list[tuple[int, int]]:
    found = []
    for code, stand_in in STAND_INS.items():
        if low <= code <= high:
            found.append((stand_in, stand_in))
            if low < code:
                found.append((low, code - 1))
            low = code + 1
    return [*found, (low, high)] if low <= high else found
