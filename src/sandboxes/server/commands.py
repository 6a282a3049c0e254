"""Run a client's command text by a shell of the sandbox; the routes for commands that run to their end."""

from __future__ import annotations

import posixpath
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from secrets import token_hex
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from pydantic import Field
from starlette.responses import Response

from sandboxes.errors import SandboxError
from sandboxes.protocol import TIMEOUT_EXIT_CODE, Command, Sandbox
from sandboxes.server.bodies import CamelModel, OutputAnswer, access_of, unless_gone
from sandboxes.server.server import Access, ApiError, OutputLog, SandboxNote

# The kernel takes no single argument of 128 KiB or more.
MAX_ARGUMENT_BYTES = 120_000
MAX_ENVIRONMENT_BYTES = 1 << 20

_ARGUMENT = """if command -v bash >/dev/null 2>&1; then exec bash -c "$1"; fi
exec sh -c "$1"
"""
_FILE = """file=${VALKYRIE_ROOT:-}$1
if command -v bash >/dev/null 2>&1; then exec bash -- "$file"; fi
exec sh -- "$file"
"""
_HOME = 'printf "%s\\0%s\\0%s" "$PWD" "$HOME" "${VALKYRIE_ROOT:-}"'


@asynccontextmanager
async def shell_command(
    sandbox: Sandbox,
    note: SandboxNote,
    text: str,
    *,
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
) -> AsyncIterator[Command]:
    """The command that runs `text`; a text too long for an argument lies in a file meanwhile."""
    check_words(text, env or {})
    options = {"cwd": await resolved_path(sandbox, note, cwd), "env": dict(env or {}), "timeout": timeout}
    if len(text.encode()) < MAX_ARGUMENT_BYTES:
        yield Command(("/bin/sh", "-c", _ARGUMENT, "sh", text), user=note.user, **options)  # type: ignore[arg-type]
        return
    path = f"/var/tmp/.command-{token_hex(8)}"
    await sandbox.upload_file(path, text.encode())
    try:
        yield Command(("/bin/sh", "-c", _FILE, "sh", path), user=note.user, **options)  # type: ignore[arg-type]
    finally:
        with suppress(SandboxError):
            await sandbox.remove(path)


def check_words(text: str, env: Mapping[str, str]) -> None:
    """Refuse what the kernel would not take."""
    if "\0" in text or any("\0" in word for pair in env.items() for word in pair):
        raise ApiError(400, "Commands and variables cannot hold a zero byte")
    if any(not name or "=" in name for name in env):
        raise ApiError(400, "The name of a variable is empty or holds an equals sign")
    sizes = [len(f"{name}={value}".encode()) for name, value in env.items()]
    if max(sizes, default=0) >= MAX_ARGUMENT_BYTES or sum(sizes) > MAX_ENVIRONMENT_BYTES:
        raise ApiError(400, "The variables of the command are too large; put them into a file")


async def sandbox_folders(sandbox: Sandbox, note: SandboxNote) -> tuple[str, str]:
    """The sandbox's working folder and its user's home, as paths inside."""
    if note.home is None:
        log = OutputLog(1 << 16)
        await sandbox.run(Command(("/bin/sh", "-c", _HOME), user=note.user), log)
        work, home, root = [*log.text("stdout").split("\0"), "", "", ""][:3]
        inside = [path.removeprefix(root) if root else path for path in (work, home)]
        note.home = (inside[0] or "/", inside[1] or "/")
    return note.home


async def resolved_path(sandbox: Sandbox, note: SandboxNote, path: str | None) -> str | None:
    """A path inside; one that is not absolute begins at the working folder, or at home with `~`."""
    if path is None or path == "":
        return None
    if "\0" in path:
        raise ApiError(400, "A path cannot hold a zero byte")
    if path.startswith("/"):
        return path
    work, home = await sandbox_folders(sandbox, note)
    if path == "~" or path.startswith("~/"):
        return posixpath.join(home, path[2:])
    return posixpath.join(work, path)


# Commands that are run to their end.

router = APIRouter()
Holder = Annotated[Access, Depends(access_of)]

_INTERPRETERS = {
    "python": ("/bin/sh", "-c", 'exec "$(command -v python3 || echo python)" -c "$@"', "sh"),
    "javascript": ("node", "-e"),
    "typescript": ("npx", "tsx", "-e"),
}


class ExecuteRequest(CamelModel):
    """One shell command."""

    command: str
    cwd: str | None = None
    timeout: Annotated[float, Field(ge=0)] | None = None
    envs: dict[str, str] | None = None
    env: dict[str, str] | None = None


class CodeRunRequest(CamelModel):
    """A piece of program text."""

    code: str
    language: str = "python"
    argv: list[str] | None = None
    envs: dict[str, str] | None = None
    timeout: Annotated[float, Field(ge=0)] | None = None


@router.post("/process/execute")
async def execute(request: Request, access: Holder, sandbox_id: str, body: ExecuteRequest) -> Response:
    sandbox = await access.running(sandbox_id)
    return await unless_gone(request, _execute(access, sandbox, body))


async def _execute(access: Access, sandbox: Sandbox, body: ExecuteRequest) -> Response:
    env = {**(body.env or {}), **(body.envs or {})}
    note = access.note(sandbox.id)
    async with shell_command(
        sandbox, note, body.command, cwd=body.cwd, env=env, timeout=body.timeout or None
    ) as command:
        return await _run(access, sandbox, command)


@router.post("/process/code-run")
async def code_run(request: Request, access: Holder, sandbox_id: str, body: CodeRunRequest) -> Response:
    sandbox = await access.running(sandbox_id)
    interpreter = _INTERPRETERS.get(body.language)
    if interpreter is None:
        raise ApiError(400, f"No code in {body.language[:40]} here; there are {', '.join(_INTERPRETERS)}")
    check_words("\n".join([body.code, *(body.argv or ())]), body.envs or {})
    if max(len(word.encode()) for word in (body.code, *(body.argv or ()))) >= MAX_ARGUMENT_BYTES:
        raise ApiError(400, "The code is too long to be passed on; upload it as a file and run that")
    command = Command(
        (*interpreter, body.code, *(body.argv or ())),
        env=body.envs or {},
        timeout=body.timeout or None,
        user=access.note(sandbox.id).user,
    )
    return await unless_gone(request, _run(access, sandbox, command))


async def _run(access: Access, sandbox: Sandbox, command: Command) -> Response:
    log = OutputLog(budget=access.budget)
    try:
        code = await sandbox.run(command, log)
        if code == TIMEOUT_EXIT_CODE and command.timeout is not None:
            raise ApiError(408, f"The command was killed after its timeout of {command.timeout:g} s")
    except BaseException:
        log.clear()
        raise
    return OutputAnswer(
        access.room, log.held, lambda: {"exitCode": code, "result": log.text()}, done=log.clear
    )


@router.get("/user-home-dir")
async def user_home_dir(access: Holder, sandbox_id: str) -> dict[str, str]:
    sandbox = await access.running(sandbox_id)
    return {"dir": (await sandbox_folders(sandbox, access.note(sandbox.id)))[1]}


@router.get("/work-dir")
async def work_dir(access: Holder, sandbox_id: str) -> dict[str, str]:
    sandbox = await access.running(sandbox_id)
    return {"dir": (await sandbox_folders(sandbox, access.note(sandbox.id)))[0]}


@router.get("/version")
async def version(access: Holder, sandbox_id: str) -> dict[str, str]:
    await access.running(sandbox_id)
    return {"version": "valkyrie"}
