"""Work on behalf of a client ends when the client is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.websockets import WebSocket

T = TypeVar("T")


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Await `work`, cancelled when the client goes away. The request's body must have been read."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request))
    await _first_of(task, gone)
    if task.cancelled():
        raise ClientDisconnect
    return task.result()


async def _first_of(work: asyncio.Future[T], gone: asyncio.Future[None]) -> None:
    """Wait for the one or the other; then both have ended, cancelled if need be."""
    try:
        await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in (work, gone):
            each.cancel()
        await asyncio.wait((work, gone))
        for each in (work, gone):
            if not each.cancelled():
                each.exception()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def until_closed(websocket: WebSocket, work: Coroutine[Any, Any, None]) -> None:
    """Await `work`, cancelled when the other side closes. What the other side says is not heard."""
    task = asyncio.ensure_future(work)
    closed = asyncio.ensure_future(_closed(websocket))
    await _first_of(task, closed)
    if not task.cancelled():
        task.result()


async def _closed(websocket: WebSocket) -> None:
    while (await websocket.receive())["type"] != "websocket.disconnect":
        pass
