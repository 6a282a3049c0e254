"""Building an image from a folder: once for each digest, whoever asks, with a log of its own."""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import BinaryIO

from sandboxes.docker.client import EngineClient
from sandboxes.docker.requests import BUILD, KIND
from sandboxes.errors import SandboxError, SandboxUnsupportedError
from sandboxes.scripted import archives
from sandboxes.threads import uninterrupted
from sandboxes.types import BuildSource

REPOSITORY = "valkyrie-build"
LOG_BYTES = 8 << 20
"""How much of a build's output is kept."""
TAIL_LINES = 15
_LOCK_SECONDS = 0.2
"""Between looks at a lock another process holds: the kernel tells nobody when it is free."""
_DIGEST = re.compile(r"[A-Za-z0-9_.-]{8,128}")


def tag_of(source: BuildSource) -> str:
    """What the image of a folder is called. The engine gives the name when the build is whole."""
    digest = source.digest.rpartition(":")[2]
    if not _DIGEST.fullmatch(digest):
        raise SandboxError(f"{source.digest!r} is no digest to build under")
    return f"{REPOSITORY}:{digest}"


async def exists(client: EngineClient, image: str) -> bool:
    """Whether the engine has the image."""
    try:
        await client.call("GET", f"images/{image}/json", what=f"look for image {image}")
    except SandboxError as error:
        if getattr(error.__cause__, "status", None) == 404:
            return False
        raise
    return True


async def build_once(client: EngineClient, source: BuildSource, folder: Path) -> str:
    """The image of that folder, built if no one has yet; `folder` keeps locks and logs."""
    tag = tag_of(source)
    if await exists(client, tag):
        return tag
    name = tag.replace(":", "-")
    async with _locked(folder, folder / f"{name}.lock"):
        if not await exists(client, tag):
            try:
                async with asyncio.timeout(source.timeout):
                    await _build(client, source, tag, folder / f"{name}.log")
            except TimeoutError:
                tail = _tail(folder / f"{name}.log")
                raise SandboxError(
                    f"building {source.context} took longer than {source.timeout:.0f} seconds; give it more "
                    f"with build_timeout_sec. Its last lines:\n{tail}"
                ) from None
    return tag


async def _build(client: EngineClient, source: BuildSource, tag: str, log: Path) -> None:
    context = Path(source.context)
    if not (context / source.dockerfile).is_file():
        raise SandboxUnsupportedError(f"cannot build {context}: it has no {source.dockerfile}")
    query: dict[str, str | int] = {
        "t": tag,
        "dockerfile": source.dockerfile,
        "forcerm": 1,
        "labels": f'{{"{KIND}": "{BUILD}"}}',
    }
    with tempfile.TemporaryFile() as packed, log.open("wb") as out:
        await uninterrupted(asyncio.to_thread(archives.pack, context, packed))
        packed.seek(0)
        what = f"build {context}"
        reports = client.progress("build", what=what, query=query, data=_pieces(packed))
        async for report in reports:
            text = str(report.get("stream") or report.get("error") or report.get("status") or "")
            if out.tell() < LOG_BYTES:
                out.write(text.encode() if text.endswith("\n") else f"{text}\n".encode())
                out.flush()
            if "error" in report:
                raise SandboxError(
                    f"cannot build the image of {context}: {report['error']}. "
                    f"The log is {log}; its last lines:\n{_tail(log)}"
                )
    if not await exists(client, tag):
        raise SandboxError(f"building {context} ended without an image. Its last lines:\n{_tail(log)}")


async def _pieces(packed: BinaryIO) -> AsyncIterator[bytes]:
    while piece := await asyncio.to_thread(packed.read, 1 << 20):
        yield piece


def _tail(log: Path) -> str:
    try:
        text = log.read_bytes()[-20_000:].decode("utf-8", "replace")
    except OSError:
        return "(none)"
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    return "\n".join(lines[-TAIL_LINES:])


@asynccontextmanager
async def _locked(folder: Path, path: Path) -> AsyncIterator[None]:
    """Hold a lock that ends with this process, however it ends."""
    folder.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(_LOCK_SECONDS)
        yield
    finally:
        os.close(fd)
