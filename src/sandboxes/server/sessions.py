"""Sessions: one long-lived shell each, whose commands run one after another, and their routes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from secrets import token_hex
from typing import Annotated, NamedTuple

from fastapi import APIRouter, Depends, WebSocket
from pydantic import Field
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.websockets import WebSocketDisconnect

from sandboxes.errors import SandboxError
from sandboxes.protocol import KILLED_EXIT_CODE, Command, Sandbox, StreamName
from sandboxes.server.bodies import CamelModel, OutputAnswer, access_of, until_closed
from sandboxes.server.commands import MAX_ARGUMENT_BYTES
from sandboxes.server.server import Access, ApiError, OutputBudget, OutputLog, api_error

MAX_COMMANDS = 10_000

_BOOT = """mkdir -p "$1" && chmod 700 "$1" && mkfifo -m 600 "$1/queue" || exit 125
if command -v bash >/dev/null 2>&1; then exec bash -c "$3" session "$1" "$2"; fi
exec sh -c "$3" session "$1" "$2"
"""
_LOOP = """exec 7>&1 8>&2 9<>"$1/queue"
__session_folder=$1 __session_mark=$2
set --
printf '\\036%s:0:0\\036' "$__session_mark" >&7
printf '\\036%s:0:0\\036' "$__session_mark" >&8
while IFS= read -r __session_next <&9; do
  . "$__session_folder/$__session_next" </dev/null 7>&- 8>&- 9<&-
  __session_code=$?
  exec 1>&7 2>&8
  printf '\\036%s:%s:%d\\036' "$__session_mark" "$__session_next" "$__session_code" >&7
  printf '\\036%s:%s:%d\\036' "$__session_mark" "$__session_next" "$__session_code" >&8
  rm -f "$__session_folder/$__session_next"
