"""uvicorn on a socket of ours, with what it lacks: patience that ends, and a way to cut a connection."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from valkyrie.api.streams import ABORT
from valkyrie.errors import UserError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

HEAD_S = 15.0
"""A request's head must have come so soon after its first byte, or the connection's."""
_KEEP_ALIVE_S = 30
_MOST_CONNECTIONS = 4096
_LONGEST_HEAD = 32 << 10
_BACKLOG = 1024


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; UserError says why there is none."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        bound = socket.socket(family, kind, protocol)
    except OSError as error:
        raise UserError(f"Cannot listen on {host}, port {port}: {error.strerror or error}.") from error
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(_BACKLOG)
        bound.setblocking(False)
    except OSError as error:
        bound.close()
        raise UserError(f"Cannot listen on {host}, port {port}: {error.strerror or error}.") from error
    return bound


def url_of(bound: socket.socket) -> str:
    """Where a bound socket is reached."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Protocol(H11Protocol):
    """One connection."""

    _waiting: asyncio.TimerHandle | None = None

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        inner: ASGIApp = self.app

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            self._head_came()
            scope[ABORT] = self.transport.abort
            await inner(scope, receive, send)

        self.app = app

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._waiting = self.loop.call_later(HEAD_S, transport.abort)

    def data_received(self, data: bytes) -> None:
        if self._waiting is None and (self.cycle is None or self.cycle.response_complete):
            self._waiting = self.loop.call_later(HEAD_S, self.transport.abort)
        super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_came()
        super().connection_lost(exc)

    def timeout_keep_alive_handler(self) -> None:
        """An idle connection is closed; one whose client never took its last answer is cut."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            super().timeout_keep_alive_handler()

    def _head_came(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.begun = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.begun.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals belong to the program that runs this server."""
        yield


class Listener:
    """Serves one application on one bound socket."""

    def __init__(self, app: ASGIApp, bound: socket.socket, *, grace_s: int = 10) -> None:
        self.url = url_of(bound)
        self._bound = bound
        config = uvicorn.Config(
            app,
            http=_Protocol,
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=_MOST_CONNECTIONS,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=grace_s,
            h11_max_incomplete_event_size=_LONGEST_HEAD,
        )
        self._server = _Server(config)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Serve in the background; returns when requests are answered."""
        self._task = asyncio.get_running_loop().create_task(self._server.serve(sockets=[self._bound]))
        await self._server.begun.wait()

    async def ended(self) -> None:
        """Return when it serves no longer, for whatever reason."""
        if self._task is not None:
            await asyncio.wait({self._task})

    async def close(self) -> None:
        """Accept nothing more, let answers under way be finished, wait for the end."""
        self._server.should_exit = True
        if self._task is not None:
            await asyncio.shield(self._task)
        self._bound.close()

    def hurry(self) -> None:
        """Wait for no answer any more."""
        self._server.should_exit = self._server.force_exit = True
