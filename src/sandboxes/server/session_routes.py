"""Sessions and what their commands print."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Depends, WebSocket
from pydantic import Field
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.websockets import WebSocketDisconnect

from sandboxes.server.access import Access
from sandboxes.server.answers import OutputAnswer
from sandboxes.server.disconnects import until_closed
from sandboxes.server.errors import ApiError
from sandboxes.server.gate import access_of
from sandboxes.server.output import OutputLog
from sandboxes.server.sessions import Session, SessionCommand
from sandboxes.server.wire import Wire

router = APIRouter(prefix="/process/session")
Holder = Annotated[Access, Depends(access_of)]
Answer = dict[str, object]

MAX_SESSIONS = 200
_PREFIXES = {"stdout": b"\x01\x01\x01", "stderr": b"\x02\x02\x02"}


class CreateSession(Wire):
    """A name of the caller's choice."""

    session_id: Annotated[str, Field(min_length=1, max_length=256)]


class SessionExecute(Wire):
    """One command; `async` is the older name of `runAsync`."""

    command: str
    run_async: bool | None = None
    var_async: Annotated[bool | None, Field(alias="async")] = None


@router.post("", status_code=201)
async def create_session(access: Holder, sandbox_id: str, body: CreateSession) -> Answer:
    sandbox = await access.running(sandbox_id)
    note = access.note(sandbox.id)
    if body.session_id in note.sessions:
        raise ApiError(409, f"Session {body.session_id} exists already")
    if len(note.sessions) >= MAX_SESSIONS:
        raise ApiError(400, f"Sandbox {sandbox.id} has {MAX_SESSIONS} sessions; delete some")
    session = note.sessions[body.session_id] = Session(body.session_id, sandbox, note.user, access.budget)
    try:
        await session.start()
    except BaseException:
        note.sessions.pop(body.session_id, None)
        await asyncio.shield(session.end())
        raise
    return _session_json(session)


@router.get("")
async def list_sessions(access: Holder, sandbox_id: str) -> list[Answer]:
    sandbox = await access.running(sandbox_id)
    return [_session_json(session) for session in access.note(sandbox.id).sessions.values()]


@router.get("/{session_id}")
async def get_session(access: Holder, sandbox_id: str, session_id: str) -> Answer:
    return _session_json(await _session(access, sandbox_id, session_id))


@router.delete("/{session_id}", status_code=204)
async def delete_session(access: Holder, sandbox_id: str, session_id: str) -> Response:
    session = await _session(access, sandbox_id, session_id)
    sandbox = await access.find(sandbox_id)
    access.note(sandbox.id).sessions.pop(session_id, None)
    await session.end()
    return Response(status_code=204)


@router.post("/{session_id}/exec")
async def execute(access: Holder, sandbox_id: str, session_id: str, body: SessionExecute) -> Response:
    session = await _session(access, sandbox_id, session_id)
    command = await session.submit(body.command)
    if body.run_async or body.var_async:
        return JSONResponse({"cmdId": command.id}, 202)
    await command.ended.wait()
    return OutputAnswer(
        access.room,
        2 * command.log.held,
        lambda: {"cmdId": command.id, "exitCode": command.exit_code, **_logs_json(command.log)},
    )


@router.get("/{session_id}/command/{command_id}")
async def get_command(access: Holder, sandbox_id: str, session_id: str, command_id: str) -> Answer:
    return _command_json((await _session(access, sandbox_id, session_id)).find(command_id))


@router.get("/{session_id}/command/{command_id}/logs")
async def get_logs(
    access: Holder, sandbox_id: str, session_id: str, command_id: str, follow: bool = False
) -> Response:
    command = (await _session(access, sandbox_id, session_id)).find(command_id)
    if follow:
        return StreamingResponse(_frames(command.log), media_type="application/octet-stream")
    return OutputAnswer(access.room, 2 * command.log.held, lambda: _logs_json(command.log))


@router.websocket("/{session_id}/command/{command_id}/logs")
async def follow_logs(
    websocket: WebSocket, access: Holder, sandbox_id: str, session_id: str, command_id: str
) -> None:
    command = (await _session(access, sandbox_id, session_id)).find(command_id)
    await websocket.accept()
    try:
        await until_closed(websocket, _send_frames(websocket, command.log))
        await websocket.close()
    except WebSocketDisconnect:
        return


@router.post("/{session_id}/command/{command_id}/input")
async def send_input(access: Holder, sandbox_id: str, session_id: str, command_id: str) -> None:
    (await _session(access, sandbox_id, session_id)).find(command_id)
    raise ApiError(501, "Commands of a session have no input here; use a terminal (pty) session instead")


async def _send_frames(websocket: WebSocket, log: OutputLog) -> None:
    async for frame in _frames(log):
        await websocket.send_bytes(frame)


async def _frames(log: OutputLog) -> AsyncIterator[bytes]:
    async for stream, data in log.follow():
        yield _PREFIXES[stream] + data


async def _session(access: Access, sandbox_id: str, session_id: str) -> Session:
    sandbox = await access.running(sandbox_id)
    session = access.note(sandbox.id).sessions.get(session_id)
    if session is None:
        raise ApiError(404, f"Sandbox {sandbox.id} has no session {session_id[:256]}")
    return session


def _session_json(session: Session) -> Answer:
    return {"sessionId": session.id, "commands": [_command_json(command) for command in session.commands]}


def _command_json(command: SessionCommand) -> Answer:
    ended = {} if command.exit_code is None else {"exitCode": command.exit_code}
    return {"id": command.id, "command": command.text, **ended}


def _logs_json(log: OutputLog) -> Answer:
    return {"output": log.text(), "stdout": log.text("stdout"), "stderr": log.text("stderr")}
