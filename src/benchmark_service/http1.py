"""HTTP/1.1 as a client speaks it, apart from any connection: a request as bytes, bytes as answers."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import httptools

MOST_HEAD = 64 * 1024
"""Bytes of headers, of trailers, and of anything else that is no body."""

Header = tuple[bytes, bytes]

_REQUEST = re.compile(
    rb"[A-Z]+ [!-~]+ HTTP/1\.1\r\n(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+: [\t -~\x80-\xff]*\r\n)*\r\n"
)


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


class Answers:
    """The answers that come over one connection, one after the other. Raises NotHttpError.

    httptools reads them, and calls the methods that begin with `on_`.
    """

    waiting: int
    """Bytes of the body that were not taken yet."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._over = False
        self._stray: str | None = None
        self.expect()
        self._awaited = False

    def expect(self, *, bodiless: bool = False) -> None:
        """A request goes out, so an answer may come; no body follows one to a HEAD."""
        self._bodiless = bodiless
        self._awaited = True
        self._head: Head | None = None
        self._wrong = self._stray
        self._pieces: deque[bytes] = deque()
        self.waiting = 0
        self._headers: list[Header] = []
        self._framed = False
        self._no_body = 0

    @property
    def clean(self) -> bool:
        """Whether the last answer was read whole, and nothing came after it."""
        return not self._awaited and not self._pieces and self._stray is None

    def feed(self, data: bytes) -> None:
        """What came next."""
        if self._wrong is not None or self._stray is not None:
            return
        self._no_body += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._refuse("it changes to another protocol")
        except httptools.HttpParserError as error:
            self._refuse(str(error.__context__ or error) or "it is no HTTP")
        if self._awaited and self._no_body > MOST_HEAD:
            self._refuse("what is not the body is too long")

    def end(self) -> None:
        """Nothing more will come."""
        self._over = True

    def head(self) -> Head | None:
        """How the answer begins, None where more must come first."""
        if self._head is None:
            self._check("the connection ended before an answer")
        return self._head

    def piece(self) -> bytes | None:
        """The next piece of the body, nothing at its end, None where more must come first."""
        if self._pieces:
            self.waiting -= len(self._pieces[0])
            return self._pieces.popleft()
        if not self._awaited or (self._over and not self._framed and self._wrong is None):
            return b""
        self._check("the connection broke off")
        return None

    def on_message_begin(self) -> None:
        if not self._awaited:
            raise NotHttpError("something came unasked")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head is None:  # else they are trailers
            self._headers.append((name.lower(), value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        headers, self._headers = self._headers, []
        status = self._parser.get_status_code()
        if sum(len(name) + len(value) for name, value in headers) > MOST_HEAD:
            raise NotHttpError("the head is too long")
        if status < 200:
            return  # a word in between
        if any(name == b"transfer-encoding" and value.lower() != b"chunked" for name, value in headers):
            raise NotHttpError("it is coded in a way unknown here")
        self._framed = any(name in (b"content-length", b"transfer-encoding") for name, _ in headers)
        # The parser waits for the body that a HEAD announces and does not get.
        lasts = self._parser.should_keep_alive() and not self._bodiless
        self._head = Head(status, headers, lasts)
        self._awaited = not self._bodiless

    def on_body(self, body: bytes) -> None:
        self._no_body = 0
        self.waiting += len(body)
        self._pieces.append(body)

    def on_message_complete(self) -> None:
        self._awaited = self._head is None

    def _refuse(self, why: str) -> None:
        if self._awaited:
            self._wrong = why
        else:
            self._stray = why

    def _check(self, at_the_end: str) -> None:
        if self._wrong is not None:
            raise NotHttpError(self._wrong)
        if self._over:
            raise NotHttpError(at_the_end)
