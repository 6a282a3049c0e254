"""Building an image from a folder: once for each content, whoever asks, with a log of its own.

The tag of an image is the digest of the folder as it is read here, never a word of the request: a request
that names a folder and another digest is refused, and an image without our label for it is built again.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import tempfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from sandboxes.contents import LEFTOVERS, FolderDigests, UnreadableContentError
from sandboxes.docker.client import EngineClient
from sandboxes.docker.locks import locked
from sandboxes.docker.requests import BUILD, CONTEXT, KIND
from sandboxes.dockerignore import Dockerignore
from sandboxes.errors import SandboxError, SandboxImageError, SandboxUnsupportedError
from sandboxes.scripted import archives
from sandboxes.threads import uninterrupted
from sandboxes.types import BuildSource

REPOSITORY = "valkyrie-build"
LOG_BYTES = 8 << 20
"""How much of a build's output is kept."""
TAIL_LINES = 15
DOCKERFILE = "Dockerfile"
_OUTSIDE = (
    *("dial tcp", "i/o timeout", "tls handshake", "no such host", "connection refused", "connection reset"),
    *("proxyconnect", "server misbehaving", "temporary failure", "toomanyrequests", "too many requests"),
    *("service unavailable", "bad gateway", "gateway time", "internal server error", "unexpected eof"),
    *("no space left", "context canceled", "deadline exceeded", "request canceled"),
)
"""Words by which engines tell that a base image could not be fetched this time, or kept."""


def tag_of(digest: str) -> str:
    """Return what the image of a folder is called. The engine gives the name when the build is whole."""
    return f"{REPOSITORY}:{digest}"


def context_digest(source: BuildSource, digests: FolderDigests) -> str:
    """Return the digest an image of `source` is kept under. Raises SandboxError for another than it names."""
    context = Path(source.context)
    if not (context / source.dockerfile).is_file():
        raise SandboxUnsupportedError(f"cannot build {context}: it has no {source.dockerfile}")
    try:
        found = digests.whole(context)
    except UnreadableContentError as error:
        raise SandboxUnsupportedError(f"cannot build {context}: {error}") from error
    if source.digest.removeprefix("sha256:") != found:
        raise SandboxUnsupportedError(
            f"cannot build {context}: its content is not what was planned (digest {found[:12]}, planned "
            f"{source.digest.removeprefix('sha256:')[:12]!r}); restore its files, or start a new run"
        )
    if source.dockerfile == DOCKERFILE:
        return found
    return hashlib.sha256(f"{source.dockerfile}\n{found}".encode()).hexdigest()


async def look_at(client: EngineClient, image: str) -> dict[str, Any] | None:
    """Return what the engine says of an image, or None where it has none of that name."""
    try:
        found: dict[str, Any] = await client.call(
            "GET", f"images/{image}/json", what=f"look for image {image}"
        )
    except SandboxError as error:
        if getattr(error.__cause__, "status", None) == 404:
            return None
        raise
    return found


async def build_once(client: EngineClient, source: BuildSource, folder: Path, digests: FolderDigests) -> str:
    """Return the id of the folder's image, built if nobody has yet; `folder` keeps locks and logs."""
    digest = await asyncio.to_thread(context_digest, source, digests)
    tag = tag_of(digest)
    if image := await _built(client, digest):
        return image
    name = tag.replace(":", "-")
    async with locked(folder / f"{name}.lock"):
        if image := await _built(client, digest):
            return image
        try:
            async with asyncio.timeout(source.timeout):
                await _build(client, source, digest, folder / f"{name}.log")
        except TimeoutError:
            tail = _tail(folder / f"{name}.log")
            raise SandboxError(
                f"building {source.context} took longer than {source.timeout:.0f} seconds; give it more "
                f"with build_timeout_sec. Its last lines:\n{tail}"
            ) from None
        if await asyncio.to_thread(context_digest, source, digests) != digest:
            raise SandboxUnsupportedError(f"{source.context} changed while its image was built; start again")
        image = await _built(client, digest)
    if image is None:
        tail = _tail(folder / f"{name}.log")
        raise SandboxError(f"building {source.context} ended without an image. Its last lines:\n{tail}")
    return image


async def _built(client: EngineClient, digest: str) -> str | None:
    """Return the id of the image that was built from a context of this digest."""
    found = await look_at(client, tag_of(digest))
    labels = ((found or {}).get("Config") or {}).get("Labels") or {}
    return str(found["Id"]) if found and labels.get(CONTEXT) == digest else None


async def _build(client: EngineClient, source: BuildSource, digest: str, log: Path) -> None:
    context = Path(source.context)
    query: dict[str, str | int] = {
        "t": tag_of(digest),
        "dockerfile": source.dockerfile,
        "forcerm": 1,
        "labels": json.dumps({KIND: BUILD, CONTEXT: digest}),
    }
    with tempfile.TemporaryFile() as packed, log.open("wb") as out:
        ignore = await asyncio.to_thread(Dockerignore.of, context, source.dockerfile)
        await uninterrupted(asyncio.to_thread(archives.pack_context, context, packed, LEFTOVERS, ignore))
        packed.seek(0)
        what = f"build {context}"
        reports = client.progress("build", what=what, query=query, data=_pieces(packed))
        async for report in _read_by(reports, context):
            text = str(report.get("stream") or report.get("error") or report.get("status") or "")
            if out.tell() < LOG_BYTES:
                out.write(text.encode() if text.endswith("\n") else f"{text}\n".encode())
                out.flush()
            if "error" in report:
                kind = SandboxError if _is_outside(report) else SandboxImageError
                raise kind(
                    f"cannot build the image of {context}: {report['error']}. "
                    f"The log is {log}; its last lines:\n{_tail(log)}"
                )


async def _read_by(reports: AsyncIterator[dict[str, Any]], context: Path) -> AsyncIterator[dict[str, Any]]:
    """Yield the reports of a builder that could read the Dockerfile."""
    try:
        async for report in reports:
            yield report
    except SandboxError as error:
        if getattr(error.__cause__, "status", None) != 400:
            raise
        raise SandboxImageError(f"cannot build the image of {context}: {error}") from error


def _is_outside(report: Mapping[str, Any]) -> bool:
    """Whether a build failed for want of a registry, a network or room, and not by itself."""
    if (report.get("errorDetail") or {}).get("code"):
        return False  # a command of its own ended so
    text = str(report["error"]).lower()
    return any(words in text for words in _OUTSIDE)


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
