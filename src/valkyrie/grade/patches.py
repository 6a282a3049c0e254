"""Unified diffs as what they change, file by file, whatever their line numbers and context."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_HEADER = re.compile(r"diff --git (?P<old>\"?a/.*?\"?) (?P<new>\"?b/.*\"?)$")
_HUNK = re.compile(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_NOTES = {
    "rename from ": "rename from",
    "rename to ": "rename to",
    "deleted file mode": "deleted",
    "new file mode": "new",
    "old mode": "old mode",
    "new mode": "new mode",
    "Binary files": "binary",
    "GIT binary patch": "binary",
}


@dataclass(frozen=True, slots=True)
class Change:
    """What happens to one file."""

    lines: tuple[str, ...]
    """`-` and `+` lines in order; context is left out."""
    notes: frozenset[str] = frozenset()


def changes_of(patch: str, *, ignore_whitespace: bool = False) -> Mapping[str, Change]:
    """Path → what changes. Text that is no diff changes nothing."""
    found: dict[str, tuple[list[str], set[str]]] = {}
    path: str | None = None
    old_left = new_left = 0
    for line in patch.splitlines():
        if old_left > 0 or new_left > 0:
            old_left -= line[:1] != "+" and line[:1] != "\\"
            new_left -= line[:1] != "-" and line[:1] != "\\"
            if path is not None and line[:1] in ("+", "-"):
                found[path][0].append(_normal(line, ignore_whitespace))
        elif hunk := _HUNK.match(line):
            old_left, new_left = (1 if size is None else int(size) for size in hunk.groups())
        elif header := _HEADER.match(line):
            path = _plain(header["new"])
            found.setdefault(path or "", ([], set()))
        elif line.startswith("--- "):
            path = _plain(line[4:]) or path
        elif line.startswith("+++ "):
            path = _plain(line[4:]) or path
            if path is not None:
                found.setdefault(path, ([], set()))
        elif path is not None:
            found[path][1].update(note for start, note in _NOTES.items() if line.startswith(start))
    return {name: Change(tuple(lines), frozenset(notes)) for name, (lines, notes) in found.items()}


def _plain(name: str) -> str | None:
    """A path without its prefix, quotes or date; None for /dev/null."""
    name = name.split("\t")[0].strip().strip('"')
    if name == "/dev/null":
        return None
    return name[2:] if name[:2] in ("a/", "b/") else name


def _normal(line: str, ignore_whitespace: bool) -> str:
    return line[0] + ("".join(line[1:].split()) if ignore_whitespace else line[1:].rstrip())
