"""Terminals over websockets."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import re
from typing import Annotated

from fastapi import APIRouter, Depends, Query, WebSocket
from pydantic import Field, TypeAdapter, ValidationError
from starlette.websockets import WebSocketDisconnect

from sandboxes.server.access import Access, Note
from sandboxes.server.errors import ApiError
from sandboxes.server.gate import access_of
from sandboxes.server.ptys import Pty, PtyClient, PtySpec, started
from sandboxes.server.shells import folders, resolved
from sandboxes.server.wire import Wire

router = APIRouter(prefix="/process/pty")
Holder = Annotated[Access, Depends(access_of)]
Answer = dict[str, object]
Columns = Annotated[int, Field(ge=1, le=1000)]

MAX_PTYS = 50
EXIT_CONTROL = "X-Daytona-Pty-Exit-Control"
_ENVS = "X-Daytona-Pty-Envs~"
_ENV_NAME = re.compile("[A-Za-z_][A-Za-z0-9_]*")
_STRINGS: TypeAdapter[dict[str, str]] = TypeAdapter(dict[str, str])


class CreatePty(Wire):
    """A terminal to open."""

    id: str
    cwd: str | None = None
    envs: dict[str, str] | None = None
    cols: Columns = 80
    rows: Columns = 24


class ResizePty(Wire):
    """A new size."""

    cols: Columns
    rows: Columns


@router.post("", status_code=201)
async def create_pty(access: Holder, sandbox_id: str, body: CreatePty) -> Answer:
    return {"sessionId": (await _create(access, sandbox_id, body)).id}


@router.get("")
async def list_ptys(access: Holder, sandbox_id: str) -> Answer:
    note = await _note(access, sandbox_id)
    return {"sessions": [_json(terminal) for terminal in note.ptys.values()]}


@router.websocket("/create-connect")
async def create_and_connect(
    websocket: WebSocket,
    access: Holder,
    sandbox_id: str,
    id: str,
    cwd: str | None = None,
    cols: Annotated[int, Query(ge=1, le=1000)] = 80,
    rows: Annotated[int, Query(ge=1, le=1000)] = 24,
) -> None:
    asked = CreatePty(id=id, cwd=cwd, envs=_envs(websocket), cols=cols, rows=rows)
    await _serve(websocket, await _create(access, sandbox_id, asked))


@router.get("/{session_id}")
async def get_pty(access: Holder, sandbox_id: str, session_id: str) -> Answer:
    return _json(await _find(access, sandbox_id, session_id))


@router.delete("/{session_id}")
async def kill_pty(access: Holder, sandbox_id: str, session_id: str) -> Answer:
    terminal = await _find(access, sandbox_id, session_id)
    await terminal.end()
    (await _note(access, sandbox_id)).ptys.pop(session_id, None)
    return {"message": f"Terminal {session_id} ended"}


@router.post("/{session_id}/resize")
async def resize_pty(access: Holder, sandbox_id: str, session_id: str, body: ResizePty) -> Answer:
    terminal = await _find(access, sandbox_id, session_id)
    terminal.resize(body.cols, body.rows)
    return _json(terminal)


@router.websocket("/{session_id}/connect")
async def connect_pty(websocket: WebSocket, access: Holder, sandbox_id: str, session_id: str) -> None:
    await _serve(websocket, await _find(access, sandbox_id, session_id))


async def _create(access: Access, sandbox_id: str, asked: CreatePty) -> Pty:
    sandbox = await access.running(sandbox_id)
    note = access.note(sandbox.id)
    if asked.id in note.ptys and note.ptys[asked.id].exit_code is None:
        raise ApiError(409, f"Terminal {asked.id} exists already")
    if len(note.ptys) >= MAX_PTYS:
        note.ptys = {name: each for name, each in note.ptys.items() if each.exit_code is None}
    if len(note.ptys) >= MAX_PTYS:
        raise ApiError(400, f"Sandbox {sandbox.id} has {MAX_PTYS} terminals; kill some")
    wrong = [name for name in asked.envs or {} if not _ENV_NAME.fullmatch(name)]
    if wrong:
        raise ApiError(400, f"{wrong[0][:40]!r} is no name of a variable")
    cwd = await resolved(sandbox, note, asked.cwd) or (await folders(sandbox, note))[0]
    terminal = await started(PtySpec(asked.id, cwd, asked.envs or {}, asked.cols, asked.rows), sandbox)
    if asked.id in note.ptys and note.ptys[asked.id].exit_code is None:
        await terminal.end()
        raise ApiError(409, f"Terminal {asked.id} exists already")
    note.ptys[asked.id] = terminal
    return terminal


async def _serve(websocket: WebSocket, terminal: Pty) -> None:
    """Carry input and output until the shell ends or the client goes."""
    offered = websocket.scope.get("subprotocols") or []
    tells_exit = EXIT_CONTROL in offered
    client = terminal.attach()
    try:
        await websocket.accept(subprotocol=EXIT_CONTROL if tells_exit else None)
        await websocket.send_text(json.dumps({"type": "control", "status": "connected"}))
        if not await _carry(websocket, terminal, client):
            return
        ended = {"exitCode": terminal.exit_code}
        if terminal.exit_code is None:
            await websocket.close(1008, json.dumps({"error": "too slow for this terminal's output"}))
            return
        if tells_exit:
            await websocket.send_text(json.dumps({"type": "control", "status": "exited", **ended}))
        await websocket.close(1000, json.dumps(ended))
    except WebSocketDisconnect:
        return
    finally:
        terminal.detach(client)


async def _carry(websocket: WebSocket, terminal: Pty, client: PtyClient) -> bool:
    """Whether the output came to its end, and not the client."""
    outward = asyncio.ensure_future(_send_output(websocket, client))
    inward = asyncio.ensure_future(_take_input(websocket, terminal))
    try:
        await asyncio.wait((outward, inward), return_when=asyncio.FIRST_COMPLETED)
        return outward.done() and outward.exception() is None
    finally:
        for each in (outward, inward):
            each.cancel()
        await asyncio.wait((outward, inward))
        for each in (outward, inward):
            if not each.cancelled():
                each.exception()


async def _send_output(websocket: WebSocket, client: PtyClient) -> None:
    async for piece in client.output():
        await websocket.send_bytes(piece)


async def _take_input(websocket: WebSocket, terminal: Pty) -> None:
    while (message := await websocket.receive())["type"] == "websocket.receive":
        data = message.get("bytes")
        terminal.write(data if data is not None else (message.get("text") or "").encode())


async def _note(access: Access, sandbox_id: str) -> Note:
    return access.note((await access.running(sandbox_id)).id)


async def _find(access: Access, sandbox_id: str, session_id: str) -> Pty:
    terminal = (await _note(access, sandbox_id)).ptys.get(session_id)
    if terminal is None:
        raise ApiError(404, f"Sandbox {sandbox_id} has no terminal {session_id[:128]}")
    return terminal


def _envs(websocket: WebSocket) -> dict[str, str]:
    """Variables travel as a subprotocol: addresses end up in logs."""
    for offered in websocket.scope.get("subprotocols") or []:
        if offered.startswith(_ENVS):
            encoded = offered.removeprefix(_ENVS)
            try:
                return _STRINGS.validate_json(base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)))
            except (ValidationError, binascii.Error):
                raise ApiError(400, "The terminal's variables are not understood") from None
    return {}


def _json(terminal: Pty) -> Answer:
    return {
        "id": terminal.id,
        "active": terminal.exit_code is None,
        "cols": terminal.cols,
        "rows": terminal.rows,
        "createdAt": terminal.created_at.isoformat(),
        "cwd": terminal.spec.cwd,
        "envs": {},
        "lazyStart": False,
    }
