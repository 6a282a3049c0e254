"""Decide which requests reach the sandbox server's routes, and end those whose token is revoked."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, Response
from starlette.websockets import WebSocket

from sandboxes.server.server import Access, AccessTable, ApiError, error_body
from sandboxes.web_gate import bearer_token

if TYPE_CHECKING:
    from starlette.datastructures import Headers
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_JSON_BYTES = 16 << 20
MAX_UPLOAD_BYTES = 1 << 30
_UPLOADS = ("/files/bulk-upload", "/files/upload", "/files/upload-v2")


def access_of(connection: HTTPConnection) -> Access:
    """Return the grant whose token the request carried."""
    return cast(Access, connection.scope["access"])


def limit(scope: Scope) -> int:
    """Return how many bytes the request's body may have."""
    return MAX_UPLOAD_BYTES if scope["path"].endswith(_UPLOADS) else MAX_JSON_BYTES


def answer(scope: Scope, error: ApiError | HTTPException) -> Response:
    """Return an error as Daytona's clients read it."""
    status, message = (
        (error.status, error.message) if isinstance(error, ApiError) else (error.status_code, error.detail)
    )
    return JSONResponse(error_body(status, message, scope["path"]), status, headers=dict(error.headers or {}))


class GrantAdmission:
    """Admit whoever shows a live token of the table."""

    def __init__(self, table: AccessTable) -> None:
        self._table = table

    async def admit(self, scope: Scope, headers: Headers) -> None:
        """Note the token's grant in the request's scope, or raise HTTPException."""
        access = self._table.find(bearer_token(headers))
        if access is None:
            raise HTTPException(401, "The API key is missing or not valid")
        scope["access"] = access


class RevocableRequests:
    """Run each admitted request where revoking its token can end it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        access, task = access_of(HTTPConnection(scope)), asyncio.current_task()
        assert task is not None
        started = False

        async def noting(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        access.tasks.add(task)
        try:
            await self._app(scope, receive, noting)
        except asyncio.CancelledError:
            if not access.revoked:
                raise
            task.uncancel()
            await _tell_revoked(scope, receive, send, started=started)
        finally:
            access.tasks.discard(task)


async def _tell_revoked(scope: Scope, receive: Receive, send: Send, *, started: bool) -> None:
    message = "The API key was revoked"
    response = answer(scope, ApiError(401, message))
    if scope["type"] == "http":
        if not started:
            await response(scope, receive, send)
    elif started:
        await send({"type": "websocket.close", "code": 1008, "reason": message})
    else:
        await WebSocket(scope, receive, send).send_denial_response(response)
