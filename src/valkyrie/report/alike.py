"""Which messages say the same, whatever ids, numbers and paths they name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import SequenceMatcher

ALIKE = 0.75
COMPARED = 160
"""Characters of a message that are looked at: what it says, it says at the beginning."""
MOST_COMPARISONS = 1_000
"""Of all messages of one kind; beyond them only messages that begin alike are taken for alike."""
BEGINNING = 40

_VARIES = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"  # UUIDs
    r"|\b[0-9a-f]{12,64}\b"  # digests, container ids
    r"|\b[a-z]+[-_](?=[0-9a-z]*\d)[0-9a-z]{6,}\b"  # sandbox ids: sbx-4f9a2c
    r"|(?<![\w·])/[^\s:'\"]+"  # paths
    r"|\d+(?:\.\d+)?",
    re.IGNORECASE,
)


def shape(message: str, task_id: str) -> str:
    """A message without what differs from trial to trial."""
    said = message[: 4 * COMPARED]
    if task_id and task_id in said:
        said = re.sub(rf"(?<!\w){re.escape(task_id)}(?!\w)", "·", said)
    return " ".join(_VARIES.sub("·", said).split())[:COMPARED]


def alike(shapes: Sequence[str]) -> list[int]:
    """For each shape the number of the group it belongs to; groups are numbered as they appear."""
    groups: dict[str, int] = {}
    beginnings: dict[str, int] = {}
    examples: list[str] = []
    budget = MOST_COMPARISONS
    for one in dict.fromkeys(shapes):
        found, spent = _find_alike(one, examples, budget)
        budget -= spent
        if found is None and budget <= 0:
            found = beginnings.get(one[:BEGINNING])
        if found is None:
            found = len(examples)
            examples.append(one)
        beginnings.setdefault(one[:BEGINNING], found)
        groups[one] = found
    return [groups[one] for one in shapes]


def _find_alike(one: str, examples: Sequence[str], budget: int) -> tuple[int | None, int]:
    """The first example that says nearly the same, and how many comparisons that took."""
    matcher = SequenceMatcher(b=one, autojunk=False)
    spent = 0
    for number, example in enumerate(examples):
        if spent >= budget:
            break
        matcher.set_seq1(example)
        spent += 1
        if matcher.real_quick_ratio() < ALIKE or matcher.quick_ratio() < ALIKE:
            continue
        if matcher.ratio() >= ALIKE:
            return number, spent
    return None, spent
