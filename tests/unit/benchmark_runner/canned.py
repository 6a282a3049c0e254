"""A server on loopback that answers each request with the next of the bytes it was given."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from ssl import SSLContext


class Canned:
    """What came, and on how many connections."""

    def __init__(self, answers: Sequence[bytes]) -> None:
        self.requests: list[bytes] = []
        self.connections = 0
        self.url = ""
        self._answers = iter(answers)
        self._open: set[asyncio.StreamWriter] = set()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._open.add(writer)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    int(line.partition(b":")[2])
                    for line in head.lower().split(b"\r\n")
                    if line.startswith(b"content-length:")
                )
                self.requests.append(head + await reader.readexactly(length))
                answer = next(self._answers, b"")
                writer.write(answer)
                await writer.drain()
                if b"connection: close" in answer.lower() or not answer:
                    break
        writer.close()
        self._open.discard(writer)

    def drop(self) -> None:
        """Close every connection."""
        for writer in list(self._open):
            writer.close()


async def looks_around() -> None:
    """Let the loop see what has arrived, also if it stood still for a while."""
    for _ in range(20):
        await asyncio.sleep(0.001)


@asynccontextmanager
async def answering(*answers: bytes, tls: SSLContext | None = None) -> AsyncIterator[Canned]:
    """The server; after the last answer it closes connections without a word."""
    canned = Canned(answers)
    server = await asyncio.start_server(canned._connected, "127.0.0.1", 0, ssl=tls)
    canned.url = f"{'https' if tls else 'http'}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield canned
    finally:
        server.close()
        canned.drop()
        await server.wait_closed()


def http(body: bytes, status: str = "200 OK", kind: str = "application/json", **headers: str) -> bytes:
    """A whole answer."""
    more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n{more}\r\n"
    return head.encode() + body
