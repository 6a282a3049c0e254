"""Runs npm, pip and the like on the host, within bounds, and says why they failed."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from valkyrie.errors import DiskFullError, InfrastructureError, UsageError, ValkyrieError
from valkyrie.settings import FETCH_PREFIX

TAIL_LINES = 12
_MOST_LINE = 500
_CREDENTIALS = re.compile(r"://[^/\s@]+@")
_NO_VERSION = re.compile(r"\bETARGET\b|\bE404\b|No matching version found|\(from versions: (?!none\))")
_NO_ROOM = re.compile(r"\bENOSPC\b|No space left on device|\bEDQUOT\b")
_OFFLINE = re.compile(
    r"ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ETIMEDOUT|ENETUNREACH|ECONNRESET|ERR_SOCKET|name resolution"
    r"|SELF_SIGNED_CERT|UNABLE_TO_(?:VERIFY|GET_ISSUER)|CERTIFICATE_VERIFY_FAILED"
    r"|NewConnectionError|Connection refused|Network is unreachable|ConnectTimeout|dns error"
)

Log = Callable[[str], None]


def fetch_failed(message: str) -> InfrastructureError:
    """An error whose cause says that the agent could not be fetched."""
    return InfrastructureError(message, cause="agent_fetch_failed")


async def run_tool(
    argv: Sequence[str], *, what: str, cwd: Path, log: Log, env: Mapping[str, str] | None = None
) -> None:
    """Run one to its end; `what` is being fetched. Cancelled, it and all its children are dead."""
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            cwd=cwd,
            env={**_handed_on(), **(env or {})},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise fetch_failed(f"{argv[0]} could not be started: {error.strerror or error}.") from error
    tail: deque[str] = deque(maxlen=TAIL_LINES)
    assert process.stdout is not None
    try:
        await _follow(process.stdout, tail, log)
        code = await process.wait()
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await asyncio.shield(process.wait())
    if code != 0:
        raise _reason(Path(argv[0]).name, what, code, list(tail))


def _handed_on() -> dict[str, str]:
    """Our own environment, with what was kept for these programs under its true name."""
    ours = dict(os.environ)
    meant = {
        name.removeprefix(FETCH_PREFIX): value
        for name, value in ours.items()
        if name.startswith(FETCH_PREFIX)
    }
    return {**ours, **meant}


async def _follow(stream: asyncio.StreamReader, tail: deque[str], log: Log) -> None:
    rest = ""
    while piece := await stream.read(65536):
        *lines, rest = (rest + piece.decode(errors="replace")).split("\n")
        for line in (*lines, *([rest] if len(rest) > _MOST_LINE else [])):
            _say(line, tail, log)
        rest = "" if len(rest) > _MOST_LINE else rest
    _say(rest, tail, log)


def _say(line: str, tail: deque[str], log: Log) -> None:
    shown = _CREDENTIALS.sub("://…@", line.rstrip())[:_MOST_LINE]
    if shown:
        tail.append(shown)
        log(shown)


def _reason(tool: str, what: str, code: int, tail: Sequence[str]) -> ValkyrieError:
    said = "\n".join(tail)
    shown = "".join(f"\n  {line}" for line in tail)
    if _NO_ROOM.search(said):
        return DiskFullError(f"the disk is full: {what} could not be installed.{shown}")
    if _OFFLINE.search(said):
        return fetch_failed(
            f"{what} could not be fetched: {tool} reached no package registry. Without network, run "
            f"`valk agent fetch` on a machine that has it and copy the folder cache/layers over.{shown}"
        )
    if _NO_VERSION.search(said):
        return UsageError(f"there is no {what} for this kind of root file system; choose a version.{shown}")
    return fetch_failed(f"{what} could not be installed: {tool} ended with exit code {code}.{shown}")
