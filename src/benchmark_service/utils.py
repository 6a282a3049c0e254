"""Running a command in a sandbox and reading its output line by line."""

from __future__ import annotations

import asyncio
import logging
import shlex
import uuid
from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing
from functools import partial
from typing import Any

from sandboxes.daytona import sdk
from sandboxes.errors import SandboxCommandError
from sandboxes.protocol import Sandbox

log = logging.getLogger(__name__)

MAX_LINE_CHARS = 1 << 16
"""A longer line is handed on in parts."""
_QUEUED_PIECES = 1000
_EXIT_LOOKS, _EXIT_PAUSE = 50, 0.1


async def stream_command(
    sandbox: Any, command: str, cwd: str | None, ignore_error: bool = False
) -> AsyncGenerator[str, None]:
    """Run a shell command and yield its lines, stdout and stderr, as they come; blank ones are left out.

    `sandbox` is one of ours or the Daytona SDK's AsyncSandbox. A non-zero exit is a ValueError at the end,
    unless `ignore_error`.
    """
    stream = (
        _over_sandbox if isinstance(sandbox, Sandbox) or not hasattr(sandbox, "process") else _over_session
    )
    async with aclosing(stream(sandbox, command, cwd)) as items:
        async for item in items:
            if isinstance(item, str):
                if item.strip():
                    yield item
            elif item != 0 and not ignore_error:
                raise ValueError(f"Command failed with exit code {item}")


class LineSplitter:
    """Whole lines out of pieces of text."""

    def __init__(self) -> None:
        self._rest = ""

    def feed(self, text: str) -> list[str]:
        """The lines that `text` completes."""
        *lines, self._rest = (self._rest + text).split("\n")
        while len(self._rest) > MAX_LINE_CHARS:
            lines.append(self._rest[:MAX_LINE_CHARS])
            self._rest = self._rest[MAX_LINE_CHARS:]
        return [line.removesuffix("\r") for line in lines]

    def flush(self) -> str:
        """Return what is left when no more will come."""
        rest, self._rest = self._rest, ""
        return rest.removesuffix("\r")


async def _over_sandbox(
    sandbox: Any, command: str, cwd: str | None
) -> AsyncGenerator[str | int | None, None]:
    """Lines, then the exit code, through `Sandbox.command`."""
    lines = LineSplitter()
    code = 0
    async with aclosing(sandbox.command(command, cwd=cwd)) as pieces:
        try:
            async for piece in pieces:
                for line in lines.feed(piece):
                    yield line
        except SandboxCommandError as error:
            code = error.exit_code
    yield lines.flush()
    yield code


async def _over_session(
    sandbox: Any, command: str, cwd: str | None
) -> AsyncGenerator[str | int | None, None]:
    """Lines, then the exit code, through a session of the Daytona SDK."""
    session = f"{sandbox.id}-{uuid.uuid4()}"
    placed = f"cd {shlex.quote(cwd)} && {command}" if cwd else command
    try:
        await sandbox.process.create_session(session)
        started = await sandbox.process.execute_session_command(
            session, sdk.reaching().SessionExecuteRequest(command=placed, run_async=True)
        )
        if not started.cmd_id:
            raise ValueError(f"Session {session} gave no id for the command it was sent")
        splitters = {"stdout": LineSplitter(), "stderr": LineSplitter()}
        async with aclosing(_session_output(sandbox, session, started.cmd_id)) as pieces:
            async for name, text in pieces:
                for line in splitters[name].feed(text):
                    yield line
        for splitter in splitters.values():
            yield splitter.flush()
        yield await _session_exit_code(sandbox, session, started.cmd_id)
    finally:
        try:
            await sandbox.process.delete_session(session)
        except Exception as error:  # noqa: BLE001 - the sandbox may be gone, and the command is over anyway
            log.warning("session %s could not be deleted: %s", session, error)


async def _session_output(
    sandbox: Any, session: str, command_id: str
) -> AsyncGenerator[tuple[str, str], None]:
    """Pieces of output with the name of their stream, until the command has no more."""
    queue: asyncio.Queue[tuple[str, str] | None] = asyncio.Queue()
    room = asyncio.Event()

    def keep(name: str, text: str) -> Awaitable[object] | None:
        # The SDK awaits what a handler returns: that holds back a command that talks faster than we read.
        queue.put_nowait((name, text))
        if queue.qsize() < _QUEUED_PIECES:
            return None
        room.clear()
        return room.wait()

    async def follow() -> None:
        try:
            await sandbox.process.get_session_command_logs_async(
                session_id=session,
                command_id=command_id,
                on_stdout=partial(keep, "stdout"),
                on_stderr=partial(keep, "stderr"),
            )
        finally:
            queue.put_nowait(None)

    following = asyncio.create_task(follow())
    try:
        while (piece := await queue.get()) is not None:
            if queue.qsize() < _QUEUED_PIECES:
                room.set()
            yield piece
        await following
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def _session_exit_code(sandbox: Any, session: str, command_id: str) -> int | None:
    """The exit code, which may become known a moment after the output has ended."""
    for _ in range(_EXIT_LOOKS):
        code: int | None = (await sandbox.process.get_session_command(session, command_id)).exit_code
        if code is not None:
            return code
        await asyncio.sleep(_EXIT_PAUSE)
    return None
