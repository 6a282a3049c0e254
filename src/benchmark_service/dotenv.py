"""`.env` files: `NAME=value` lines, read and never executed.

Taken: `export NAME=…`, comments, `'literal'`, `"with \\n \\" \\\\ \\$"`, quoted values over several
lines. Not taken: `$OTHER` and `$(…)` stay the text they are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

_ASSIGNMENT = re.compile(
    r"""
    [ \t]*(?:export[ \t]+)?(?P<name>[A-Za-z_][A-Za-z0-9_.-]*)[ \t]*=[ \t]*
    (?: '(?P<single>[^']*)'
      | "(?P<double>(?:[^"\\]|\\.)*)"
      | (?P<bare>[^'"\r\n][^\r\n]*)?
    )
    (?P<rest>[^\r\n]*)
    """,
    re.VERBOSE | re.DOTALL,
)
_IGNORED = re.compile(r"[ \t]*(#[^\n]*)?\r?$")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}


@dataclass(slots=True)
class Dotenv:
    """What a file says, and the lines that say nothing we understand."""

    values: Mapping[str, str]
    bad_lines: list[int] = field(default_factory=list)


def parse(text: str) -> Dotenv:
    """Read a `.env` file; the last of several values for one name wins."""
    values: dict[str, str] = {}
    bad: list[int] = []
    at = 0
    text = text.removeprefix("\ufeff")
    while at < len(text):
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        if _IGNORED.match(text, at, end):
            at = end + 1
            continue
        match = _ASSIGNMENT.match(text, at)
        if match is None or ((rest := match["rest"].strip()) and not rest.startswith("#")):
            bad.append(text.count("\n", 0, at) + 1)
            at = end + 1
            continue
        values[match["name"]] = _value(match)
        at = match.end()
        at += len(text[at : at + 2]) - len(text[at : at + 2].lstrip("\r\n"))
    return Dotenv(values, bad)


def _value(match: re.Match[str]) -> str:
    if (single := match["single"]) is not None:
        return single
    if (double := match["double"]) is not None:
        return re.sub(r"\\(.)", lambda escape: _ESCAPES.get(escape[1], escape[1]), double, flags=re.DOTALL)
    bare = match["bare"] or ""
    return re.sub(r"(^|[ \t])#.*", "", bare).strip()