done
"""
_SUBMIT = """[ -p "$1/queue" ] || exit 3
if [ $# -gt 2 ]; then printf '%s\\n' "$3" > "$1/$2" || exit 4; fi
echo "$2" 1<>"$1/queue"
"""


class SessionCommand:
    """One command of a session."""

    def __init__(self, text: str, budget: OutputBudget) -> None:
        self.id = token_hex(8)
        self.text = text
        self.log = OutputLog(budget=budget)
        self.exit_code: int | None = None
        self.ended = asyncio.Event()
        self._streams_open = 2

    def end_stream(self, code: int) -> None:
        """One of its two streams is at its end."""
        self._streams_open -= 1
        if self._streams_open == 0:
            self.end(code)

    def end(self, code: int) -> None:
        """It has ended; what comes from now on is of its background processes."""
        if self.exit_code is None:
            self.exit_code = code
            self.log.close()
            self.ended.set()


class ShellSession:
    """A shell in a sandbox and the commands it was given."""

    def __init__(self, session_id: str, sandbox: Sandbox, user: str | None, budget: OutputBudget) -> None:
        self.id = session_id
        self.commands: list[SessionCommand] = []
        self._sandbox = sandbox
        self._user = user
        self._budget = budget
        self._mark = token_hex(12)
        self._folder = f"/tmp/.session-{token_hex(8)}"
        self._streams = {name: _MarkedStream(self._mark) for name in ("stdout", "stderr")}
        self._ready = asyncio.Event()
        self._submitting = asyncio.Lock()
        self._failure: ApiError | None = None
        self._shell: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the shell and wait until it takes commands."""
        self._shell = asyncio.get_running_loop().create_task(self._run_shell())
        await self._ready.wait()
        if self._failure is not None:
            raise self._failure

    async def submit(self, text: str) -> SessionCommand:
        """Queue a command."""
        if "\0" in text:
            raise ApiError(400, "A command cannot hold a zero byte")
        async with self._submitting:
            if self._failure is not None:
                raise self._failure
            if len(self.commands) >= MAX_COMMANDS:
                raise ApiError(400, f"Session {self.id} had {MAX_COMMANDS} commands; create another")
            command = SessionCommand(text, self._budget)
            number = str(len(self.commands) + 1)
            self.commands.append(command)
            try:
                await self._pass_on(number, text)
            except BaseException:
                # The shell may or may not have got it: from here on the count would be wrong.
                self._fail(ApiError(400, f"Session {self.id} lost a command; create another"))
                raise
            return command

    async def _pass_on(self, number: str, text: str) -> None:
        arguments = [self._folder, number, text]
        if len(text.encode()) >= MAX_ARGUMENT_BYTES:
            await self._sandbox.upload_file(f"{self._folder}/{number}", text.encode() + b"\n")
            arguments.pop()
        code = await self._sandbox.run(Command(("/bin/sh", "-c", _SUBMIT, "sh", *arguments), user=self._user))
        if code != 0:
            raise ApiError(
                400, f"Session {self.id} takes no commands: its files in /tmp are gone or /tmp is full"
            )

    def find(self, command_id: str) -> SessionCommand:
        """The command of that id."""
        for command in reversed(self.commands):
            if command.id == command_id:
                return command
        raise ApiError(404, f"Session {self.id} has no command {command_id[:64]}")

    async def end(self) -> None:
        """Kill the shell and whatever it started."""
        if self._shell is not None:
            self._shell.cancel()
            await asyncio.wait((self._shell,))
        self._fail(ApiError(404, f"Session {self.id} was deleted"))
        for command in self.commands:
            command.log.clear()
        with suppress(SandboxError):
            await self._sandbox.remove(self._folder)

    async def _run_shell(self) -> None:
        argv = ("/bin/sh", "-c", _BOOT, "session", self._folder, self._mark, _LOOP)
        try:
            code = await self._sandbox.run(Command(argv, user=self._user), self._receive)
        except SandboxError as error:
            self._fail(api_error(error))
        else:
            told = f"The shell of session {self.id} ended with exit code {code}; create another session"
            self._fail(ApiError(400, told), code)
        finally:
            self._fail(ApiError(400, f"The shell of session {self.id} was killed"))

    def _fail(self, failure: ApiError, code: int = KILLED_EXIT_CODE) -> None:
        """Nothing runs any more. The command that was running ended as the shell did."""
        self._failure = self._failure or failure
        for command in self.commands:
            if command.exit_code is None:
                command.end(code)
                code = KILLED_EXIT_CODE
        self._ready.set()

    def _receive(self, name: StreamName, text: str) -> None:
        stream = self._streams[name]
        for item in stream.split(text):
            if isinstance(item, str):
                if self.commands:
                    latest = len(self.commands) - 1
                    self.commands[min(max(stream.marks - 1, 0), latest)].log(name, item)
            # Mark 0 says that the shell is ready. A command can print marks too: one out of turn is ignored.
            elif item.number == stream.marks <= len(self.commands):
                stream.marks += 1
                if item.number:
                    self.commands[item.number - 1].end_stream(item.code)
        if all(each.marks for each in self._streams.values()):
            self._ready.set()


class _Mark(NamedTuple):
    """The end of the command of that number."""

    number: int
    code: int


class _MarkedStream:
    """Finds the marks in one stream, also where one comes in two pieces."""

    def __init__(self, mark: str) -> None:
        self._start = f"\036{mark}:"
        self._whole = re.compile(re.escape(self._start) + "([0-9]{1,6}):([0-9]{1,3})\036")
        self._cut = re.compile("([0-9]{1,6}(:[0-9]{0,3})?)?")
        self._held = ""
        self.marks = 0
        """How many came in turn."""

    def split(self, text: str) -> Iterator[str | _Mark]:
        """Yield the text between marks, and the marks."""
        rest = self._held + text
        while (found := self._whole.search(rest)) is not None:
            if found.start():
                yield rest[: found.start()]
            rest = rest[found.end() :]
            yield _Mark(int(found[1]), int(found[2]))
        cut = self._start_of_mark(rest)
        self._held = rest[cut:]
        if cut:
            yield rest[:cut]

    def _start_of_mark(self, text: str) -> int:
        """Return where a mark begins whose end has not come yet; the end of the text if there is none."""
        at = text.rfind("\036")
        tail = text[at:] if at >= 0 else ""
        began = tail.startswith(self._start) and self._cut.fullmatch(tail, len(self._start)) is not None
        return at if tail and (began or self._start.startswith(tail)) else len(text)


# Sessions and what their commands print.

router = APIRouter(prefix="/process/session")
Holder = Annotated[Access, Depends(access_of)]
Answer = dict[str, object]

MAX_SESSIONS = 200
_PREFIXES = {"stdout": b"\x01\x01\x01", "stderr": b"\x02\x02\x02"}


class CreateSession(CamelModel):
    """A name of the caller's choice."""

    session_id: Annotated[str, Field(min_length=1, max_length=256)]


class SessionExecute(CamelModel):
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
    session = note.sessions[body.session_id] = ShellSession(
        body.session_id, sandbox, note.user, access.budget
    )
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


async def _session(access: Access, sandbox_id: str, session_id: str) -> ShellSession:
    sandbox = await access.running(sandbox_id)
    session = access.note(sandbox.id).sessions.get(session_id)
    if session is None:
        raise ApiError(404, f"Sandbox {sandbox.id} has no session {session_id[:256]}")
    return session


def _session_json(session: ShellSession) -> Answer:
    return {"sessionId": session.id, "commands": [_command_json(command) for command in session.commands]}


def _command_json(command: SessionCommand) -> Answer:
    ended = {} if command.exit_code is None else {"exitCode": command.exit_code}
    return {"id": command.id, "command": command.text, **ended}


def _logs_json(log: OutputLog) -> Answer:
    return {"output": log.text(), "stdout": log.text("stdout"), "stderr": log.text("stderr")}
