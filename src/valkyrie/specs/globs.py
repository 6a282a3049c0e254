"""Globs as the authors' own tools read them, over a project's files and over a workspace."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from valkyrie.errors import UsageError

MAX_BRACES = 1_000
MAX_ENTRIES = 200_000
"""How many entries of folders are looked at for one glob."""
PASSED_BY = frozenset((".git", "node_modules"))
"""Folders `**` does not look into."""

Token = str | tuple[str, Sequence[Sequence["Token"]]]
"""`*`, `?`, a class `[…]`, an escaped character `\\x`, a group (kind, alternatives), or one character."""


@dataclass(frozen=True)
class Glob:
    """A pattern of paths with `/` between the names."""

    pattern: str
    dotfiles: bool = False
    """Whether `*` and `**` take names that begin with a dot."""

    @cached_property
    def _forms(self) -> list[list[list[Token] | None]]:
        """For each spelling after braces: one token list per name, None for `**`."""
        return [
            [None if name == "**" else tokens_of(name) for name in _names(spelled)]
            for spelled in expand_braces(self.pattern)
        ]

    @property
    def magic(self) -> bool:
        """It is more than one plain path."""
        return any(char in self.pattern for char in "*?[{") or "(" in self.pattern

    def matches(self, path: str) -> bool:
        """Return whether it is the whole of this relative path."""
        names = _names(path)
        return any(self._match(form, names) for form in self._forms)

    def _match(self, form: Sequence[list[Token] | None], names: Sequence[str]) -> bool:
        reached = {0}
        for tokens in form:
            if tokens is None:
                reached = {end for start in reached for end in self._any_names(names, start)}
            else:
                reached = {at + 1 for at in reached if at < len(names) and self._name(tokens, names[at])}
        return len(names) in reached

    def _any_names(self, names: Sequence[str], start: int) -> Iterator[int]:
        yield start
        for at in range(start, len(names)):
            if names[at].startswith(".") and not self.dotfiles:
                return
            yield at + 1

    def _name(self, tokens: Sequence[Token], name: str) -> bool:
        if name.startswith(".") and not self.dotfiles and (not tokens or tokens[0] != "."):
            return False
        return len(name) in ends(tokens, name, 0)

    def find(self, folder: Path) -> list[Path]:
        """Return every file and folder below (or, with `..`, beside) this one that fits, in order."""
        search = _Search(self)
        found = {path for form in self._forms for path in search.walk(folder, form)}
        return sorted(found)


@dataclass
class _Search:
    glob: Glob
    left: int = field(default=MAX_ENTRIES)

    def walk(self, folder: Path, form: Sequence[list[Token] | None]) -> Iterator[Path]:
        if not form:
            yield folder
            return
        tokens, rest = form[0], form[1:]
        if tokens is None:
            yield from self.walk(folder, rest) if rest else ()
            for entry in self.entries(folder):
                if entry.name.startswith(".") and not self.glob.dotfiles:
                    continue
                if not rest:
                    yield folder / entry.name
                if entry.is_dir(follow_symlinks=False) and entry.name not in PASSED_BY:
                    yield from self.walk(folder / entry.name, form)
        elif all(isinstance(token, str) and token not in ("*", "?") and token[:1] != "[" for token in tokens):
            child = folder / "".join(token[-1] for token in tokens if isinstance(token, str))
            if child.exists():
                yield from self.walk(child, rest)
        else:
            for entry in self.entries(folder):
                if self.glob._name(tokens, entry.name):
                    yield from self.walk(folder / entry.name, rest)

    def entries(self, folder: Path) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(folder) as scan:
                entries = sorted(scan, key=lambda entry: entry.name)
        except OSError:
            return []
        self.left -= len(entries)
        if self.left < 0:
            raise UsageError(
                f"{self.glob.pattern!r} looks at more than {MAX_ENTRIES:,} files: name a smaller folder."
            )
        return entries


def _names(path: str) -> list[str]:
    """The names of a path; a `/` inside parentheses or brackets is not looked for."""
    return [name for name in path.split("/") if name not in ("", ".")]


def expand_braces(pattern: str) -> list[str]:
    """`a{b,c}` → `ab`, `ac`; a brace without a comma is only itself."""
    spelled = [pattern]
    done: list[str] = []
    while spelled:
        text = spelled.pop(0)
        if (span := _first_braces(text)) is None:
            done.append(text)
        else:
            start, end, parts = span
            spelled = [text[:start] + part + text[end:] for part in parts] + spelled
        if len(spelled) + len(done) > MAX_BRACES:
            raise UsageError(f"{pattern!r} stands for more than {MAX_BRACES:,} patterns.")
    return done


def _first_braces(text: str) -> tuple[int, int, list[str]] | None:
    for start, char in enumerate(text):
        if char != "{":
            continue
        depth, begin, parts = 0, start + 1, list[str]()
        for at in range(start, len(text)):
            depth += {"{": 1, "}": -1}.get(text[at], 0)
            if (text[at] == "," and depth == 1) or depth == 0:
                parts.append(text[begin:at])
                begin = at + 1
            if depth == 0:
                if len(parts) > 1:
                    return start, at + 1, parts
                break
    return None


def tokens_of(name: str) -> list[Token]:
    tokens, _ = _tokens(name, 0, inside=False)
    return tokens


def _tokens(text: str, at: int, *, inside: bool) -> tuple[list[Token], int]:
    tokens: list[Token] = []
    while at < len(text):
        char = text[at]
        if inside and char in "|)":
            break
        if char in "!@?*+" and text[at + 1 : at + 2] == "(" and _closes(text, at + 1):
            alternatives: list[list[Token]] = []
            at += 1
            while text[at] in "(|":
                alternative, at = _tokens(text, at + 1, inside=True)
                alternatives.append(alternative)
            tokens.append((char, alternatives))
            at += 1
        elif char == "[" and (end := _class_end(text, at)):
            tokens.append(text[at:end])
            at = end
        elif char == "\\" and at + 1 < len(text):
            tokens.append(text[at : at + 2])
            at += 2
        else:
            tokens.append(char)
            at += 1
    return tokens, at


def _closes(text: str, start: int) -> bool:
    depth = 0
    for char in text[start:]:
        depth += {"(": 1, ")": -1}.get(char, 0)
        if depth == 0:
            return True
    return False


def _class_end(text: str, start: int) -> int | None:
    """Just after the `]` of a class; one that comes first is part of it."""
    first = start + 2 if text[start + 1 : start + 2] in ("!", "^") else start + 1
    end = text.find("]", first + 1)
    return end + 1 if end > 0 else None


def ends(tokens: Sequence[Token], text: str, start: int) -> set[int]:
    """Everywhere the tokens can end when they begin at `start`."""
    reached = {start}
    for token in tokens:
        reached = {end for at in reached for end in _step(token, text, at)}
    return reached


def _step(piece: Token, text: str, at: int) -> set[int]:
    if isinstance(piece, tuple):
        return _group(piece[0], piece[1], text, at)
    if piece == "*":
        return set(range(at, len(text) + 1))
    if at >= len(text):
        return set()
    if piece == "?":
        return {at + 1}
    if len(piece) > 1 and piece[0] == "[":
        return {at + 1} if _in_class(piece, text[at]) else set()
    return {at + 1} if piece[-1] == text[at] else set()


def _group(kind: str, alternatives: Sequence[Sequence[Token]], text: str, at: int) -> set[int]:
    once = {end for one in alternatives for end in ends(one, text, at)}
    if kind == "!":
        return set(range(at, len(text) + 1)) - once
    if kind == "@":
        return once
    if kind == "?":
        return once | {at}
    reached, fresh = set(once), set(once)
    while fresh:
        fresh = {end for begin in fresh for one in alternatives for end in ends(one, text, begin)} - reached
        reached |= fresh
    return reached if kind == "+" else reached | {at}


def _in_class(token: str, char: str) -> bool:
    negated = token[1] in "!^"
    body = token[2 if negated else 1 : -1]
    at, inside = 0, False
    while at < len(body):
        if body[at + 1 : at + 2] == "-" and at + 2 < len(body):
            inside = inside or body[at] <= char <= body[at + 2]
            at += 3
        else:
            inside = inside or body[at] == char
            at += 1
    return inside != negated


# Files of a workspace by glob: `**`, `*`, `?`, `[a-z]`, `{a,b}`; names that begin with a dot match too.
#
# The workspace is hostile: links are followed only where they stay inside, and looking is bounded.


_DEEPEST = 200
_MAGIC = re.compile(r"[*?\[\\]|[!@+]\(")


class TooManyFilesError(Exception):
    """The workspace has more files than are looked at."""


class WorkspaceGlob:
    """A path or glob as an author wrote it. Raises UsageError for one with too many braces."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self._spellings = [(spelled, _parts(spelled)) for spelled in expand_braces(pattern)]

    @property
    def plain(self) -> bool:
        """Whether it names few places, so that looking takes no time."""
        return len(self._spellings) < 10 and not _MAGIC.search(self.pattern)

    @property
    def leaves(self) -> bool:
        """Whether it names something outside of the workspace, where nothing is ever found."""
        return any(parts is None for _, parts in self._spellings)

    def find(self, root: Path, unseen: Collection[str] = ()) -> Iterator[Path]:
        """Yield what matches below `root`, files and folders, each once. Raises TooManyFilesError.

        `unseen` are paths relative to it that count as not there, and with them what is below.
        """
        search = _WorkspaceSearch(os.path.realpath(root), unseen)
        seen: set[str] = set()
        for spelled, parts in self._spellings:
            for path in search.below(search.root, parts, 0) if parts else ():
                if path not in seen and (not spelled.endswith("/") or _is_folder(path)):
                    seen.add(path)
                    yield Path(path)


