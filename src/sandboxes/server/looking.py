"""Questions about files, answered by small scripts in the sandbox.

The scripts start in the sandbox's root and get relative paths: a provider without a file system of its own
keeps a folder for the root, and says where.
"""

from __future__ import annotations

import posixpath
import stat
from datetime import UTC, datetime

from sandboxes.protocol import Sandbox
from sandboxes.server.access import Note
from sandboxes.server.errors import ApiError
from sandboxes.server.output import OutputLog
from sandboxes.server.shells import resolved
from sandboxes.values import Command

MAX_SECONDS = 120
MAX_OUTPUT_BYTES = 16 << 20
_EARLIEST, _LATEST = -62_135_596_800, 253_402_300_799
"""The first and last second that a date can tell."""
_ROOT = 'cd "${VALKYRIE_ROOT:-/}" || exit 125\n'
# A raw mode, size, time, owner, group; then the name, which alone may hold anything.
_STAT = "stat -c '%f %s %Y %U %G' -- \"$p\" && printf '%s\\0' \"$p\""
_ONE = f'p=$1; [ -e "$p" ] || [ -L "$p" ] || exit 44\n{_STAT}'
_MANY = """[ -d "$1/." ] || exit 44
find "$1/" -mindepth 1 -maxdepth "$2" -exec sh -c "$3" sh {} +
"""
_EACH = f"for p; do {_STAT}; done"
_NAMES = 'find "$1/" -name "$2" -print0'
# Whoever opens a pipe waits for its other end.
_LINES = '[ -f "$1" ] || [ -d "$1/." ] || exit 0\ngrep -rnIHZ -- "$2" "$1"; [ $? -le 1 ]'


class Looker:
    """Looks into one sandbox."""

    def __init__(self, sandbox: Sandbox, note: Note) -> None:
        self.sandbox = sandbox
        self._note = note

    async def inside(self, path: str) -> str:
        """The absolute path inside."""
        found = await resolved(self.sandbox, self._note, path or ".")
        assert found is not None
        return _absolute(found)

    async def entry(self, path: str) -> dict[str, object]:
        """One file or folder."""
        found = _entries(await self._ask(_ONE, path))
        if not found:
            raise _misled(path)
        return found[0]

    async def entries(self, path: str, depth: int) -> list[dict[str, object]]:
        """What is in a folder, `depth` levels deep."""
        output = await self._ask(_MANY, path, str(depth), _EACH)
        return sorted(_entries(output), key=lambda entry: str(entry["path"]))

    async def names(self, path: str, pattern: str) -> list[str]:
        """Paths below a folder whose last part matches a glob."""
        await self.entry(path)
        output = await self._ask(_NAMES, path, pattern)
        return sorted(_absolute(name) for name in output.split("\0") if name)

    async def lines(self, path: str, pattern: str) -> list[dict[str, object]]:
        """Lines of text files that match a pattern."""
        await self.entry(path)
        found: list[dict[str, object]] = []
        rest = await self._ask(_LINES, path, pattern)
        while rest:
            name, _, rest = rest.partition("\0")
            line, _, rest = rest.partition("\n")
            number, _, content = line.partition(":")
            if number.isdigit():
                found.append({"file": _absolute(name), "line": int(number), "content": content})
        return found

    async def change(self, script: str, *paths: str, words: tuple[str, ...] = ()) -> None:
        """Run a script on the paths and words; what it says when it fails is the error."""
        places = [_relative(await self.inside(path)) for path in paths]
        code, output = await self._run(script, (*places, *words))
        if code:
            raise ApiError(400, output.strip()[-500:] or f"the command in the sandbox ended with {code}")

    async def _ask(self, script: str, path: str, *words: str) -> str:
        code, output = await self._run(script, (_relative(await self.inside(path)), *words), silent=True)
        if code == 44 or (script is _ONE and not output):
            raise ApiError(404, f"{path}: no such file or folder in the sandbox")
        if code:
            raise ApiError(400, f"cannot look at {path} in the sandbox (exit code {code})")
        return output

    async def _run(self, script: str, words: tuple[str, ...], *, silent: bool = False) -> tuple[int, str]:
        if any("\0" in word for word in words):
            raise ApiError(400, "A path cannot hold a zero byte")
        log = OutputLog(MAX_OUTPUT_BYTES)
        command = Command(
            ("/bin/sh", "-c", _ROOT + script, "sh", *words), timeout=MAX_SECONDS, user=self._note.user
        )
        code = await self.sandbox.run(command, log)
        return code, log.text("stdout" if silent else None)


def _relative(path: str) -> str:
    return "." + path if path != "/" else "."


def _absolute(path: str) -> str:
    return posixpath.normpath("/" + path.removeprefix("./").lstrip("/"))


def _entries(output: str) -> list[dict[str, object]]:
    entries = []
    for record in output.split("\0"):
        facts, found, name = record.partition("\n")
        if found:
            try:
                entries.append(_entry(facts.split(" "), _absolute(name)))
            except (ValueError, IndexError):
                raise _misled(name) from None
    return entries


def _misled(path: str) -> ApiError:
    """The sandbox's own programs are what answers, and whoever works in it may have replaced them."""
    return ApiError(400, f"what the sandbox says of {path[-200:]!r} makes no sense")


def _entry(facts: list[str], path: str) -> dict[str, object]:
    mode, size, seconds, owner, group = int(facts[0], 16), int(facts[1]), int(facts[2]), *facts[3:5]
    # A file's time may be any number, a date may not.
    modified = datetime.fromtimestamp(min(max(seconds, _EARLIEST), _LATEST), UTC)
    return {
        "name": posixpath.basename(path) or "/",
        "path": path,
        "isDir": stat.S_ISDIR(mode),
        "size": size,
        "mode": stat.filemode(mode),
        "permissions": f"{stat.S_IMODE(mode):04o}",
        "owner": owner,
        "group": group,
        "modTime": modified.strftime("%Y-%m-%d %H:%M:%S +0000 UTC"),
        "modifiedAt": modified.isoformat(),
    }
