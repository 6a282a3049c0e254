"""In front of every route: whose token it is, and how much the request may carry."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, cast

from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse
from starlette.websockets import WebSocket

from sandboxes.server.access import Access, AccessTable
from sandboxes.server.errors import ApiError, error_body

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_JSON_BYTES = 16 << 20
MAX_UPLOAD_BYTES = 1 << 30
_UPLOADS = ("/files/bulk-upload", "/files/upload", "/files/upload-v2")


def access_of(connection: HTTPConnection) -> Access:
    """The grant whose token the request carried."""
    return cast(Access, connection.scope["access"])


class Gate:
    """Refuses strangers before anything else is looked at, and bounds what the others send."""

    def __init__(self, app: ASGIApp, table: AccessTable) -> None:
        self._app = app
        self._table = table

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            return
        scheme, _, token = HTTPConnection(scope).headers.get("authorization", "").partition(" ")
        access = self._table.find(token.strip()) if scheme.lower() == "bearer" else None
        if access is None:
            await refuse(scope, receive, send, ApiError(401, "The API key is missing or not valid"))
            return
        scope["access"] = access
        if scope["type"] == "http":
            limit = MAX_UPLOAD_BYTES if scope["path"].endswith(_UPLOADS) else MAX_JSON_BYTES
            announced = HTTPConnection(scope).headers.get("content-length", "0")
            if announced.isdigit() and int(announced) > limit:
                await refuse(scope, receive, send, _too_large(limit))
                return
            receive = _bounded(receive, limit)
        await _watched(self._app, scope, receive, send, access)


async def _watched(app: ASGIApp, scope: Scope, receive: Receive, send: Send, access: Access) -> None:
    """Run the request where revoking its token can end it."""
    task = asyncio.current_task()
    assert task is not None
    started = False

    async def noting(message: Message) -> None:
        nonlocal started
        started = True
        await send(message)

    access.tasks.add(task)
    try:
        await app(scope, receive, noting)
    except asyncio.CancelledError:
        if not access.revoked:
            raise
        task.uncancel()
        if not started:
            await refuse(scope, receive, send, ApiError(401, "The API key was revoked"))
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": "The API key was revoked"})
    finally:
        access.tasks.discard(task)


async def refuse(scope: Scope, receive: Receive, send: Send, error: ApiError) -> None:
    """Answer a request, or the opening of a websocket, with an error."""
    response = JSONResponse(
        error_body(error.status, error.message, scope["path"]), error.status, headers=error.headers
    )
    if scope["type"] == "websocket":
        await WebSocket(scope, receive, send).send_denial_response(response)
    else:
        await response(scope, receive, send)


def _bounded(receive: Receive, limit: int) -> Callable[[], Awaitable[Message]]:
    taken = 0

    async def counted() -> Message:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        if taken > limit:
            raise _too_large(limit)
        return message

    return counted


def _too_large(limit: int) -> ApiError:
    return ApiError(413, f"The request is larger than {limit >> 20} MiB")
