"""Provide the image a sandbox is made from: there already, pulled, or built once for each content."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import posixpath
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from sandboxes import scripted_sandbox
from sandboxes.docker.container_config import BUILD, CONTEXT, KIND
from sandboxes.docker.engine import EngineClient, engine_lock, status_of
from sandboxes.errors import SandboxError, SandboxImageError, SandboxUnsupportedError
from sandboxes.folder_contents import LEFTOVERS, Dockerignore, FolderDigests, UnreadableContentError
from sandboxes.protocol import ImageDefaults
from sandboxes.streams import file_pieces, uninterrupted
from sandboxes.types import BuildSource, SandboxSource

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
        if status_of(error) == 404:
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
    async with engine_lock(folder / f"{name}.lock"):
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
        await uninterrupted(
            asyncio.to_thread(scripted_sandbox.pack_context, context, packed, LEFTOVERS, ignore)
        )
        packed.seek(0)
        what = f"build {context}"
        reports = client.progress("build", what=what, query=query, data=file_pieces(packed))
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
        if status_of(error) != 400:
            raise
        raise SandboxImageError(f"cannot build the image of {context}: {error}") from error


def _is_outside(report: Mapping[str, Any]) -> bool:
    """Return whether a build failed for want of a registry, a network or room, and not by itself."""
    if (report.get("errorDetail") or {}).get("code"):
        return False  # a command of its own ended so
    text = str(report["error"]).lower()
    return any(words in text for words in _OUTSIDE)


def _tail(log: Path) -> str:
    try:
        text = log.read_bytes()[-20_000:].decode("utf-8", "replace")
    except OSError:
        return "(none)"
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    return "\n".join(lines[-TAIL_LINES:])


# The image a sandbox is made from: there already, pulled, or built once.

log = logging.getLogger(__name__)

BROKEN_SECONDS = 60.0
"""So long a build that failed by itself is not tried again."""


class Images:
    """Images of one engine; two sandboxes never fetch the same one at once."""

    def __init__(self, client: EngineClient, state_dir: Path, default: str) -> None:
        self._client = client
        self._builds = state_dir / "builds"
        self.default = default
        self._contexts = FolderDigests()
        self._broken: dict[str, tuple[float, str]] = {}
        self._fetching: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def ready(self, source: SandboxSource, pull_timeout: float) -> str:
        """Return the name or id of an image that is there, for that source."""
        if source.type == "build":
            async with self._fetching[source.context]:
                return await self._built(source)
        if source.type == "image":
            return await self.pulled(source.image, pull_timeout)
        if source.type == "host" and source.rootfs is None:
            return await self.pulled(self.default, pull_timeout)
        if source.type == "host":
            raise SandboxUnsupportedError(
                f"provider 'docker' cannot use the folder {source.rootfs} as root; make an image of it with "
                "`tar -C FOLDER -c . | docker import - NAME` and name that"
            )
        raise SandboxUnsupportedError(
            f"provider 'docker' makes no sandboxes from a {source.type}; name an image, "
            "or use --provider daytona"
        )

    async def _built(self, source: BuildSource) -> str:
        """Build the image, unless that has just failed by itself: whoever waited is told the same."""
        key = source.model_dump_json()
        at, known = self._broken.get(key, (0.0, ""))
        if known and time.monotonic() - at < BROKEN_SECONDS:
            raise SandboxImageError(known)
        try:
            return await build_once(self._client, source, self._builds, self._contexts)
        except SandboxImageError as error:
            self._broken[key] = time.monotonic(), str(error)
            raise

    async def defaults(self, image: str, workdir: str) -> tuple[ImageDefaults, tuple[str, ...]]:
        """Return what an image's author chose, with `workdir` for one who chose none, and the names of the
        variables it sets."""
        found = await self._client.call("GET", f"images/{image}/json", what=f"look at image {image}")
        config = found.get("Config") or {}
        names = tuple(str(one).partition("=")[0] for one in config.get("Env") or ())
        chosen = ImageDefaults(
            workdir="/" + posixpath.normpath(f"/{config.get('WorkingDir') or workdir}").lstrip("/"),
            user=str(config.get("User") or "") or None,
            entrypoint=tuple(map(str, config.get("Entrypoint") or ())),
        )
        return chosen, names

    async def pulled(self, image: str, timeout: float) -> str:
        """The image, fetched from its registry when the engine does not have it."""
        async with self._fetching[image]:
            if await look_at(self._client, image) is None:
                try:
                    async with asyncio.timeout(timeout):
                        await self._pull(image)
                except TimeoutError:
                    raise SandboxError(
                        f"image {image} was not fetched within {timeout:.0f} seconds; "
                        "`docker pull` it beforehand"
                    ) from None
        return image

    async def _pull(self, image: str) -> None:
        what = f"fetch image {image}"
        # Without a tag the engine would fetch every one there is.
        named = image if "@" in image or ":" in image.rpartition("/")[2] else f"{image}:latest"
        said = ""
        way_out = "check its name, or make it here with `docker pull`, `docker build` or `docker load`"
        try:
            async for report in self._client.progress("images/create", what=what, query={"fromImage": named}):
                if "error" in report:
                    raise SandboxError(f"cannot {what}: {report['error']}; {way_out}")
                status = f"{report.get('id', '')} {report.get('status', '')}".strip()
                if status != said:
                    log.info("%s: %s", image, said := status)
        except SandboxError as error:
            if error.__cause__ is None:
                raise
            raise SandboxError(f"{error}; {way_out}") from error
