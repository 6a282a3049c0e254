"""Regular expressions as JavaScript reads them: what authors of eval specs wrote theirs for.

A pattern is translated into one of the `regex` package, which means the same and can be given a time limit:
what an agent wrote may make any backtracking search take for ever.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from time import perf_counter
from typing import TYPE_CHECKING, cast

from valkyrie.errors import GraderError
from valkyrie.grade.js_sets import STAND_INS
from valkyrie.grade.js_syntax import RegexSyntaxError, case_varies, translate

if TYPE_CHECKING:
    import regex

__all__ = ["JsRegex", "RegexSyntaxError", "compile_js"]

SEARCH_SECONDS = 1.0
"""How long one search may take."""
GRADER_SECONDS = 5.0
"""How long all searches of one grader may take together."""
MOST_PATTERN = 20_000
"""Characters of a pattern."""

_IGNORECASE = 2
"""The value of `regex.IGNORECASE`."""
_STRANGE = tuple(map(chr, STAND_INS))
_PREFIX = re.compile(r"(?:\(\?[ims]+\))+")
_WORDS = re.compile(r"(\^?)([\w \-,:;=@#%&'\"<>~`!]*)(\$?)", re.ASCII)
"""A pattern of nothing but words, which most are."""


MOST_CAPTURED = 10_000
"""Pieces of one text that are looked at."""
_left: ContextVar[list[float] | None] = ContextVar("seconds left for searching", default=None)


@contextmanager
def bounded_searching() -> Iterator[None]:
    """What is searched in here may take `GRADER_SECONDS` in all."""
    token = _left.set([GRADER_SECONDS])
    try:
        yield
    finally:
        _left.reset(token)


def compile_js(pattern: str) -> re.Pattern[str]:
    """The pattern, compiled; a prefix such as `(?im)` sets flags. Raises RegexSyntaxError, a ValueError.

    It is searched with as one of `re`. `JsRegex` is for what an agent wrote: it has a time limit, and knows
    the few letters that fold otherwise.
    """
    return cast("re.Pattern[str]", _compiled(pattern))


@lru_cache(maxsize=4096)
def _compiled(pattern: str) -> regex.Pattern[str]:
    import regex

    if len(pattern) > MOST_PATTERN:
        raise RegexSyntaxError(f"it has {len(pattern)} characters, {MOST_PATTERN} are taken")
    prefix = _PREFIX.match(pattern)
    flags = frozenset(prefix[0]) & frozenset("ims") if prefix else frozenset()
    body = pattern[prefix.end() :] if prefix else pattern
    folds = "i" in flags and not case_varies(body)
    try:
        return regex.compile(translate(body, flags), regex.IGNORECASE if folds else 0)
    except (regex.error, RecursionError, OverflowError) as error:
        raise RegexSyntaxError(str(error) or type(error).__name__) from None


def _find_words(pattern: re.Match[str], text: str) -> tuple[int, int] | None:
    """Where words are; there is nothing to compile for that, and nothing that could take long."""
    begins, words, ends = pattern.groups()
    if begins and ends:
        start = 0 if text == words else -1
    elif begins:
        start = 0 if text.startswith(words) else -1
    elif ends:
        start = len(text) - len(words) if text.endswith(words) else -1
    else:
        start = text.find(words)
    return None if start < 0 else (start, start + len(words))


class JsRegex:
    """A pattern of a spec; compiled when it is first needed, so that a broken one is told where it counts."""

    __slots__ = ("_pattern", "_problem", "_words", "source")

    def __init__(self, source: str) -> None:
        self.source = source
        self._words = _WORDS.fullmatch(source) if len(source) <= MOST_PATTERN else None
        self._pattern: regex.Pattern[str] | None = None
        self._problem: str | None = None

    @property
    def problem(self) -> str | None:
        """What is wrong with it."""
        if self._words is None and self._pattern is None and self._problem is None:
            try:
                self._pattern = _compiled(self.source)
            except RegexSyntaxError as error:
                self._problem = f"invalid regex /{self.source}/: {error}"
        return self._problem

    def search(self, text: str) -> tuple[int, int] | None:
        """Where it first matches. Raises RegexSyntaxError, and GraderError when it takes too long."""
        if self._words is not None:
            return _find_words(self._words, text)
        pattern = self._pattern or _compiled(self.source)
        if pattern.flags & _IGNORECASE and any(letter in text for letter in _STRANGE):
            text = text.translate(STAND_INS)
        left = _left.get() or [SEARCH_SECONDS]
        start = perf_counter()
        try:
            found = pattern.search(text, timeout=min(SEARCH_SECONDS, max(left[0], 0.001)))
        except TimeoutError:
            raise GraderError(
                f"searching for /{self.source}/ takes too long ({len(text)} characters). "
                "Write the pattern without nested or neighbouring repeats."
            ) from None
        left[0] -= perf_counter() - start
        return found.span() if found else None

    def captured(self, text: str) -> list[str]:
        """What the first group matched wherever the pattern does, or the whole match where it has no group.

        Raises as `search` does.
        """
        found: list[str] = []
        if self._words is not None:
            return [text[slice(*place)]] if (place := _find_words(self._words, text)) else []
        pattern = self._pattern or _compiled(self.source)
        left = _left.get() or [SEARCH_SECONDS]
        start = perf_counter()
        try:
            for match in pattern.finditer(text, timeout=min(SEARCH_SECONDS, max(left[0], 0.001))):
                if (piece := match[1 if pattern.groups else 0]) and len(found) < MOST_CAPTURED:
                    found.append(piece)
        except TimeoutError:
            raise GraderError(
                f"searching for /{self.source}/ takes too long ({len(text)} characters). "
                "Write the pattern without nested or neighbouring repeats."
            ) from None
        left[0] -= perf_counter() - start
        return found
