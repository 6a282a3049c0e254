"""Files in and out, streamed; folders and what is in them, looked at by small scripts in the sandbox."""

from __future__ import annotations

import json
import posixpath
import re
import stat
from collections import deque
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from email.message import Message
from secrets import token_hex
from typing import Annotated, Any
from urllib.parse import quote, unquote

from fastapi import APIRouter, Depends, Query, Request
from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.responses import Response, StreamingResponse

from sandboxes.errors import SandboxError
from sandboxes.protocol import Command, Sandbox
from sandboxes.server.bodies import CamelModel, access_of
from sandboxes.server.commands import resolved_path
from sandboxes.server.server import Access, ApiError, OutputLog, SandboxNote, api_error, error_body

MAX_FIELD_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class PartStart:
    """A part begins."""

    name: str
    filename: str | None


class PartEnd:
    """The part has ended."""


Event = PartStart | bytes | PartEnd


class MultipartReader:
    """The parts of a request's body, in order. One part is read to its end before the next begins."""

    def __init__(self, content_type: str, body: AsyncIterator[bytes]) -> None:
        kind, options = parse_options_header(content_type)
        boundary = options.get(b"boundary")
        if kind != b"multipart/form-data" or not boundary:
            raise ApiError(400, "The body must be multipart/form-data")
        self._body = body
        self._events: deque[Event] = deque()
        self._field = bytearray()
        self._value = bytearray()
        self._headers: dict[str, str] = {}
        callbacks: Any = {
            "on_part_begin": self._headers.clear,
            "on_header_field": lambda data, start, end: self._field.extend(data[start:end]),
            "on_header_value": lambda data, start, end: self._value.extend(data[start:end]),
            "on_header_end": self._on_header,
            "on_headers_finished": self._on_headers,
            "on_part_data": lambda data, start, end: self._events.append(bytes(data[start:end])),
            "on_part_end": lambda: self._events.append(PartEnd()),
        }
        self._parser = MultipartParser(boundary, callbacks=callbacks)

    async def next_part(self) -> PartStart | None:
        """The next part, or None after the last. What was not read of the one before is skipped."""
        while (event := await self._next()) is not None:
            if isinstance(event, PartStart):
                return event
        return None

    async def data(self) -> AsyncIterator[bytes]:
        """The rest of the current part."""
        while True:
            event = await self._next()
            if isinstance(event, PartEnd):
                return
            if not isinstance(event, bytes):
                raise ApiError(400, "The body ends in the middle of a file")
            yield event

    async def text(self) -> str:
        """The current part as a short field."""
        value = bytearray()
        async for piece in self.data():
            value += piece
            if len(value) > MAX_FIELD_BYTES:
                raise ApiError(400, "A field of the form is too long")
        return value.decode("utf-8", "replace")

    async def _next(self) -> Event | None:
        while not self._events:
            chunk = await anext(self._body, None)
            if chunk is None:
                return None
            try:
                self._parser.write(chunk)
            except MultipartParseError as error:
                raise ApiError(400, f"The form is malformed: {error}") from None
        return self._events.popleft()

    def _on_header(self) -> None:
        self._headers[self._field.decode("latin-1").lower()] = self._value.decode("utf-8", "replace")
        self._field.clear()
        self._value.clear()

    def _on_headers(self) -> None:
        described = Message()
        described["content-disposition"] = self._headers.get("content-disposition", "")
        name = described.get_param("name", "", header="content-disposition")
        filename = described.get_filename()
        self._events.append(PartStart(str(name), filename))


def part_head(boundary: str, name: str, path: str, content_type: str) -> bytes:
    """Return what goes before a part's data; the path stands there as it is, and encoded if it is not
    plain."""
    plain = "".join(letter if letter.isprintable() else "_" for letter in path)
    quoted = plain.replace("\\", "\\\\").replace('"', '\\"')
    extra = "" if path.isascii() and plain == path else f"; filename*=UTF-8''{quote(path, safe='')}"
    return (
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"; filename="{quoted}"{extra}\r\n'
        f"Content-Type: {content_type}\r\n\r\n"
    ).encode("utf-8", "replace")


# Files in and out, streamed.

router = APIRouter(prefix="/files")
Holder = Annotated[Access, Depends(access_of)]
_FIELD = re.compile(r"files\[(\d+)\]\.(path|file)")


class DownloadRequest(CamelModel):
    """Which files to send."""

    paths: list[str]


