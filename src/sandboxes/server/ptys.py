"""Terminals: a shell in the sandbox on a pseudo-terminal of the host, offered over websockets."""

from __future__ import annotations

import asyncio
import base64
import binascii
import fcntl
import json
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import termios
from collections import deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from secrets import token_hex
from typing import Annotated

from fastapi import APIRouter, Depends, Query, WebSocket
from pydantic import Field, TypeAdapter, ValidationError
from starlette.websockets import WebSocketDisconnect

from sandboxes.protocol import Sandbox
from sandboxes.server.bodies import CamelModel, access_of
from sandboxes.server.commands import resolved_path, sandbox_folders
from sandboxes.server.server import Access, ApiError, SandboxNote
from sandboxes.streams import exit_code, exit_of

MAX_BACKLOG_BYTES = 8 << 20
"""What a client may be behind before it is let go, and what may wait for the shell to read."""
_CHUNK_BYTES = 1 << 16
_KILL_SECONDS = 5.0

_ON_TERMINAL = (
    "import fcntl, os, sys, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
    " os.execvp(sys.argv[1], sys.argv[1:])"
)


@dataclass(frozen=True, slots=True)
class PtySpec:
    """What a client asks for."""

    id: str
    cwd: str = "/"
    envs: Mapping[str, str] = field(default_factory=dict)
    cols: int = 80
    rows: int = 24


class PtyClient:
    """One client's view: the output since it came."""

    def __init__(self) -> None:
        self._pieces: deque[bytes] = deque()
        self._held = 0
        self._news = asyncio.Event()
        self._ended = False

    def take(self, data: bytes) -> bool:
        """Queue output; False when the client is too far behind."""
        self._pieces.append(data)
        self._held += len(data)
        self._news.set()
        return self._held <= MAX_BACKLOG_BYTES

    def end(self) -> None:
        """Nothing comes after what is queued."""
        self._ended = True
        self._news.set()

    async def output(self) -> AsyncIterator[bytes]:
        """The output as it comes, until the shell ends."""
        while True:
            while self._pieces:
                piece = self._pieces.popleft()
                self._held -= len(piece)
                yield piece
            if self._ended:
                return
            self._news.clear()
            await self._news.wait()


