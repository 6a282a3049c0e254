"""Finding files by pattern inside a sandbox: its `find` lists, the pattern is matched here."""

from __future__ import annotations

import posixpath
import re
from fnmatch import translate

from sandboxes.errors import SandboxCrowdedError

MAX_BYTES = 16 << 20
"""How much a listing may say before the pattern is called too wide."""
MAX_DEPTH = 64

_FIND = """
cd -- "$1" 2>/dev/null || exit 3
find . -mindepth 1 -maxdepth "$2" -type f -print0 2>/dev/null | head -c "$3"
exit 0
"""


class Pattern:
    """One glob: `*`, `?` and `[…]` within a name, `**` for any folders. Hidden names need a dot."""

    def __init__(self, pattern: str) -> None:
        parts = [part for part in posixpath.normpath("/" + pattern).split("/") if part]
        fixed = 0
        while fixed < len(parts) - 1 and not any(character in parts[fixed] for character in "*?["):
            fixed += 1
        rest = parts[fixed:]
        if rest and rest[-1] == "**":
            rest.append("*")
        self._text = pattern
        self._rest = rest
        self._base = "/" + "/".join(parts[:fixed])
        self._names = [None if part == "**" else re.compile(translate(part)) for part in rest]

    @property
    def script(self) -> str:
        """Prints the files that may match, relative to the fixed part, each ended by a NUL."""
        return _FIND

    @property
    def arguments(self) -> tuple[str, str, str]:
        """Of the script."""
        depth = MAX_DEPTH if None in self._names else max(len(self._rest), 1)
        return self._base, str(depth), str(MAX_BYTES)

    def matches(self, output: str) -> list[str]:
        """Sorted absolute paths of those listed that do match."""
        if len(output.encode()) >= MAX_BYTES:
            raise SandboxCrowdedError(f"too many files to look at for {self._text}; use a narrower pattern")
        found = set()
        for entry in output.split("\0"):
            # What was not UTF-8 has lost its name on the way.
            if entry.startswith("./") and "\ufffd" not in entry:
                names = entry[2:].split("/")
                if ".." not in names and self._takes(names):
                    found.add(posixpath.join(self._base, *names))
        return sorted(found)

    def _takes(self, names: list[str]) -> bool:
        """Walk the names with every way the pattern may have been used up so far."""
        states = {0}
        for name in names:
            states = {after for state in self._closed(states) for after in self._step(state, name)}
            if not states:
                return False
        return len(self._names) in states

    def _closed(self, states: set[int]) -> set[int]:
        """With every `**` also taken for no folder at all."""
        closed = set()
        for state in states:
            closed.add(state)
            while state < len(self._names) and self._names[state] is None:
                state += 1
                closed.add(state)
        return closed

    def _step(self, state: int, name: str) -> set[int]:
        if state >= len(self._names):
            return set()
        pattern = self._names[state]
        if name.startswith(".") and not self._rest[state].startswith("."):
            return set()
        if pattern is None:
            return {state}
        return {state + 1} if pattern.match(name) else set()
