"""uvicorn as a background task: no signal handlers, no log of requests."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI
from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.utils import ClientDisconnected

GRACE_SECONDS = 3


class _QuietRefusals:
    """Keeps uvicorn from logging an error for each websocket that was refused with a status.

    It takes the answer for an unfinished handshake, unless the application ends as if the client had gone.
    """

    def __init__(self, app: FastAPI) -> None:
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
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals belong to the program that runs this server."""
        yield


class Listener:
    """Serves one application on one bound socket."""

    def __init__(self, app: FastAPI, bound: socket.socket) -> None:
        host, port = bound.getsockname()[:2]
        self.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        self._bound = bound
        config = uvicorn.Config(
            _QuietRefusals(app),
            log_config=None,
            access_log=False,
            lifespan="off",
            http="h11",  # it bounds what comes before a body
            ws="websockets-sansio",
            server_header=False,
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
        self._server = _Server(config)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Serve. The socket listens already, so whoever connects now waits a moment at most."""
        self._task = asyncio.get_running_loop().create_task(self._server.serve(sockets=[self._bound]))

    async def close(self) -> None:
        """Stop accepting, drop the connections, wait for the end."""
        self._server.should_exit = True
        if self._task is not None:
            await self._task
        self._bound.close()
