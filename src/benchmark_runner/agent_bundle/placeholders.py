"""Placeholders in commands, filled and quoted for where they stand in the shell's grammar."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from benchmark_runner.errors import ContractValidationError


class Quoting(StrEnum):
    """What surrounds a placeholder."""

    BARE = "bare"
    SINGLE = "single quotes"
    DOUBLE = "double quotes"
    ANSI = "$'…'"
    HEREDOC = "here-document"
    RAW_HEREDOC = "here-document with a quoted delimiter"
    INTEGER = "arithmetic"
    UNSUPPORTED = "${…} within quotes"
    """Bash itself is of two minds there: `'` must come in pairs and yet is a plain character."""


@dataclass(frozen=True, slots=True)
class Spot:
    """One placeholder: where it stands and how."""

    start: int
    end: int
    name: str
    quoting: Quoting
    backticks: int = 0
    """How many levels of backticks stand around it; each takes one level of backslashes away."""
    delimiter: str = ""
    """Of the here-document it stands in."""
    strips_tabs: bool = False


@dataclass(slots=True)
class _Heredoc:
    delimiter: str
    quoted: bool
    strips_tabs: bool


PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_-]*)\}")
_WORD = re.compile(r"[A-Za-z_]\w*(?=[\s;&|()<>]|$)")
_HEREDOC_START = re.compile(r"<<(-?)[ \t]*((?:'[^'\n]*'|\"[^\"\n]*\"|\\.|[^\s;&|()<>'\"\\])+)")
_PARAMETER_NAME = re.compile(r"[!#]?(?:\w+|[@*#?$!-])?")
_MAX_FALSE_ARITHMETIC = 50
_COMMAND_FOLLOWS = frozenset({"if", "then", "elif", "else", "while", "until", "do", "time"})


def find_placeholders(script: str, names: Collection[str]) -> list[Spot]:
    """Return every `{name}` of these names that bash would see, in order.

    Not found: one after a `$` (that is a variable), after an active backslash, or in a comment.
    """
    found = _Found(frozenset(names))
    try:
        _Scanner(script, range(len(script)), found).commands(closing=False)
    except RecursionError:
        raise ContractValidationError("run_cmd: quotes and substitutions are nested too deeply.") from None
    return sorted(found.spots, key=lambda spot: spot.start)


@dataclass(slots=True)
class _Found:
    names: frozenset[str]
    spots: list[Spot] = field(default_factory=list)
    no_arithmetic: set[int] = field(default_factory=set)
    """Where `((` turned out to be two parentheses; trying each once keeps nested ones affordable."""


class _Scanner:
    def __init__(self, text: str, origin: Sequence[int], found: _Found, backticks: int = 0) -> None:
        self.text = text
        self.origin = origin
        """Where each character stands in the whole script."""
        self.found = found
        self.backticks = backticks
        self.at = 0
        self.forced: Quoting | None = None
        """What holds for every placeholder here, however it is quoted."""
        self.heredoc: _Heredoc | None = None

    def commands(self, *, closing: bool) -> None:
        """Scan commands to the end of the text or, if `closing`, past the `)` that ends a substitution.

        They stand on their own, whatever quotes or here-document the substitution is part of.
        """
        outer = self.forced, self.heredoc
        self.forced = self.heredoc = None
        self._commands(closing)
        self.forced, self.heredoc = outer

    def _commands(self, closing: bool) -> None:
        text, pending = self.text, list[_Heredoc]()
        # Open parentheses and `case`s. A case is "head", then "pattern" (its `)` opens a body), then "body".
        open_: list[str] = []
        in_word, command_next = False, True
        while self.at < len(text):
            char, top = text[self.at], open_[-1] if open_ else ""
            if char == "#" and not in_word:
                self.at = self._find("\n")
            elif char == "\n":
                self.at += 1
                while pending:
                    self._heredoc_body(pending.pop(0))
                in_word, command_next = False, True
            elif char in " \t":
                self.at += 1
                in_word = False
            elif text.startswith("\\\n", self.at):
                self.at += 2
            elif char == "(":
                if text.startswith("((", self.at) and self._arithmetic(2, "(", "))"):
                    continue
                if top != "pattern" or in_word:
                    open_.append("(")
                self.at += 1
                in_word, command_next = False, not in_word
            elif char == ")":
                self.at += 1
                if top == "(":
                    open_.pop()
                elif top:
                    open_[-1] = "body"
                elif closing:
                    return
                in_word, command_next = False, True
            elif text.startswith("<<<", self.at):
                self.at += 3
                in_word = False
            elif start := _HEREDOC_START.match(text, self.at):
                pending.append(_heredoc(start))
                self.at = start.end()
            elif char in ";&|<>":
                if top == "body" and text.startswith((";;", ";&"), self.at):
                    open_[-1] = "pattern"
                self.at += 1
                in_word, command_next = False, command_next or char not in "<>"
            elif not in_word and (word := _WORD.match(text, self.at)):
                self.at = word.end()
                in_word, command_next = True, self._keyword(word[0], open_, command_next)
            else:
                self._piece()
                # `{` and `!` alone are words after which a command follows.
                command_next = command_next and not in_word and char in "{!"
                in_word = True

    @staticmethod
    def _keyword(word: str, open_: list[str], command_next: bool) -> bool:
        """Follow `case … in … esac`; say whether a command may follow this word."""
        top = open_[-1] if open_ else ""
        if top == "head":
            if word == "in":
                open_[-1] = "pattern"
        elif word == "esac" and command_next and top in ("pattern", "body"):
            open_.pop()
        elif word == "case" and command_next and top != "pattern":
            open_.append("head")
        else:
            return command_next and word in _COMMAND_FOLLOWS
        return word == "in"

    def _piece(self) -> None:
        """One character, quoted run or expansion of an unquoted word."""
        char = self.text[self.at]
        if char == "\\":
            self.at += 2
        elif char == "'":
            self._until("'", Quoting.SINGLE)
        elif char == '"':
            self._double()
        elif char == "`":
            self._backtick(in_double=False)
        elif char == "$":
            self._dollar(in_double=False)
        else:
            self._placeholder_or_char(Quoting.BARE)

    def _placeholder_or_char(self, quoting: Quoting) -> None:
        match = PLACEHOLDER.match(self.text, self.at) if self.text[self.at] == "{" else None
        variable = self.at > 0 and self.text[self.at - 1] == "$"
        if match is None or variable or match[1] not in self.found.names:
            self.at += 1
            return
        start, end = self.origin[match.start()], self.origin[match.end() - 1] + 1
        heredoc = self.heredoc or _Heredoc("", False, False)
        self.found.spots.append(
            Spot(
                start,
                end,
                match[1],
                self.forced or quoting,
                self.backticks,
                heredoc.delimiter,
                heredoc.strips_tabs,
            )
        )
        self.at = match.end()

    def _until(self, end: str, quoting: Quoting, *, escapes: bool = False) -> None:
        """A run of literal text from its opening quote through `end`."""
        self.at += 1
        while self.at < len(self.text):
            if self.text[self.at] == end:
                self.at += 1
                return
            if escapes and self.text[self.at] == "\\":
                self.at += 2
            else:
                self._placeholder_or_char(quoting)

    def _double(self) -> None:
        self.at += 1
        while self.at < len(self.text) and self.text[self.at] != '"':
            self._expanding(Quoting.DOUBLE)
        self.at += 1

    def _expanding(self, quoting: Quoting) -> None:
        """One step where only `\\`, `$` and backticks mean something."""
        char = self.text[self.at]
        if char == "\\":
            self.at += 2
        elif char == "`":
            self._backtick(in_double=quoting is Quoting.DOUBLE)
        elif char == "$":
            self._dollar(in_double=True)
        else:
            self._placeholder_or_char(quoting)

    def _dollar(self, *, in_double: bool) -> None:
        text, at = self.text, self.at
        if text.startswith("$((", at) and self._arithmetic(3, "(", "))"):
            return
        if text.startswith("$(", at):
            self.at += 2
            self.commands(closing=True)
        elif text.startswith("$[", at):
            if not self._arithmetic(2, "[", "]"):
                self.at += 2
        elif text.startswith("${", at):
            self._parameter(in_double=in_double)
        elif text.startswith("$'", at) and not in_double:
            self.at += 1
            self._until("'", Quoting.ANSI, escapes=True)
        else:
            self.at += 1

    def _arithmetic(self, opener: int, open_: str, end: str) -> bool:
        """Scan an arithmetic expression; False, and nothing scanned, when it turns out not to be one."""
        start, known, outer = self.at, len(self.found.spots), self.forced
        if self.origin[start] in self.found.no_arithmetic:
            return False
        self.at += opener
        self.forced = Quoting.INTEGER
        closed = self._arithmetic_body(open_, end)
        self.forced = outer
        if not closed:
            self.at = start
            del self.found.spots[known:]
            self.found.no_arithmetic.add(self.origin[start])
            if len(self.found.no_arithmetic) > _MAX_FALSE_ARITHMETIC:
                raise ContractValidationError("run_cmd: too many `((` that are no arithmetic; write `( (`.")
        return closed

    def _arithmetic_body(self, open_: str, end: str) -> bool:
        depth = 0
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == end[0] and not depth:
                closed = self.text.startswith(end, self.at)
                self.at += len(end)
                return closed
            depth += (char == open_) - (char == end[0])
            if char == '"':
                self._double()
            elif char == "'":
                self._until("'", Quoting.INTEGER)
            else:
                self._expanding(Quoting.INTEGER)
        return False

    def _parameter(self, *, in_double: bool) -> None:
        """`${name}`, `${name[index]}`, `${name:offset}`, `${name<operator>word}`."""
        text = self.text
        name = _PARAMETER_NAME.match(text, self.at + 2)
        self.at = name.end() if name else self.at + 2
        if text.startswith("[", self.at) and not self._arithmetic(1, "[", "]"):
            self.at += 1
        if text.startswith(":", self.at) and text[self.at + 1 : self.at + 2] not in ("-", "=", "?", "+"):
            if not self._arithmetic(1, "", "}"):
                self.at = len(text)
            return
        outer = self.forced
        self.forced = Quoting.UNSUPPORTED if in_double else outer
        while self.at < len(text) and text[self.at] != "}":
            if text[self.at] == '"':
                self._double()
            elif text[self.at] == "'" or not in_double:
                self._piece()
            else:
                self._expanding(Quoting.UNSUPPORTED)
        self.forced = outer
        self.at += 1

    def _backtick(self, *, in_double: bool) -> None:
        """Bash takes one level of backslashes away inside backticks and parses what remains."""
        text, special = self.text, '`\\$"' if in_double else "`\\$"
        kept: list[int] = []
        self.at += 1
        while self.at < len(text) and text[self.at] != "`":
            if text[self.at] == "\\" and text[self.at + 1 : self.at + 2] in tuple(special):
                self.at += 1
            kept.append(self.at)
            self.at += 1
        self.at += 1
        body = "".join(text[index] for index in kept)
        origin = [self.origin[index] for index in kept]
        _Scanner(body, origin, self.found, self.backticks + 1).commands(closing=False)

    def _heredoc_body(self, heredoc: _Heredoc) -> None:
        start = end = self.at
        continued = False
        while end < len(self.text):
            line_end = self.text.find("\n", end)
            line_end = len(self.text) if line_end < 0 else line_end
            line = self.text[end:line_end]
            if not continued and (line.lstrip("\t") if heredoc.strips_tabs else line) == heredoc.delimiter:
                break
            continued = not heredoc.quoted and (len(line) - len(line.rstrip("\\"))) % 2 == 1
            end = line_end + 1
        body = _Scanner(self.text[start:end], self.origin[start:end], self.found, self.backticks)
        body.heredoc = heredoc
        while body.at < len(body.text):
            if heredoc.quoted:
                body._placeholder_or_char(Quoting.RAW_HEREDOC)
            else:
                body._expanding(Quoting.HEREDOC)
        self.at = self._find("\n", min(end, len(self.text)))

    def _find(self, char: str, start: int | None = None) -> int:
        found = self.text.find(char, self.at if start is None else start)
        return len(self.text) if found < 0 else found


def _heredoc(start: re.Match[str]) -> _Heredoc:
    word = start[2]
    quoted = any(char in word for char in "'\"\\")
    return _Heredoc(re.sub(r"['\"\\]", "", word), quoted, start[1] == "-")


# Put values into a bash script so that each arrives as one literal word, whatever quotes stand around it.
#
# What a command does with the word afterwards is the contract's business: `eval`, `let` and the text of a
# nested `bash -c "…"` parse it a second time.

_BRACED = re.compile(r"(?<!\$)" + PLACEHOLDER.pattern)
_VARIABLE = re.compile(r"\$\w+\Z")
_INTEGER = re.compile(r"[+-]?[0-9]+")


def placeholder_names(script: str, names: Collection[str]) -> set[str]:
    """Return those of `names` that the script really uses."""
    return {spot.name for spot in find_placeholders(script, names)}


def strangers(script: str, names: Collection[str]) -> list[str]:
    """Return the words in braces that are none of `names`; the shell gets them as they stand."""
    return [word for word in dict.fromkeys(_BRACED.findall(script)) if word not in names]


def substitute(script: str, values: Mapping[str, str]) -> str:
    """Replace each `{name}` of `values` in the script; everything else is left as it stands.

    All values go in at once, so a value that reads `{task_id}` stays that text.
    """
    pieces: list[str] = []
    done = 0
    for spot in find_placeholders(script, values):
        pieces += (script[done : spot.start], _quoted(values[spot.name], spot, script))
        done = spot.end
    return "".join((*pieces, script[done:]))


def _quoted(value: str, spot: Spot, script: str) -> str:
    if "\0" in value:
        raise _refused(spot, "its value holds a NUL character, which no command can be given")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise _refused(spot, "its value is not valid text (a lone surrogate)") from None
    if spot.backticks and spot.quoting is not Quoting.INTEGER:
        return _in_backticks(value, spot, script)
    text = _QUOTE[spot.quoting](value, spot)
    if spot.quoting is Quoting.DOUBLE and _VARIABLE.search(script, 0, spot.start):
        # `"$name{x}"`: a letter of the value must not become part of the variable's name.
        text = f'""{text}'
    return text


def _in_backticks(value: str, spot: Spot, script: str) -> str:
    """As octal escapes: bash looks at the raw text between backticks with several inconsistent eyes."""
    around = _AROUND_ANSI.get(spot.quoting)
    if around is None or script[: spot.start].endswith("\\"):
        raise _refused(
            spot, f"{spot.quoting} or a backslash inside backticks; write $(…) instead of backticks"
        )
    safe = "".join(c if c.isalnum() or not c.isascii() else f"\\{ord(c):03o}" for c in value)
    return f"{around[0]}$'{safe}'{around[1]}".replace("\\", "\\" * 2**spot.backticks)


def _refused(spot: Spot, why: str) -> ContractValidationError:
    return ContractValidationError(f"run_cmd: {{{spot.name}}} cannot be filled in: {why}.")


def _single(value: str, _spot: Spot) -> str:
    return value.replace("'", "'\\''")


def _bare(value: str, spot: Spot) -> str:
    # Quoted even when it looks harmless: `echo {n}>file` must not become `echo 2>file`.
    return f"'{_single(value, spot)}'"


def _double(value: str, _spot: Spot) -> str:
    return re.sub(r'([\\"$`])', r"\\\1", value)


def _ansi(value: str, spot: Spot) -> str:
    # Out of the quotes and in again: in them, `\\x4` would swallow a first hex digit of the value.
    return f"'{_bare(value, spot)}$'"


def _placeholders_heredoc(value: str, _spot: Spot) -> str:
    # The empty expansion keeps a line from being the delimiter, and its tabs from being stripped.
    return "\n".join("$()" + re.sub(r"([\\$`])", r"\\\1", line) for line in value.split("\n"))


def _raw_heredoc(value: str, spot: Spot) -> str:
    lines = value.split("\n")
    if any(line and line in spot.delimiter for line in lines):
        raise _refused(spot, f"a line of its value could end the here-document {spot.delimiter}")
    if spot.strips_tabs and any(line.startswith("\t") for line in lines):
        raise _refused(spot, "`<<-` would strip the tabs of its value; use `<<`")
    return value


def _integer(value: str, spot: Spot) -> str:
    # Bash evaluates the text of arithmetic, subscripts included: anything but a number could run commands.
    if not _INTEGER.fullmatch(value):
        raise _refused(spot, f"it stands in an arithmetic expression, and {value!r} is not an integer")
    return value


def _unsupported(_value: str, spot: Spot) -> str:
    raise _refused(
        spot, f'inside "${{…}}" no value is safe; assign it first: v={{{spot.name}}}; … "${{u:-$v}}"'
    )


_AROUND_ANSI = {
    Quoting.BARE: ("", ""),
    Quoting.SINGLE: ("'", "'"),
    Quoting.DOUBLE: ('"', '"'),
    Quoting.ANSI: ("'", "$'"),
}
_QUOTE: Mapping[Quoting, Callable[[str, Spot], str]] = {
    Quoting.BARE: _bare,
    Quoting.SINGLE: _single,
    Quoting.DOUBLE: _double,
    Quoting.ANSI: _ansi,
    Quoting.HEREDOC: _placeholders_heredoc,
    Quoting.RAW_HEREDOC: _raw_heredoc,
    Quoting.INTEGER: _integer,
    Quoting.UNSUPPORTED: _unsupported,
}


__all__ = [
    "find_placeholders",
    "placeholder_names",
    "strangers",
    "substitute",
]
