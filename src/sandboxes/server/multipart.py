"""Multipart bodies, read and written piece by piece: no file is ever held whole."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from email.message import Message
from typing import Any
from urllib.parse import quote

from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header

from sandboxes.server.errors import ApiError

MAX_FIELD_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class PartStart:
    """A part begins."""

    name: str
    filename: str | None


class PartEnd:
    """The part has ended."""


Event = PartStart | bytes | PartEnd


class MultipartReader:
    """The parts of a request's body, in order. One part is read to its end before the next begins."""

    def __init__(self, content_type: str, body: AsyncIterator[bytes]) -> None:
        kind, options = parse_options_header(content_type)
        boundary = options.get(b"boundary")
        if kind != b"multipart/form-data" or not boundary:
            raise ApiError(400, "The body must be multipart/form-data")
        self._body = body
        self._events: deque[Event] = deque()
        self._field = bytearray()
        self._value = bytearray()
        self._headers: dict[str, str] = {}
        callbacks: Any = {
            "on_part_begin": self._headers.clear,
            "on_header_field": lambda data, start, end: self._field.extend(data[start:end]),
            "on_header_value": lambda data, start, end: self._value.extend(data[start:end]),
            "on_header_end": self._on_header,
            "on_headers_finished": self._on_headers,
            "on_part_data": lambda data, start, end: self._events.append(bytes(data[start:end])),
            "on_part_end": lambda: self._events.append(PartEnd()),
        }
        self._parser = MultipartParser(boundary, callbacks=callbacks)

    async def next_part(self) -> PartStart | None:
        """The next part, or None after the last. What was not read of the one before is skipped."""
        while (event := await self._next()) is not None:
            if isinstance(event, PartStart):
                return event
        return None

    async def data(self) -> AsyncIterator[bytes]:
        """The rest of the current part."""
        while True:
            event = await self._next()
            if isinstance(event, PartEnd):
                return
            if not isinstance(event, bytes):
                raise ApiError(400, "The body ends in the middle of a file")
            yield event

    async def text(self) -> str:
        """The current part as a short field."""
        value = bytearray()
        async for piece in self.data():
            value += piece
            if len(value) > MAX_FIELD_BYTES:
                raise ApiError(400, "A field of the form is too long")
        return value.decode("utf-8", "replace")

    async def _next(self) -> Event | None:
        while not self._events:
            chunk = await anext(self._body, None)
            if chunk is None:
                return None
            try:
                self._parser.write(chunk)
            except MultipartParseError as error:
                raise ApiError(400, f"The form is malformed: {error}") from None
        return self._events.popleft()

    def _on_header(self) -> None:
        self._headers[self._field.decode("latin-1").lower()] = self._value.decode("utf-8", "replace")
        self._field.clear()
        self._value.clear()

    def _on_headers(self) -> None:
        described = Message()
        described["content-disposition"] = self._headers.get("content-disposition", "")
        name = described.get_param("name", "", header="content-disposition")
        filename = described.get_filename()
        self._events.append(PartStart(str(name), filename))


def part_head(boundary: str, name: str, path: str, content_type: str) -> bytes:
    """What goes before a part's data; the path stands there as it is, and encoded if it is not plain."""
    plain = "".join(letter if letter.isprintable() else "_" for letter in path)
    quoted = plain.replace("\\", "\\\\").replace('"', '\\"')
    extra = "" if path.isascii() and plain == path else f"; filename*=UTF-8''{quote(path, safe='')}"
    return (
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"; filename="{quoted}"{extra}\r\n'
        f"Content-Type: {content_type}\r\n\r\n"
    ).encode("utf-8", "replace")
