"""The image a sandbox is made from: there already, pulled, or built once."""

from __future__ import annotations

import asyncio
import logging
import posixpath
import time
from collections import defaultdict
from pathlib import Path

from sandboxes.contents import FolderDigests
from sandboxes.docker import building
from sandboxes.docker.client import EngineClient
from sandboxes.errors import SandboxError, SandboxImageError, SandboxUnsupportedError
from sandboxes.types import BuildSource, SandboxSource
from sandboxes.values import ImageDefaults

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
            return await building.build_once(self._client, source, self._builds, self._contexts)
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
            if await building.look_at(self._client, image) is None:
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
