"""Serve a web application with uvicorn on a bound socket, and cut connections held open for nothing.

The tracker and the sandbox server listen with it. `sandboxes.web_gate` checks what comes in.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.utils import ClientDisconnected

if TYPE_CHECKING:
    import h11
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEAD_S = 15.0
"""A request's head must be complete this long after its first byte, or after the connection was made."""
ABORT = "sandboxes.abort"
"""In a request's scope: a function that cuts the connection, whatever is still to be sent."""
_KEEP_ALIVE_S = 30
_MOST_CONNECTIONS = 4096
_LONGEST_HEAD = 32 << 10
_BACKLOG = 1024


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket, or raise OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, address = found[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(_BACKLOG)
        bound.setblocking(False)
    except BaseException:
        bound.close()
        raise
    return bound


def url_of(bound: socket.socket) -> str:
    """Return the URL at which a bound socket is reached."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Connection(H11Protocol):
    """One connection, which is cut when a request's head takes longer than `head_s`."""

    def __init__(self, *arguments: Any, head_s: float, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._head_s = head_s
        self._waiting: asyncio.TimerHandle | None = None
        inner: ASGIApp = self.app

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            self._stop_waiting()
            scope[ABORT] = self.transport.abort
            await inner(scope, receive, send)

        self.app = app

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._waiting = self.loop.call_later(self._head_s, transport.abort)

    def data_received(self, data: bytes) -> None:
        if self._waiting is None and (self.cycle is None or self.cycle.response_complete):
            self._waiting = self.loop.call_later(self._head_s, self.transport.abort)
        super().data_received(data)

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self._stop_waiting()
        super().handle_websocket_upgrade(event)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection; cut one whose client never took its last answer."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            super().timeout_keep_alive_handler()

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None


def http_protocol(head_s: float = HEAD_S) -> type[asyncio.Protocol]:
    """Return what uvicorn takes as `http`, so that connections with half-sent request heads are cut."""
    return cast(type[asyncio.Protocol], partial(_Connection, head_s=head_s))


class _QuietRefusals:
    """Keep uvicorn from logging an error for each websocket that was refused with a status.

    It takes the answer for an unfinished handshake, unless the application ends as if the client had gone.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = False

        async def noting(message: Message) -> None:
            nonlocal refused
            refused = refused or message["type"] == "websocket.http.response.start"
            await send(message)

        await self._app(scope, receive, noting)
        if refused:
            raise ClientDisconnected


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.begun = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.begun.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the program that runs this server."""
        yield


class Listener:
    """Serve one application on one bound socket."""

    def __init__(
        self,
        app: ASGIApp,
        bound: socket.socket,
        *,
        websockets: bool = False,
        grace_s: int = 10,
        head_s: float = HEAD_S,
    ) -> None:
        self.url = url_of(bound)
        self._bound = bound
        config = uvicorn.Config(
            _QuietRefusals(app) if websockets else app,
            http=http_protocol(head_s),
            ws="websockets-sansio" if websockets else "none",
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
        """Serve in the background; return when requests are answered."""
        self._task = asyncio.get_running_loop().create_task(self._server.serve(sockets=[self._bound]))
        await self._server.begun.wait()

    async def ended(self) -> None:
        """Return when it serves no longer, for whatever reason."""
        if self._task is not None:
            await asyncio.wait({self._task})

    async def close(self) -> None:
        """Accept nothing more, let answers under way be finished for `grace_s`, wait for the end."""
        self._server.should_exit = True
        if self._task is not None:
            await asyncio.shield(self._task)
        self._bound.close()

    def hurry(self) -> None:
        """Wait for no answer any more."""
        self._server.should_exit = self._server.force_exit = True
