"""Did you mean …?"""

from __future__ import annotations

from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """` Did you mean 'x'?`, or nothing when no known word is the same but for a slip of the fingers."""
    typed = word.lower()
    near = [(steps, name) for name in known if (steps := _slips(typed, name.lower())) is not None]
    return f" Did you mean {min(near, key=lambda one: one[0])[1]!r}?" if near else ""


def _slips(typed: str, name: str) -> int | None:
    """How many letters were slipped on, None when it is another word; beginnings and plurals count as one."""
    most = 1 + (min(len(typed), len(name)) - 1) // 4
    if len(typed) >= 4 and (name.startswith(typed) or (typed.startswith(name) and len(name) >= 4)):
        return 1
    if _singular(typed) == _singular(name):
        return 1
    if abs(len(typed) - len(name)) > most:
        return None
    steps = _distance(typed, name)
    return steps if steps <= most else None


def _singular(word: str) -> str:
    return f"{word[:-3]}y" if word.endswith("ies") else word.removesuffix("s")


def _distance(one: str, other: str) -> int:
    """Letters added, left out, exchanged, or swapped with their neighbour."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for place, letter in enumerate(one, 1):
        last, row, before = before, [place], row
        for column, wanted in enumerate(other, 1):
            steps = min(before[column] + 1, row[-1] + 1, before[column - 1] + (letter != wanted))
            if last and column > 1 and letter == other[column - 2] and one[place - 2] == wanted:
                steps = min(steps, last[column - 2] + 1)
            row.append(steps)
    return row[-1]
