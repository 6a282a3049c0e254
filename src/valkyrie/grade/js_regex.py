"""Regular expressions as JavaScript reads them, translated into those of the `regex` package."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum
from functools import lru_cache
from time import perf_counter
from typing import TYPE_CHECKING, cast

from valkyrie.errors import GraderError

if TYPE_CHECKING:
    import regex


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


# JavaScript's pattern syntax, translated piece by piece into that of the `regex` package.
#
# The rules are those of a pattern without the `u` flag, the web's leniences included: an escaped letter that
# means nothing stands for itself, a brace that is no quantifier is a brace. One thing is read as its author
# meant it: `\u{1F600}` is a character.


_SETS = {"d": DIGIT, "w": WORD, "s": SPACE}
_CONTROL = {"t": "\t", "n": "\n", "v": "\x0b", "f": "\x0c", "r": "\r"}
_ENDS = f"[{spelled(LINE_END)}]"
_IN = f"[{spelled(WORD)}]"
_EDGE = f"(?:(?<={_IN})(?!{_IN})|(?<!{_IN})(?={_IN}))"
_NO_EDGE = f"(?:(?<={_IN})(?={_IN})|(?<!{_IN})(?!{_IN}))"
_ASSERTIONS = ("?:", "?=", "?!", "?<=", "?<!")
_MOST_REPEATS = 100_000

_QUANTIFIER = re.compile(r"[*+?]|\{(\d+)(?:(,)(\d*))?\}")
_GROUP_NAME = re.compile(r"<([A-Za-z_$\u0080-\U0010ffff][\w$]*)>")
_MODIFIERS = re.compile(r"\?([ims]*)(?:-([ims]*))?:")
_MODIFIED = re.compile(r"\(\?[ims]*-?[ims]*:")
_DIGITS = re.compile(r"\d+")
_CONTROL_LETTER = re.compile(r"c([A-Za-z])")
_HEX = re.compile(r"x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|u\{([0-9A-Fa-f]{1,6})\}")
_OCTAL = re.compile(r"[0-3][0-7]{0,2}|[4-7][0-7]?")
_GROUPS = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|\((?!\?)|\(\?<([^=!>][^>]*)>", re.DOTALL)


class RegexSyntaxError(ValueError):
    """JavaScript would not take this pattern."""


def translate(pattern: str, flags: frozenset[str] = frozenset()) -> str:
    """The same pattern for the `regex` package.

    With `i` among the flags and case not varying, its own flag must be set too, and `STAND_INS` used.
    """
    return _Translator(pattern, flags).whole()


def case_varies(pattern: str) -> bool:
    """Return whether a group of the pattern has its own mind about case."""
    return any("i" in found[0] for found in _MODIFIED.finditer(pattern))


class _Translator:
    def __init__(self, pattern: str, flags: frozenset[str]) -> None:
        self.text = pattern
        self.at = 0
        self.flags = flags
        self.out: list[str] = []
        self.names, self.groups = _groups_of(pattern)
        self.opened = 0
        self.closed: set[int] = set()
        self.case_varies = case_varies(pattern)

    def whole(self) -> str:
        stack: list[tuple[str, int, frozenset[str]]] = []
        repeatable = False
        while self.at < len(self.text):
            here = self.text[self.at]
            if here == "(":
                outside = self.flags
                stack.append((self.open_group(), self.opened, outside))
                repeatable = False
            elif here == ")":
                if not stack:
                    raise RegexSyntaxError("unmatched )")
                kind, number, self.flags = stack.pop()
                if kind == "capture":
                    self.closed.add(number)
                self.put(")", 1)
                repeatable = not kind.startswith("?<")
            elif here == "|":
                self.put("|", 1)
                repeatable = False
            elif found := _QUANTIFIER.match(self.text, self.at):
                if not repeatable:
                    raise RegexSyntaxError(f"nothing to repeat before {found[0]}")
                self.quantifier(found)
                repeatable = False
            else:
                repeatable = self.atom(here)
        if stack:
            raise RegexSyntaxError("unterminated group")
        return "".join(self.out)

    @property
    def fold(self) -> Fold:
        """How case is to be folded here."""
        if "i" not in self.flags:
            return Fold.NOBODY
        return Fold.SETS if self.case_varies else Fold.ENGINE

    def put(self, piece: str, taken: int) -> None:
        self.out.append(piece)
        self.at += taken

    def quantifier(self, found: re.Match[str]) -> None:
        low, comma, high = found[1], found[2], found[3]
        if any(number and (len(number) > 6 or int(number) > _MOST_REPEATS) for number in (low, high)):
            raise RegexSyntaxError(f"{found[0]} repeats too often; {_MOST_REPEATS} times are taken")
        if low and high and int(high) < int(low):
            raise RegexSyntaxError(f"numbers out of order in {found[0]}")
        self.put(f"{{{low}{comma or ''}{high or ''}}}" if low else found[0], len(found[0]))
        if self.text.startswith("?", self.at):
            self.put("?", 1)

    def open_group(self) -> str:
        """Take the opening of a group; says what it is."""
        if not self.text.startswith("?", self.at + 1):
            return self.capture(1)
        for opening in _ASSERTIONS:
            if self.text.startswith(opening, self.at + 1):
                self.put(f"({opening}", 1 + len(opening))
                return opening
        if name := _GROUP_NAME.match(self.text, self.at + 2):
            return self.capture(name.end() - self.at)
        if found := _MODIFIERS.match(self.text, self.at + 1):
            return self.modifiers(found)
        raise RegexSyntaxError(f"invalid group {self.text[self.at : self.at + 4]}")

    def capture(self, taken: int) -> str:
        self.opened += 1
        self.put("(", taken)
        return "capture"

    def modifiers(self, found: re.Match[str]) -> str:
        on, off = found[1], found[2] or ""
        if len(set(on + off)) != len(on + off) or not on + off:
            raise RegexSyntaxError(f"invalid group ({found[0]}")
        self.flags = (self.flags | set(on)) - set(off)
        self.put("(?:", 1 + len(found[0]))
        return "modifiers"

    def atom(self, here: str) -> bool:
        """Take one atom or assertion; says whether it may be repeated."""
        if here == "^":
            self.put(f"(?:(?<={_ENDS})|\\A)" if "m" in self.flags else r"\A", 1)
            return False
        if here == "$":
            self.put(f"(?={_ENDS}|\\Z)" if "m" in self.flags else r"\Z", 1)
            return False
        if here == ".":
            self.put(one_of([] if "s" in self.flags else LINE_END, negated=True), 1)
        elif here == "[":
            self.character_class()
        elif here == "\\":
            return self.escape()
        else:
            self.character(here, 1)
        return True

    def character(self, character: str, taken: int) -> None:
        code, fold = ord(character), self.fold
        as_set = fold is Fold.SETS or (fold is Fold.ENGINE and code in STRANGE)
        self.put(one_of([(code, code)], fold) if as_set else literal(code), taken)

    def escape(self) -> bool:
        letter = self.text[self.at + 1 : self.at + 2]
        if letter and letter in "bB":
            self.put(_EDGE if letter == "b" else _NO_EDGE, 2)
            return False
        if letter.lower() in _SETS:
            self.put(one_of(_SETS[letter.lower()], negated=letter.isupper()), 2)
        elif number := self.group_number():
            self.reference(number, 1 + len(str(number)))
        elif letter == "k" and self.names:
            found = _GROUP_NAME.match(self.text, self.at + 2)
            if not found or found[1] not in self.names:
                raise RegexSyntaxError("\\k names no group")
            self.reference(self.names[found[1]], found.end() - self.at)
        else:
            self.character(*self.character_escape())
        return True

    def group_number(self) -> int | None:
        digits = _DIGITS.match(self.text, self.at + 1)
        if digits is None or digits[0].startswith("0") or len(digits[0]) > 5:
            return None
        return int(digits[0]) if int(digits[0]) <= self.groups else None

    def reference(self, number: int, taken: int) -> None:
        """Match what a group matched; one that has not matched stands for nothing."""
        self.put(f"(?:(?({number})\\g<{number}>))" if number in self.closed else "(?:)", taken)

    def character_escape(self) -> tuple[str, int]:
        """The character an escape stands for, and how long the escape is."""
        start = self.at + 1
        letter = self.text[start : start + 1]
        if not letter:
            raise RegexSyntaxError("a backslash at the end")
        if letter in _CONTROL:
            return _CONTROL[letter], 2
        if found := _CONTROL_LETTER.match(self.text, start):
            return chr(ord(found[1]) % 32), 3
        if (found := _HEX.match(self.text, start)) and (
            code := int(found[1] or found[2] or found[3], 16)
        ) <= 0x10FFFF:
            return chr(code), 1 + len(found[0])
        if found := _OCTAL.match(self.text, start):
            return chr(int(found[0], 8)), 1 + len(found[0])
        return ("\\", 1) if letter == "c" else (letter, 2)

    def character_class(self) -> None:
        self.at += 1
        negated = self.text.startswith("^", self.at)
        self.at += negated
        ranges: list[tuple[int, int]] = []
        while not self.text.startswith("]", self.at):
            low = self.class_atom()
            if self.text.startswith("-", self.at) and self.text[self.at + 1 : self.at + 2] not in ("", "]"):
                self.at += 1
                ranges += _between(low, self.class_atom())
            else:
                ranges += low
        self.at += 1
        self.out.append(one_of(ranges, self.fold, negated=negated))

    def class_atom(self) -> Ranges:
        """The next character of a class, or a whole set such as `\\d`."""
        if self.at >= len(self.text):
            raise RegexSyntaxError("unterminated character class")
        if self.text[self.at] != "\\":
            character, taken = self.text[self.at], 1
        elif (letter := self.text[self.at + 1 : self.at + 2]).lower() in _SETS:
            self.at += 2
            ranges = _SETS[letter.lower()]
            return complement(ranges) if letter.isupper() else ranges
        elif letter == "b":
            character, taken = "\b", 2
        else:
            character, taken = self.character_escape()
        self.at += taken
        return [(ord(character), ord(character))]


def _between(low: Ranges, high: Ranges) -> Ranges:
    """A range; with a whole set at either end the hyphen is a hyphen."""
    if len(low) > 1 or len(high) > 1 or low[0][0] != low[0][1] or high[0][0] != high[0][1]:
        return [*low, (0x2D, 0x2D), *high]
    if high[0][0] < low[0][0]:
        raise RegexSyntaxError(f"range out of order in a class: {chr(low[0][0])}-{chr(high[0][0])}")
    return [(low[0][0], high[0][0])]


def _groups_of(pattern: str) -> tuple[dict[str, int], int]:
    """Names of groups → their numbers, and how many groups there are."""
    names: dict[str, int] = {}
    count = 0
    for found in _GROUPS.finditer(pattern):
        if not found[0].startswith("("):
            continue
        count += 1
        if name := found[1]:
            if name in names:
                raise RegexSyntaxError(f"two groups are called {name}")
            names[name] = count
    return names, count


# Regular expressions as JavaScript reads them: what authors of eval specs wrote theirs for.
#
# A pattern is translated into one of the `regex` package, which means the same and can be given a time
# limit: what an agent wrote may make any backtracking search take for ever.

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
    """Allow searches in here `GRADER_SECONDS` in all."""
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
    """Return where words are; there is nothing to compile for that, and nothing that could take long."""
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
        if self._words is None and self._pattern is None and self._problem is None:
            try:
                self._pattern = _compiled(self.source)
            except RegexSyntaxError as error:
                self._problem = f"invalid regex /{self.source}/: {error}"
        return self._problem

    def search(self, text: str) -> tuple[int, int] | None:
        """Return where it first matches. Raises RegexSyntaxError, and GraderError when it takes too long."""
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
        """Return what the first group matched wherever the pattern does, or the whole match where it has no
        group.

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


__all__ = [
    "JsRegex",
    "RegexSyntaxError",
    "compile_js",
]
