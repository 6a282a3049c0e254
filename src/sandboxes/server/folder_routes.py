"""Folders and what is in them, looked at by commands in the sandbox itself."""

from __future__ import annotations

from contextlib import aclosing
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from starlette.responses import Response

from sandboxes.errors import SandboxError
from sandboxes.protocol import Sandbox
from sandboxes.server.access import Access
from sandboxes.server.errors import ApiError
from sandboxes.server.gate import access_of
from sandboxes.server.looking import Looker
from sandboxes.server.wire import Wire

router = APIRouter(prefix="/files")
Holder = Annotated[Access, Depends(access_of)]
Answer = dict[str, object]
MAX_DEPTH = 32
MAX_EDITED_BYTES = 64 << 20


class ReplaceRequest(Wire):
    """A text to be replaced in some files."""

    files: list[str]
    pattern: str
    new_value: str


async def looker(access: Holder, sandbox_id: str) -> Looker:
    sandbox = await access.running(sandbox_id)
    return Looker(sandbox, access.note(sandbox.id))


Looking = Annotated[Looker, Depends(looker)]


@router.get("")
async def list_files(
    look: Looking, path: str = ".", depth: Annotated[int, Query(ge=1, le=MAX_DEPTH)] = 1
) -> list[Answer]:
    return await look.entries(path, depth)


@router.get("/info")
async def file_info(look: Looking, path: str) -> Answer:
    return await look.entry(path)


@router.delete("")
async def delete_file(look: Looking, path: str, recursive: bool = False) -> Response:
    found = await look.entry(path)
    if found["isDir"] and not recursive:
        raise ApiError(400, f"{path} is a folder; delete it with recursive=true")
    await look.sandbox.remove(await look.inside(path))
    return Response(status_code=204)


@router.post("/folder")
async def create_folder(look: Looking, path: str, mode: str = "0755") -> Response:
    await look.change('mkdir -p -- "$1" && chmod -- "$2" "$1"', path, words=(_mode(mode),))
    return Response(status_code=201)


@router.post("/move")
async def move_file(look: Looking, source: str, destination: str) -> Response:
    await look.entry(source)
    await look.change('mv -- "$1" "$2"', source, destination)
    return Response(status_code=200)


@router.post("/permissions")
async def set_permissions(
    look: Looking, path: str, owner: str = "", group: str = "", mode: str = ""
) -> Response:
    await look.entry(path)
    if mode:
        await look.change('chmod -- "$2" "$1"', path, words=(_mode(mode),))
    if owner or group:
        await look.change('chown -- "$2" "$1"', path, words=(f"{owner}:{group}" if group else owner,))
    return Response(status_code=200)


@router.get("/search")
async def search_files(look: Looking, path: str, pattern: str) -> Answer:
    return {"files": await look.names(path, pattern)}


@router.get("/find")
async def find_in_files(look: Looking, path: str, pattern: str) -> list[Answer]:
    return await look.lines(path, pattern)


@router.post("/replace")
async def replace_in_files(look: Looking, body: ReplaceRequest) -> list[Answer]:
    if not body.pattern:
        raise ApiError(400, "The text to replace is empty")
    return [await _replace(look, path, body.pattern, body.new_value) for path in body.files]


async def _replace(look: Looker, path: str, old: str, new: str) -> Answer:
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
