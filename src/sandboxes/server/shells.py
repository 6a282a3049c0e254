"""How a client's command text is run: by bash where there is one, and however long it is."""

from __future__ import annotations

import posixpath
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from secrets import token_hex

from sandboxes.errors import SandboxError
from sandboxes.protocol import Sandbox
from sandboxes.server.access import Note
from sandboxes.server.errors import ApiError
from sandboxes.server.output import OutputLog
from sandboxes.values import Command

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
    note: Note,
    text: str,
    *,
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
) -> AsyncIterator[Command]:
    """The command that runs `text`; a text too long for an argument lies in a file meanwhile."""
    check_words(text, env or {})
    options = {"cwd": await resolved(sandbox, note, cwd), "env": dict(env or {}), "timeout": timeout}
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


async def folders(sandbox: Sandbox, note: Note) -> tuple[str, str]:
    """The sandbox's working folder and its user's home, as paths inside."""
    if note.home is None:
        log = OutputLog(1 << 16)
        await sandbox.run(Command(("/bin/sh", "-c", _HOME), user=note.user), log)
        work, home, root = [*log.text("stdout").split("\0"), "", "", ""][:3]
        inside = [path.removeprefix(root) if root else path for path in (work, home)]
        note.home = (inside[0] or "/", inside[1] or "/")
    return note.home


async def resolved(sandbox: Sandbox, note: Note, path: str | None) -> str | None:
    """A path inside; one that is not absolute begins at the working folder, or at home with `~`."""
    if path is None or path == "":
        return None
    if "\0" in path:
        raise ApiError(400, "A path cannot hold a zero byte")
    if path.startswith("/"):
        return path
    work, home = await folders(sandbox, note)
    if path == "~" or path.startswith("~/"):
        return posixpath.join(home, path[2:])
    return posixpath.join(work, path)
