"""Commands that are run to their end."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from pydantic import Field
from starlette.responses import Response

from sandboxes.protocol import Sandbox
from sandboxes.server.access import Access
from sandboxes.server.answers import OutputAnswer
from sandboxes.server.disconnects import unless_gone
from sandboxes.server.errors import ApiError
from sandboxes.server.gate import access_of
from sandboxes.server.output import OutputLog
from sandboxes.server.shells import MAX_ARGUMENT_BYTES, check_words, folders, shell_command
from sandboxes.server.wire import Wire
from sandboxes.values import TIMEOUT_EXIT_CODE, Command

router = APIRouter()
Holder = Annotated[Access, Depends(access_of)]

_INTERPRETERS = {
    "python": ("/bin/sh", "-c", 'exec "$(command -v python3 || echo python)" -c "$@"', "sh"),
    "javascript": ("node", "-e"),
    "typescript": ("npx", "tsx", "-e"),
}


class ExecuteRequest(Wire):
    """One shell command."""

    command: str
    cwd: str | None = None
    timeout: Annotated[float, Field(ge=0)] | None = None
    envs: dict[str, str] | None = None
    env: dict[str, str] | None = None


class CodeRunRequest(Wire):
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
    return {"dir": (await folders(sandbox, access.note(sandbox.id)))[1]}


@router.get("/work-dir")
async def work_dir(access: Holder, sandbox_id: str) -> dict[str, str]:
    sandbox = await access.running(sandbox_id)
    return {"dir": (await folders(sandbox, access.note(sandbox.id)))[0]}


@router.get("/version")
async def version(access: Holder, sandbox_id: str) -> dict[str, str]:
    await access.running(sandbox_id)
    return {"version": "valkyrie"}
