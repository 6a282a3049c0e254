"""The image a sandbox is made from: there already, pulled, or built once."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from pathlib import Path

from sandboxes.contents import FolderDigests
from sandboxes.docker import building
from sandboxes.docker.client import EngineClient
from sandboxes.errors import SandboxError, SandboxUnsupportedError
from sandboxes.types import SandboxSource

log = logging.getLogger(__name__)


class Images:
    """Images of one engine; two sandboxes never fetch the same one at once."""

    def __init__(self, client: EngineClient, state_dir: Path, default: str) -> None:
        self._client = client
        self._builds = state_dir / "builds"
        self.default = default
        self._contexts = FolderDigests()
        self._fetching: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def ready(self, source: SandboxSource, pull_timeout: float) -> str:
        """Return the name or id of an image that is there, for that source."""
        if source.type == "build":
            async with self._fetching[source.context]:
                return await building.build_once(self._client, source, self._builds, self._contexts)
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

    async def defaults(self, image: str) -> tuple[str, str, tuple[str, ...]]:
        """Return the folder and the user its author chose for commands, empty where there is none, and the
        names of the variables it sets."""
        found = await self._client.call("GET", f"images/{image}/json", what=f"look at image {image}")
        config = found.get("Config") or {}
        names = tuple(str(one).partition("=")[0] for one in config.get("Env") or ())
        return str(config.get("WorkingDir") or ""), str(config.get("User") or ""), names

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
