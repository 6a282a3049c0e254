"""As much of HTTP/1.1 as the model server needs, with connections it can cut."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

MOST_HEAD = 256 * 1024
MOST_BODY = 256 * 1024 * 1024


class BadRequestError(Exception):
    """What came is no HTTP request this server reads."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request; the names of headers are in lower case."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> dict[str, Any]:
        """The body as an object; an empty one for what is none."""
        try:
            found = json.loads(self.body or b"{}")
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}


@dataclass(frozen=True, slots=True)
class HttpReply:
    """What is answered: a whole body, or pieces as they come."""

    status: int = 200
    body: bytes = b""
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)
    pieces: AsyncIterator[bytes] | None = None
    cut: bool = False
    """The connection breaks before the end of the body."""

    @classmethod
    def of(cls, data: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> HttpReply:
        """Plain data as JSON."""
        return cls(status, json.dumps(data).encode(), headers=headers or {})


Handler = Callable[[Request], Awaitable[HttpReply]]


async def serve_connection(
    handler: Handler, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Answer the requests of one connection until it ends."""
    try:
        while request := await _read(reader):
            reply = await handler(request)
            await _write(writer, request, reply)
            if reply.cut:
                writer.transport.abort()
                return
            if request.headers.get("connection", "").lower() == "close":
                return
    except (ConnectionError, asyncio.IncompleteReadError, BadRequestError):
        return
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def _read(reader: asyncio.StreamReader) -> Request | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    except asyncio.LimitOverrunError:
        raise BadRequestError("head too long") from None
    first, *lines = head.rstrip("\r\n").split("\r\n")
    words = first.split(" ")
    if len(words) != 3:
        raise BadRequestError(first[:100])
    pairs = (line.partition(":") for line in lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    body = await _body(reader, headers)
    if headers.get("content-encoding") == "gzip":
        body = gzip.decompress(body)
    path, _, query = words[1].partition("?")
    return Request(words[0], path, query, headers, body)


async def _body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    if headers.get("transfer-encoding", "").lower() != "chunked":
        length = int(headers.get("content-length") or 0)
        if not 0 <= length <= MOST_BODY:
            raise BadRequestError("body too long")
        return await reader.readexactly(length)
    found = bytearray()
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        if len(found) + size > MOST_BODY:
            raise BadRequestError("body too long")
        found += await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readuntil(b"\r\n")
    return bytes(found)


async def _write(writer: asyncio.StreamWriter, request: Request, reply: HttpReply) -> None:
    length = ("transfer-encoding", "chunked") if reply.pieces else ("content-length", str(len(reply.body)))
    headers = {"content-type": reply.content_type, length[0]: length[1], **reply.headers}
    head = f"HTTP/1.1 {reply.status} {_phrase(reply.status)}\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    writer.write(head.encode("latin-1") + b"\r\n")
    if request.method != "HEAD" and reply.pieces is None:
        writer.write(reply.body[: len(reply.body) // 2] if reply.cut else reply.body)
    await writer.drain()
    if reply.pieces is not None:
        async for piece in reply.pieces:
            writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            await writer.drain()
        if not reply.cut:
            writer.write(b"0\r\n\r\n")
            await writer.drain()


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Overloaded" if status == 529 else "Unknown"
