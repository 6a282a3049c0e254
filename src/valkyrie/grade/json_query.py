"""A part of JSONPath (RFC 9535): names, wildcards, indexes, slices, unions, descendants; no filters.

`$.a.b`, `$['a b'][0]`, `$.list[-1]`, `$.list[1:3]`, `$.*`, `$..name`, `$['a','b']`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

MOST_FOUND = 10_000
_NAME = re.compile(r"[A-Za-z_\u0080-\U0010ffff][\w\u0080-\U0010ffff-]*")
_SLICE = re.compile(r"\s*(-?\d{1,15})?\s*:\s*(-?\d{1,15})?\s*(?::\s*(-?\d{1,15})?\s*)?")
_INDEX = re.compile(r"\s*(-?\d{1,15})\s*")
_QUOTED = re.compile(r"""\s*(?:'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)")\s*""", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}

Selector = Callable[[Any], Iterator[Any]]


class QueryError(ValueError):
    """This is no JSONPath, or a part of it that is not read here."""


class JsonQuery:
    """A compiled query."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._steps = list(_steps(text))

    def find(self, document: Any) -> list[Any]:
        """Every value it selects, at most `MOST_FOUND`."""
        found = [document]
        for descends, selectors in self._steps:
            following: list[Any] = []
            for value in found:
                for node in _descendants(value) if descends else (value,):
                    for selector in selectors:
                        following += selector(node)
                    if len(following) > MOST_FOUND:
                        return following[:MOST_FOUND]
            found = following
        return found


def _steps(text: str) -> Iterator[tuple[bool, Sequence[Selector]]]:
    text = text.strip()
    if not text.startswith("$"):
        raise QueryError(f"{text!r} does not begin with $")
    at = 1
    while at < len(text):
        descends = text.startswith("..", at)
        dotted = descends or text[at] == "."
        at += 2 if descends else 1 if dotted else 0
        if text.startswith("[", at) and (descends or not dotted):
            end = _closing(text, at)
            yield descends, [_selector(part) for part in _parts(text[at + 1 : end])]
            at = end + 1
        elif dotted and text.startswith("*", at):
            yield descends, [_children]
            at += 1
        elif dotted and (name := _NAME.match(text, at)):
            yield descends, [_member(name[0])]
            at = name.end()
        else:
            raise QueryError(f"{text!r} is no JSONPath at character {at + 1}")


def _closing(text: str, at: int) -> int:
    """Where the bracket that opens at `at` is closed; quoted ones do not count."""
    quote = ""
    position = at + 1
    while position < len(text):
        here = text[position]
        if quote:
            if here == "\\":
                position += 1
            elif here == quote:
                quote = ""
        elif here in "'\"":
            quote = here
        elif here == "]":
            return position
        position += 1
    raise QueryError(f"{text!r} has a bracket that is not closed")


def _parts(inside: str) -> list[str]:
    """What stands between the commas of a bracket."""
    parts, start, quote = [], 0, ""
    for at, here in enumerate(inside):
        if quote:
            quote = "" if here == quote and inside[at - 1] != "\\" else quote
        elif here in "'\"":
            quote = here
        elif here == ",":
            parts.append(inside[start:at])
            start = at + 1
    return [*parts, inside[start:]]


def _selector(part: str) -> Selector:
    if part.strip() == "*":
        return _children
    if quoted := _QUOTED.fullmatch(part):
        return _member(re.sub(r"\\(.)", lambda m: _ESCAPES.get(m[1], m[1]), quoted[1] or quoted[2] or ""))
    if index := _INDEX.fullmatch(part):
        return _item(int(index[1]))
    if cut := _SLICE.fullmatch(part):
        start, stop, step = (None if number is None else int(number) for number in cut.groups())
        return _slice(start, stop, step)
    if part.strip().startswith(("?", "(")):
        raise QueryError(f"[{part}] is a filter, which is not read here; use a plugin or json-schema")
    raise QueryError(f"[{part}] is no selector")


def _member(name: str) -> Selector:
    def select(node: Any) -> Iterator[Any]:
        if isinstance(node, dict) and name in node:
            yield node[name]

    return select


def _item(index: int) -> Selector:
    def select(node: Any) -> Iterator[Any]:
        if isinstance(node, list) and -len(node) <= index < len(node):
            yield node[index]

    return select


def _slice(start: int | None, stop: int | None, step: int | None) -> Selector:
    def select(node: Any) -> Iterator[Any]:
        if isinstance(node, list) and step != 0:
            yield from node[start:stop:step]

    return select


def _children(node: Any) -> Iterator[Any]:
    if isinstance(node, dict):
        yield from node.values()
    elif isinstance(node, list):
        yield from node


def _descendants(value: Any) -> Iterator[Any]:
    """The value itself and everything below it, in document order."""
    waiting = [value]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += reversed(list(_children(node)))
