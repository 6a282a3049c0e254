"""Which files beside a Dockerfile its `.dockerignore` keeps out of the build, by Docker's own rules."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

NAME = ".dockerignore"
MOST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class _Rule:
    pattern: re.Pattern[str]
    includes: bool
    """It began with `!`: what it matches is part of the build after all."""


class Dockerignore:
    """The rules of one folder. The last rule that matches a path, or a folder above it, decides."""

    def __init__(self, text: str, kept: Sequence[str] = (), top: str = "") -> None:
        self.rules = [rule for line in text.lstrip("\ufeff").splitlines() if (rule := _read(line))]
        self._kept = frozenset(kept)
        """Always sent: the builder needs them, and takes them away itself."""
        self._top = top

    @classmethod
    def of(cls, context: Path, dockerfile: str = "Dockerfile") -> Dockerignore:
        """Read the rules of a folder; a file named for the Dockerfile comes before the folder's own."""
        for name in (f"{dockerfile}{NAME}", NAME):
            path = context / name
            if path.is_file() and not path.is_symlink():
                with path.open("rb") as file:
                    text = file.read(MOST_BYTES).decode("utf-8", "replace")
                return cls(text, kept=(dockerfile, name), top=os.fspath(context))
        return cls("")

    def leaves_out(self, path: str) -> bool:
        """Whether a path relative to the folder is no part of the build."""
        if path in self._kept:
            return False
        parts = path.split("/")
        above = ["/".join(parts[:depth]) for depth in range(1, len(parts) + 1)]
        out = False
        for rule in self.rules:
            if out == rule.includes and any(rule.pattern.fullmatch(one) for one in above):
                out = not rule.includes
        return out

    def leaves_out_all_of(self, folder: str) -> bool:
        """Whether nothing below a folder is part of the build, so that nobody need look into it."""
        return not any(rule.includes for rule in self.rules) and self.leaves_out(folder)

    def names_left_out(self, folder: str, names: list[str]) -> list[str]:
        """Return the same of a folder's names, as `shutil.copytree` asks for it."""
        below = os.path.relpath(folder, self._top)
        found = []
        for name in names:
            path = posixpath.normpath(posixpath.join(below, name))
            is_folder = Path(folder, name).is_dir() and not Path(folder, name).is_symlink()
            if self.leaves_out_all_of(path) if is_folder else self.leaves_out(path):
                found.append(name)
        return found


def _read(line: str) -> _Rule | None:
    if line.startswith("#"):
        return None
    text = line.strip()
    includes = text.startswith("!")
    text = text[1:].strip() if includes else text
    if not text:
        return None
    normal = posixpath.normpath(text)
    return _Rule(_compiled(normal.lstrip("/") or "."), includes)


def _compiled(pattern: str) -> re.Pattern[str]:
    """Return a pattern of Go's `filepath.Match`, with `**` for any number of folders."""
    out, at = "", 0
    while at < len(pattern):
        char = pattern[at]
        at += 1
        if char == "*" and pattern[at : at + 1] == "*":
            at += 1
            if pattern[at : at + 1] == "/":
                at += 1
            out += ".*" if at >= len(pattern) else "(?:.*/)?"
        elif char == "*":
            out += "[^/]*"
        elif char == "?":
            out += "[^/]"
        elif char == "[" and (end := _class_end(pattern, at)) > 0:
            inner = pattern[at:end]
            negated = inner.startswith("^")
            inner = inner[1:] if negated else inner
            out += f"[{'^' if negated else ''}{inner.replace('[', chr(92) + '[')}]"
            at = end + 1
        elif char == "\\" and at < len(pattern):
            out += re.escape(pattern[at])
            at += 1
        else:
            out += re.escape(char)
    try:
        return re.compile(out, re.DOTALL)
    except re.error:
        return re.compile(re.escape(pattern))


def _class_end(pattern: str, at: int) -> int:
    """Return where a `[…]` ends that begins before `at`; -1 when it does not."""
    start = at + (1 if pattern[at : at + 1] == "^" else 0)
    return pattern.find("]", start + 1)
