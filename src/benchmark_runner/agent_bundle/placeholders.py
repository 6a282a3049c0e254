"""Put values into a bash script so that each arrives as one literal word, whatever quotes stand around it.

What a command does with the word afterwards is the contract's business: `eval`, `let` and the text of a
nested `bash -c "…"` parse it a second time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping

from benchmark_runner.agent_bundle.shell import PLACEHOLDER, Quoting, Spot, find_placeholders
from benchmark_runner.errors import ContractValidationError

__all__ = ["find_placeholders", "placeholder_names", "strangers", "substitute"]

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


def _heredoc(value: str, _spot: Spot) -> str:
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
    Quoting.HEREDOC: _heredoc,
    Quoting.RAW_HEREDOC: _raw_heredoc,
    Quoting.INTEGER: _integer,
    Quoting.UNSUPPORTED: _unsupported,
}
