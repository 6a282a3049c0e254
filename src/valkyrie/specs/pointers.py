"""JSON Pointers (RFC 6901) into plain data, and where two pieces of data differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from valkyrie.nouns import Json

MISSING = object()
"""Nothing is there, which is not the same as null."""


def parse_pointer(pointer: str) -> tuple[str, ...]:
    """`/a/b~1c` → ("a", "b/c"); anything that does not begin with a slash points nowhere."""
    if not pointer.startswith("/") or pointer == "/":
        return ()
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in pointer[1:].split("/"))


def format_pointer(parts: Sequence[str]) -> str:
    """The text `parse_pointer` reads."""
    return "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in parts)


def set_at(data: Json, parts: Sequence[str], value: Any) -> None:
    """Put a value there, making the maps on the way."""
    for part in parts[:-1]:
        inner = data.setdefault(part, {})
        if not isinstance(inner, dict):
            inner = data[part] = {}
        data = inner
    data[parts[-1]] = value


def differences(one: Any, other: Any, at: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """Every place where two pieces of data differ, as deep as both go."""
    if isinstance(one, dict) and other is MISSING:
        other = {}
    if isinstance(other, dict) and one is MISSING:
        one = {}
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted({*one, *other}):
            yield from differences(one.get(key, MISSING), other.get(key, MISSING), (*at, key))
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for index, (left, right) in enumerate(zip(one, other, strict=True)):
            yield from differences(left, right, (*at, str(index)))
    elif one is not other and (type(one) is not type(other) or one != other):
        yield at, one, other