@router.post("/bulk-upload")
async def bulk_upload(request: Request, access: Holder, sandbox_id: str) -> Response:
    sandbox = await access.running(sandbox_id)
    note = access.note(sandbox.id)
    form = MultipartReader(request.headers.get("content-type", ""), request.stream())
    paths: dict[str, str] = {}
    written = 0
    while (part := await form.next_part()) is not None:
        field = _FIELD.fullmatch(part.name)
        if field is None:
            continue
        if field[2] == "path":
            paths[field[1]] = await form.text()
            continue
        # The SDK sends the path before the file; the file's own name is percent-encoded.
        path = paths.get(field[1]) or unquote(part.filename or "")
        await sandbox.upload_stream(await _inside(sandbox, note, path), form.data())
        written += 1
    if not written:
        raise ApiError(400, "No file in the form: it takes files[0].path and files[0].file, and so on")
    return Response(status_code=200)


@router.post("/upload")
async def upload(request: Request, access: Holder, sandbox_id: str, path: str) -> Response:
    sandbox = await access.running(sandbox_id)
    target = await _inside(sandbox, access.note(sandbox.id), path)
    form = MultipartReader(request.headers.get("content-type", ""), request.stream())
    while (part := await form.next_part()) is not None:
        if part.name == "file":
            await sandbox.upload_stream(target, form.data())
            return Response(status_code=200)
    raise ApiError(400, "No file in the form: the field is called file")


@router.post("/upload-v2")
async def upload_raw(request: Request, access: Holder, sandbox_id: str, path: str) -> Response:
    sandbox = await access.running(sandbox_id)
    target = await _inside(sandbox, access.note(sandbox.id), path)
    await sandbox.upload_stream(target, request.stream())
    return Response(status_code=200)


@router.get("/download")
async def download(access: Holder, sandbox_id: str, path: str) -> Response:
    sandbox = await access.running(sandbox_id)
    pieces = sandbox.stream_download(await _inside(sandbox, access.note(sandbox.id), path))
    # Before the headers go: a file that is not there is an error, not an empty answer.
    first = await anext(pieces, b"")
    return StreamingResponse(_joined(first, pieces), media_type="application/octet-stream")


@router.post("/bulk-download")
async def bulk_download(access: Holder, sandbox_id: str, body: DownloadRequest) -> Response:
    sandbox = await access.running(sandbox_id)
    boundary = token_hex(24)
    parts = _parts(sandbox, access.note(sandbox.id), body.paths, boundary)
    return StreamingResponse(parts, media_type=f"multipart/form-data; boundary={boundary}")


async def _parts(
    sandbox: Sandbox, note: SandboxNote, paths: list[str], boundary: str
) -> AsyncIterator[bytes]:
    """Each file as a part; one that cannot be read as an error part, whose path tells which it was."""
    for path in paths:
        try:
            pieces = sandbox.stream_download(await _inside(sandbox, note, path))
            first = await anext(pieces, b"")
        except (SandboxError, ApiError) as error:
            told = error if isinstance(error, ApiError) else api_error(error)
            yield part_head(boundary, "error", path, "application/json")
            yield json.dumps(error_body(told.status, told.message, path)).encode()
        else:
            yield part_head(boundary, "file", path, "application/octet-stream")
            async for piece in _joined(first, pieces):
                yield piece
        yield b"\r\n"
    yield f"--{boundary}--\r\n".encode()