def _parts(pattern: str) -> list[str] | None:
    """The folders and the name of a glob; None when it leads out."""
    parts = [part for part in pattern.split("/") if part not in ("", ".")]
    return None if pattern.startswith("/") or ".." in parts or "\0" in pattern else parts


def _is_folder(path: str) -> bool:
    try:
        return stat.S_ISDIR(Path(path).stat().st_mode)
    except OSError:
        return False


class _WorkspaceSearch:
    def __init__(self, root: str, unseen: Collection[str] = ()) -> None:
        self.root = root
        self.unseen = {f"{root}/{path}" for path in unseen}
        self.left = MAX_ENTRIES

    def below(self, folder: str, parts: Sequence[str], at: int) -> Iterator[str]:
        if at == len(parts):
            yield folder
        elif parts[at] == "**":
            yield from self.any_depth(folder, parts, at, 0)
        elif _MAGIC.search(parts[at]):
            tokens = tokens_of(parts[at])
            for name, _ in self.entries(folder):
                if len(name) in ends(tokens, name, 0):
                    yield from self.go(f"{folder}/{name}", parts, at + 1)
        else:
            yield from self.go(f"{folder}/{parts[at]}", parts, at + 1)

    def any_depth(self, folder: str, parts: Sequence[str], at: int, depth: int) -> Iterator[str]:
        last = at + 1 == len(parts)
        if not last:
            yield from self.below(folder, parts, at + 1)
        for name, is_folder in self.entries(folder):
            path = f"{folder}/{name}"
            if path in self.unseen:
                continue
            if last and self.inside(path):
                yield path
            if is_folder and depth < _DEEPEST:
                yield from self.any_depth(path, parts, at, depth + 1)

    def go(self, path: str, parts: Sequence[str], at: int) -> Iterator[str]:
        """Go on at a path, if it is there and not elsewhere."""
        if self.inside(path) and (at == len(parts) or _is_folder(path)):
            yield from self.below(path, parts, at)

    def entries(self, folder: str) -> list[tuple[str, bool]]:
        """Names in a folder, and whether each is a folder itself (a link to one is not)."""
        found = []
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    self.left -= 1
                    if self.left < 0:
                        raise TooManyFilesError(f"more than {MAX_ENTRIES} files were looked at")
                    found.append((entry.name, entry.is_dir(follow_symlinks=False)))
        except OSError:
            return []
        return sorted(found)

    def inside(self, path: str) -> bool:
        """Return whether it is there, and what it leads to is in the workspace."""
        if self._is_unseen(path):
            return False
        try:
            if not stat.S_ISLNK(os.lstat(path).st_mode):
                return True
            target = os.path.realpath(path, strict=True)
        except (OSError, ValueError):
            return False
        return target == self.root or target.startswith(self.root + os.sep)

    def _is_unseen(self, path: str) -> bool:
        """Return whether it is one of the paths that count as not there, or a link leads it to one."""
        if not self.unseen:
            return False
        real = os.path.realpath(path)
        return path in self.unseen or any(real == one or real.startswith(one + os.sep) for one in self.unseen)
