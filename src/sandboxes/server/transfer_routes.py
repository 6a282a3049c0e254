"""Files in and out, streamed."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import aclosing
from secrets import token_hex
from typing import Annotated
from urllib.parse import unquote

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response, StreamingResponse

from sandboxes.errors import SandboxError
from sandboxes.protocol import Sandbox
from sandboxes.server.access import Access, Note
from sandboxes.server.errors import ApiError, api_error, error_body
from sandboxes.server.gate import access_of
from sandboxes.server.multipart import MultipartReader, part_head
from sandboxes.server.shells import resolved
from sandboxes.server.wire import Wire

router = APIRouter(prefix="/files")
Holder = Annotated[Access, Depends(access_of)]
_FIELD = re.compile(r"files\[(\d+)\]\.(path|file)")


class DownloadRequest(Wire):
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


async def _parts(sandbox: Sandbox, note: Note, paths: list[str], boundary: str) -> AsyncIterator[bytes]:
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


async def _inside(sandbox: Sandbox, note: Note, path: str) -> str:
    found = await resolved(sandbox, note, path)
    if found is None:
        raise ApiError(400, "The path is empty")
    return found