class Pty:
    """One terminal. It outlives its clients, and ends with its shell."""

    def __init__(self, spec: PtySpec, sandbox: Sandbox) -> None:
        self.id = spec.id
        self.spec = spec
        self.cols = spec.cols
        self.rows = spec.rows
        self.created_at = datetime.now(UTC)
        self.exit_code: int | None = None
        self._sandbox = sandbox
        self._clients: set[PtyClient] = set()
        self._loop = asyncio.get_running_loop()
        self._unwritten = bytearray()
        self._master = -1
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Open the terminal and start the shell on it."""
        greeting = await self._prepare()
        argv = self._sandbox.shell_argv(self.spec.cwd)
        self._master, slave = pty.openpty()
        try:
            self.resize(self.cols, self.rows)
            self._process = subprocess.Popen(  # noqa: ASYNC220 - spawning is what this does
                [sys.executable, "-I", "-S", "-c", _ON_TERMINAL, *argv],
                stdin=slave,
                stdout=slave,
                stderr=slave,
                env={"PATH": os.defpath},
            )
        except BaseException:
            os.close(self._master)
            self._master = -1
            raise
        finally:
            os.close(slave)
        os.set_blocking(self._master, False)
        self._loop.add_reader(self._master, self._on_readable)
        self._watcher = self._loop.create_task(self._watch(self._process))
        if greeting:
            self.write(greeting)

    async def _prepare(self) -> bytes:
        """The line that brings the variables in, by way of a file: a command line is for all to see."""
        if not self.spec.envs:
            return b""
        name = f"/var/tmp/.terminal-{token_hex(8)}"
        lines = "".join(f"export {key}={shlex.quote(value)}\n" for key, value in self.spec.envs.items())
        await self._sandbox.upload_file(name, lines.encode())
        place = f'"${{VALKYRIE_ROOT:-}}{name}"'
        return f" . {place}; rm -f {place}\n".encode()

    def attach(self) -> PtyClient:
        """A new client; output from now on goes to it as well."""
        client = PtyClient()
        if self.exit_code is None:
            self._clients.add(client)
        else:
            client.end()
        return client

    def detach(self, client: PtyClient) -> None:
        """The client is gone; the terminal stays."""
        self._clients.discard(client)

    def write(self, data: bytes) -> None:
        """Type. What the shell does not read in time is dropped beyond a limit."""
        if self._master < 0 or len(self._unwritten) + len(data) > MAX_BACKLOG_BYTES:
            return
        if not self._unwritten:
            self._loop.add_writer(self._master, self._on_writable)
        self._unwritten += data

    def resize(self, cols: int, rows: int) -> None:
        """Tell the programs on the terminal its size."""
        self.cols, self.rows = cols, rows
        if self._master >= 0:
            fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))

    async def end(self) -> None:
        """Kill the shell. What ran on the terminal is told by the kernel that it hung up."""
        if self._process is not None and self.exit_code is None:
            self._process.kill()
        if self._watcher is not None:
            await asyncio.wait((self._watcher,), timeout=_KILL_SECONDS)
            self._watcher.cancel()
        self._close()

    async def _watch(self, process: subprocess.Popen[bytes]) -> None:
        code = exit_code(await exit_of(process))
        while self._read():
            pass
        self.exit_code = code
        self._close()

    def _close(self) -> None:
        if self._master >= 0:
            self._loop.remove_reader(self._master)
            self._loop.remove_writer(self._master)
            os.close(self._master)
            self._master = -1
        for client in self._clients:
            client.end()
        self._clients.clear()

    def _on_readable(self) -> None:
        self._read()

    def _read(self) -> bool:
        if self._master < 0:
            return False
        try:
            data = os.read(self._master, _CHUNK_BYTES)
        except BlockingIOError:
            return False
        except OSError:  # the last program let go of the terminal
            data = b""
        if not data:
            self._loop.remove_reader(self._master)
            return False
        for client in list(self._clients):
            if not client.take(data):
                client.end()
                self._clients.discard(client)
        return True

    def _on_writable(self) -> None:
        try:
            written = os.write(self._master, self._unwritten)
        except BlockingIOError:
            return
        except OSError:  # no one is there to read it
            written = len(self._unwritten)
        del self._unwritten[:written]
        if not self._unwritten:
            self._loop.remove_writer(self._master)


async def start_pty(spec: PtySpec, sandbox: Sandbox) -> Pty:
    """A terminal that runs; nothing is left of one that does not."""
    terminal = Pty(spec, sandbox)
    try:
        await terminal.start()
    except BaseException:
        await asyncio.shield(terminal.end())
        raise
    return terminal


# Terminals over websockets.

router = APIRouter(prefix="/process/pty")
Holder = Annotated[Access, Depends(access_of)]
Answer = dict[str, object]
Columns = Annotated[int, Field(ge=1, le=1000)]

MAX_PTYS = 50
EXIT_CONTROL = "X-Daytona-Pty-Exit-Control"
_ENVS = "X-Daytona-Pty-Envs~"
_ENV_NAME = re.compile("[A-Za-z_][A-Za-z0-9_]*")
_STRINGS: TypeAdapter[dict[str, str]] = TypeAdapter(dict[str, str])


class CreatePty(CamelModel):
    """A terminal to open."""

    id: str
    cwd: str | None = None
    envs: dict[str, str] | None = None
    cols: Columns = 80
    rows: Columns = 24


class ResizePty(CamelModel):
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
    cwd = await resolved_path(sandbox, note, asked.cwd) or (await sandbox_folders(sandbox, note))[0]
    terminal = await start_pty(PtySpec(asked.id, cwd, asked.envs or {}, asked.cols, asked.rows), sandbox)
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
    """Return whether the output came to its end, and not the client."""
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


async def _note(access: Access, sandbox_id: str) -> SandboxNote:
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
