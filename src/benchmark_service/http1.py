"""HTTP/1.1 as a client speaks it, apart from any connection: a request as bytes, bytes as answers."""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TypeVar

MOST_HEAD = 64 * 1024
"""Bytes of an answer's head; of the lines between chunks, too."""

Header = tuple[bytes, bytes]
Value = TypeVar("Value")
Reading = Generator[bytes | None, None, Value]
"""Gives pieces of a body as they are there, and None where more must come first."""

_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_REQUEST = re.compile(rb"[A-Z]+ [!-~]+ HTTP/1\.1\r\n(?:" + _NAME.pattern + rb": [\t -~\x80-\xff]*\r\n)*\r\n")
_BLANK_LINE = re.compile(rb"\r?\n\r?\n")
_STATUS = re.compile(rb"HTTP/(1\.[01]) ([1-9][0-9][0-9])(?: .*)?")
_FOLDED = re.compile(rb"\r?\n[ \t]+")
_FORBIDDEN = re.compile(rb"[\0\r]")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;.*)?")


class NotHttpError(Exception):
    """What came, or is to go out, is not HTTP/1.1."""


def request(method: str, target: bytes, headers: Sequence[Header], content: bytes) -> bytes:
    """A request, as it goes out. Whether its length is among the headers is up to the caller."""
    lines = b"".join([b"%s: %s\r\n" % header for header in headers])
    head = b"%s %s HTTP/1.1\r\n%s\r\n" % (method.encode("ascii"), target, lines)
    # A line too many is one that came in with a value.
    if not _REQUEST.fullmatch(head) or head.count(b"\n") != len(headers) + 2:
        raise NotHttpError("a header, the method or the target has characters it cannot have")
    return head + content


@dataclass(frozen=True, slots=True)
class Head:
    """How an answer begins."""

    status: int
    headers: Sequence[Header]
    """Names in lower case, in the order they came."""
    lasts: bool
    """Whether the connection may be used again."""
    length: int | None
    """Of the body; None where chunks or the connection's end tell."""
    chunked: bool


class Answers:
    """The answers that come over one connection, one after the other. Raises NotHttpError."""

    def __init__(self) -> None:
        self._came = bytearray()
        self._looked_at = 0
        self._body: Reading[None] | None = None
        self._over = False

    def __len__(self) -> int:
        """Bytes that wait to be read."""
        return len(self._came)

    def feed(self, data: bytes) -> None:
        """What came next."""
        self._came += data

    def end(self) -> None:
        """Nothing more will come."""
        self._over = True

    def head(self, *, bodiless: bool = False) -> Head | None:
        """How the next answer begins, None where more must come first. No body follows one to a HEAD."""
        while (blank := _BLANK_LINE.search(self._came, max(self._looked_at - 3, 0))) is not None:
            if blank.start() > MOST_HEAD:
                break
            head = _head(bytes(self._came[: blank.start()]), bodiless=bodiless)
            del self._came[: blank.end()]
            self._looked_at = 0
            if head.status >= 200:
                self._body = self._read_body(head)
                return head
        self._looked_at = len(self._came)
        if self._looked_at > MOST_HEAD:
            raise NotHttpError("the head is too long")
        if self._over:
            raise NotHttpError("the connection ended before an answer")
        return None

    def piece(self) -> bytes | None:
        """The next piece of the body, nothing at its end, None where more must come first."""
        return b"" if self._body is None else next(self._body, b"")

    def _read_body(self, head: Head) -> Reading[None]:
        if head.chunked:
            return self._read_chunks()
        return self._read_to_the_end() if head.length is None else self._read_length(head.length)

    def _read_length(self, length: int) -> Reading[None]:
        while length:
            if self._came:
                piece = bytes(self._came[:length])
                del self._came[:length]
                length -= len(piece)
                yield piece
            else:
                self._check_open()
                yield None

    def _read_chunks(self) -> Reading[None]:
        while length := (yield from self._read_chunk_length()):
            yield from self._read_length(length)
            if (yield from self._read_line()):
                raise NotHttpError("a chunk is longer than it says")
        trailers = 0
        while line := (yield from self._read_line()):
            trailers += len(line)
            if trailers > MOST_HEAD:
                raise NotHttpError("the trailers are too long")

    def _read_chunk_length(self) -> Reading[int]:
        said = _CHUNK.fullmatch((yield from self._read_line()))
        if said is None:
            raise NotHttpError("a chunk does not say its length")
        return int(said[1], 16)

    def _read_line(self) -> Reading[bytes]:
        looked_at = 0
        while (end := self._came.find(b"\n", looked_at)) < 0:
            looked_at = len(self._came)
            if looked_at > MOST_HEAD:
                raise NotHttpError("a line between chunks is too long")
            self._check_open()
            yield None
        line = bytes(self._came[:end]).removesuffix(b"\r")
        del self._came[: end + 1]
        return line

    def _read_to_the_end(self) -> Reading[None]:
        while self._came or not self._over:
            piece = bytes(self._came)
            self._came.clear()
            yield piece or None

    def _check_open(self) -> None:
        if self._over:
            raise NotHttpError("the connection broke off")


def _head(text: bytes, *, bodiless: bool) -> Head:
    lines = _FOLDED.sub(b" ", text).replace(b"\r\n", b"\n").split(b"\n")
    begun = _STATUS.fullmatch(lines[0])
    if begun is None or _FORBIDDEN.search(text.replace(b"\r\n", b"\n")):
        raise NotHttpError("it does not begin like an answer")
    headers: list[Header] = []
    for line in lines[1:]:
        name, colon, value = line.partition(b":")
        if not colon or not _NAME.fullmatch(name):
            raise NotHttpError("a header is none")
        headers.append((name.lower(), value.strip(b" \t")))
    version, status = begun[1], int(begun[2])
    if status == 101:
        raise NotHttpError("it changes to another protocol")
    codings = _values(headers, b"transfer-encoding")
    lengths = set(_values(headers, b"content-length"))
    if codings not in ([], [b"chunked"]):
        raise NotHttpError("it is coded in a way unknown here")
    if len(lengths) > 1 or not all(length.isdigit() and len(length) < 16 for length in lengths):
        raise NotHttpError("it does not say how long it is")
    empty = bodiless or status < 200 or status in (204, 304)
    chunked = bool(codings) and not empty
    length = 0 if empty else int(lengths.pop()) if lengths and not chunked else None
    framed = length is not None or chunked
    lasts = framed and version == b"1.1" and b"close" not in _values(headers, b"connection")
    # Who says the length in two ways may mean either.
    lasts = lasts and not (codings and _values(headers, b"content-length"))
    return Head(status, headers, lasts, length, chunked)


def _values(headers: Sequence[Header], name: bytes) -> list[bytes]:
    """All that is said under a name, in lower case."""
    said = [value for known, value in headers if known == name]
    return [part.strip().lower() for value in said for part in value.split(b",")]
