"""Requests and answers in Daytona's JSON: who may ask, bodies, and answers sent as long as the client is
there."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Coroutine, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.websockets import WebSocket

from sandboxes.protocol import Sandbox
from sandboxes.server.server import Access, AccessTable, AnswerRoom, ApiError, error_body
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


# Bodies of requests and answers in Daytona's JSON, sent piece by piece as long as the client is there.


_GIB = 1 << 30
_DEFAULT_DISK = 10

Amount = Annotated[int, Field(ge=0, le=1 << 20)]
"""Cores or gigabytes; 0 leaves it to the provider."""


class CamelModel(BaseModel):
    """Unknown fields are ignored: newer clients send more than is used here."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore")

    @model_validator(mode="before")
    @classmethod
    def _is_text(cls, given: Any) -> Any:
        """Refuse half a surrogate pair, which JSON can carry and no command can, and endless nesting."""
        try:
            json.dumps(given, ensure_ascii=False, default=str).encode()
        except (UnicodeEncodeError, RecursionError):
            raise ValueError("the text is no UTF-8, or nested too deeply") from None
        return given


class BuildInfo(CamelModel):
    """An image, as the Dockerfile that the SDK makes of it."""

    dockerfile_content: str
    context_hashes: list[str] | None = None


class CreateSandbox(CamelModel):
    """What a client asks for."""

    name: Annotated[str, Field(max_length=256)] | None = None
    snapshot: str | None = None
    user: str | None = None
    env: dict[str, str] | None = None
    labels: dict[str, str] | None = None
    public: bool | None = None
    network_block_all: bool | None = None
    network_allow_list: str | None = None
    domain_allow_list: str | None = None
    cpu: Amount | None = None
    gpu: Amount | None = None
    memory: Amount | None = None
    disk: Amount | None = None
    auto_stop_interval: int | None = None
    auto_archive_interval: int | None = None
    auto_delete_interval: int | None = None
    volumes: list[dict[str, Any]] | None = None
    secrets: list[dict[str, str]] | None = None
    build_info: BuildInfo | None = None


class NetworkSettingsBody(CamelModel):
    """A change of what a sandbox may reach."""

    network_block_all: bool | None = None
    network_allow_list: str | None = None
    domain_allow_list: str | None = None


class SandboxLabels(CamelModel):
    """Labels that take the place of the caller's earlier ones."""

    labels: dict[str, str]


def machine_memory() -> int:
    """Whole gigabytes of memory that this machine has, at least one."""
    return max(1, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // _GIB)


def sandbox_json(
    access: Access, sandbox: Sandbox, toolbox_url: str, *, state: str | None = None
) -> dict[str, object]:
    """One sandbox as a client reads it. Its environment is left out: it may hold secrets."""
    note = access.note(sandbox.id)
    created = (sandbox.created_at or datetime.now(UTC)).isoformat()
    now = state or ("stopped" if note.stopped else "started")
    return {
        "id": sandbox.id,
        "organizationId": "local",
        "name": sandbox.name,
        "user": note.user or "root",
        "env": {},
        "labels": access.effective_labels(sandbox),
        "public": False,
        "networkBlockAll": False,
        "kvm": False,
        "target": "local",
        "cpu": os.cpu_count() or 1,
        "gpu": 0,
        "memory": machine_memory(),
        "disk": _DEFAULT_DISK,
        "autoStopInterval": 0,
        "autoArchiveInterval": 0,
        "autoDeleteInterval": -1,
        "createdAt": created,
        "updatedAt": created,
        **note.settings,
        "state": now,
        "desiredState": now,
        "toolboxProxyUrl": toolbox_url,
    }


# Answers that carry a command's whole output: only so much of them is in memory at a time.
#
# A client that asks for many and reads none would otherwise have each of them kept for it, whole.

SMALL_BYTES = 1 << 20
ANSWER_CHUNK_BYTES = 256 << 10
_COPIES = 4
"""As text, as JSON, encoded; and what is escaped grows."""


class OutputAnswer(Response):
    """JSON made of output when there is room for it, and sent no faster than it is read."""

    media_type = "application/json"

    def __init__(
        self,
        room: AnswerRoom,
        held: int,
        make: Callable[[], Mapping[str, object]],
        done: Callable[[], None] | None = None,
    ) -> None:
        super().__init__()
        del self.headers["content-length"]
        self._room = room
        self._held = held
        self._make = make
        self._done = done

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI's
        try:
            if self._held <= SMALL_BYTES:
                await self._send(send)
                return
            async with self._room.taken(self._held * _COPIES):
                await self._send(send)
        finally:
            if self._done is not None:
                self._done()

    async def _send(self, send: Send) -> None:
        body = json.dumps(self._make(), ensure_ascii=False).encode()
        self.headers["content-length"] = str(len(body))
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        # The server waits for a slow client before each piece, never after the last.
        for start in range(0, len(body), ANSWER_CHUNK_BYTES):
            more = start + ANSWER_CHUNK_BYTES < len(body)
            piece = body[start : start + ANSWER_CHUNK_BYTES]
            await send({"type": "http.response.body", "body": piece, "more_body": more})


# Work on behalf of a client ends when the client is gone.

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
