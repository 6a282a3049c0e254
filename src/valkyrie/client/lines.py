"""Streams of text: lines, server-sent events, characters. Bytes come in pieces cut anywhere."""

from __future__ import annotations

import codecs
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass

LONGEST_LINE = 64 << 20


@dataclass(frozen=True, slots=True)
class Message:
    """One server-sent event."""

    kind: str
    data: str
    id: str | None
    """Of this event; None when it has none of its own."""


async def lines(pieces: AsyncIterator[bytes]) -> AsyncGenerator[str, None]:
    """Lines without their ends. Only `\\n` ends one: texts may hold what Python takes for line breaks."""
    held = bytearray()
    async for piece in pieces:
        held += piece
        if b"\n" in piece:
            *whole, rest = held.split(b"\n")
            held = bytearray(rest)
            for line in whole:
                yield line.removesuffix(b"\r").decode("utf-8", "replace")
        elif len(held) > LONGEST_LINE:
            raise ValueError(f"a line longer than {LONGEST_LINE:,} bytes")
    if held:
        yield held.decode("utf-8", "replace")


async def messages(pieces: AsyncIterator[bytes]) -> AsyncGenerator[Message | None, None]:
    """Server-sent events; None for a comment, which says that the other side lives.

    An event that was cut off before its empty line is not given.
    """
    kind = "message"
    data: list[str] = []
    number: str | None = None
    async for line in lines(pieces):
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if data:
                yield Message(kind, "\n".join(data), number)
            kind, data, number = "message", [], None
        elif not name:
            yield None
        elif name == "event":
            kind = value
        elif name == "data":
            data.append(value)
        elif name == "id":
            number = value


async def text(pieces: AsyncIterator[bytes]) -> AsyncGenerator[str, None]:
    """Characters; one that is cut in two waits for its other half."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    async for piece in pieces:
        if found := decoder.decode(piece):
            yield found
    if rest := decoder.decode(b"", True):
        yield rest