async def _joined(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async with aclosing(rest) as pieces:  # type: ignore[type-var]
        yield first
        async for piece in pieces:
            yield piece


async def _inside(sandbox: Sandbox, note: SandboxNote, path: str) -> str:
    found = await resolved_path(sandbox, note, path)
    if found is None:
        raise ApiError(400, "The path is empty")
    return found


# Questions about files, answered by small scripts in the sandbox.
#
# The scripts start in the sandbox's root and get relative paths: a provider without a file system of its own
# keeps a folder for the root, and says where.

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


class FileInspector:
    """Looks into one sandbox."""

    def __init__(self, sandbox: Sandbox, note: SandboxNote) -> None:
        self.sandbox = sandbox
        self._note = note

    async def inside(self, path: str) -> str:
        """The absolute path inside."""
        found = await resolved_path(self.sandbox, self._note, path or ".")
        assert found is not None
        return _absolute(found)

    async def entry(self, path: str) -> dict[str, object]:
        """One file or folder."""
        found = _entries(await self._ask(_ONE, path))
        if not found:
            raise _misled(path)
        return found[0]

    async def entries(self, path: str, depth: int) -> list[dict[str, object]]:
        """Return what is in a folder, `depth` levels deep."""
        output = await self._ask(_MANY, path, str(depth), _EACH)
        return sorted(_entries(output), key=lambda entry: str(entry["path"]))

    async def names(self, path: str, pattern: str) -> list[str]:
        """Return paths below a folder whose last part matches a glob."""
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


# Folders and what is in them, looked at by commands in the sandbox itself.
Answer = dict[str, object]
MAX_DEPTH = 32
MAX_EDITED_BYTES = 64 << 20


class ReplaceRequest(CamelModel):
    """A text to be replaced in some files."""

    files: list[str]
    pattern: str
    new_value: str


async def inspector_of(access: Holder, sandbox_id: str) -> FileInspector:
    sandbox = await access.running(sandbox_id)
    return FileInspector(sandbox, access.note(sandbox.id))


Inspector = Annotated[FileInspector, Depends(inspector_of)]


@router.get("")
async def list_files(
    look: Inspector, path: str = ".", depth: Annotated[int, Query(ge=1, le=MAX_DEPTH)] = 1
) -> list[Answer]:
    return await look.entries(path, depth)


@router.get("/info")
async def file_info(look: Inspector, path: str) -> Answer:
    return await look.entry(path)


@router.delete("")
async def delete_file(look: Inspector, path: str, recursive: bool = False) -> Response:
    found = await look.entry(path)
    if found["isDir"] and not recursive:
        raise ApiError(400, f"{path} is a folder; delete it with recursive=true")
    await look.sandbox.remove(await look.inside(path))
    return Response(status_code=204)


@router.post("/folder")
async def create_folder(look: Inspector, path: str, mode: str = "0755") -> Response:
    await look.change('mkdir -p -- "$1" && chmod -- "$2" "$1"', path, words=(_mode(mode),))
    return Response(status_code=201)


@router.post("/move")
async def move_file(look: Inspector, source: str, destination: str) -> Response:
    await look.entry(source)
    await look.change('mv -- "$1" "$2"', source, destination)
    return Response(status_code=200)


@router.post("/permissions")
async def set_permissions(
    look: Inspector, path: str, owner: str = "", group: str = "", mode: str = ""
) -> Response:
    await look.entry(path)
    if mode:
        await look.change('chmod -- "$2" "$1"', path, words=(_mode(mode),))
    if owner or group:
        await look.change('chown -- "$2" "$1"', path, words=(f"{owner}:{group}" if group else owner,))
    return Response(status_code=200)


@router.get("/search")
async def search_files(look: Inspector, path: str, pattern: str) -> Answer:
    return {"files": await look.names(path, pattern)}


@router.get("/find")
async def find_in_files(look: Inspector, path: str, pattern: str) -> list[Answer]:
    return await look.lines(path, pattern)


@router.post("/replace")
async def replace_in_files(look: Inspector, body: ReplaceRequest) -> list[Answer]:
    if not body.pattern:
        raise ApiError(400, "The text to replace is empty")
    return [await _replace(look, path, body.pattern, body.new_value) for path in body.files]


async def _replace(look: FileInspector, path: str, old: str, new: str) -> Answer:
    try:
        inside = await look.inside(path)
        text = await _text(look.sandbox, inside)
        before, after = old.encode(), new.encode()
        if len(text) + text.count(before) * (len(after) - len(before)) > MAX_EDITED_BYTES:
            raise _too_large(path)
        await look.sandbox.upload_file(inside, text.replace(before, after))
    except (ApiError, SandboxError) as error:
        return {"file": path, "success": False, "error": str(error)}
    return {"file": path, "success": True}


async def _text(sandbox: Sandbox, path: str) -> bytes:
    """A whole file, counted as it comes: whoever works in the sandbox decides what size it claims."""
    text = bytearray()
    async with aclosing(sandbox.stream_download(path)) as pieces:  # type: ignore[type-var]
        async for piece in pieces:
            text += piece
            if len(text) > MAX_EDITED_BYTES:
                raise _too_large(path)
    return bytes(text)


def _too_large(path: str) -> ApiError:
    return ApiError(400, f"{path} is, or would be, larger than {MAX_EDITED_BYTES >> 20} MiB")


def _mode(mode: str) -> str:
    if not mode or len(mode) > 5 or not set(mode) <= set("01234567"):
        raise ApiError(400, f"{mode[:20]!r} is no mode; write it in octal, like 0755")
    return mode
