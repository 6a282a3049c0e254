"""Links of an image, read without running anything of it."""

from __future__ import annotations

import asyncio
import io
import tarfile
from collections.abc import Callable, Mapping
from secrets import token_hex
from typing import Final

from sandboxes.docker import files
from sandboxes.docker.client import EngineClient
from sandboxes.docker.requests import GUARD, KIND, LABELS
from sandboxes.errors import SandboxError
from sandboxes.links import Links
from sandboxes.work import CarryRules

_CACHED: Final = 20_000
_MOST_ASKED: Final = 2000
"""Names looked up in an image for one archive."""


class ImageLinks:
    """The links of one engine's images, remembered. A container that is never started shows an image."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self._known: dict[tuple[str, str], str | None] = {}

    async def forbidden(
        self,
        image: str,
        links: Mapping[str, str],
        rules: CarryRules,
        is_work: Callable[[str], bool],
    ) -> set[str]:
        """Return those of the links, given by path and text, that lead to places the rules forbid.

        `is_work` says of a path that it is not what the image has there.
        """
        look = _Look(self, image, links, is_work, asyncio.get_running_loop())
        try:
            return await asyncio.to_thread(look.forbidden, rules)
        finally:
            if look.container is not None:
                await self._client.remove_container(look.container)

    async def read(self, image: str, path: str, look: _Look) -> str | None:
        """Return the text of the image's link at `path`, or None where none is."""
        key = image, path
        if key not in self._known:
            if look.container is None:
                look.container = await self._show(image)
            if len(self._known) >= _CACHED:
                self._known.clear()
            self._known[key] = await self._ask(look.container, path)
        return self._known[key]

    async def _show(self, image: str) -> str:
        name = f"valkyrie-guard-{token_hex(8)}"
        body = {
            "Image": image,
            "Entrypoint": ["/none"],
            "Labels": {KIND: GUARD, LABELS: "{}"},
            "HostConfig": {"NetworkMode": "none"},
        }
        what = f"look at the links of {image}"
        await self._client.call("POST", "containers/create", what=what, query={"name": name}, body=body)
        return name

    async def _ask(self, container: str, path: str) -> str | None:
        found = await files.look(self._client, container, path)
        if found is None or not found.is_link:
            return None
        what = f"read the link {path}"
        async with self._client.answer(
            "GET", f"containers/{container}/archive", what=what, query={"path": path}
        ) as answer:
            packed = io.BytesIO(await answer.content.read(files.PIECE_BYTES))
        try:
            with tarfile.open(fileobj=packed, errors="surrogateescape") as tar:
                member = tar.next()
        except tarfile.TarError as error:
            raise SandboxError(f"cannot {what}: {error}") from error
        return member.linkname if member is not None and member.issym() else None


class _Look(Links):
    """Links of packed work over those of an image. Works in a thread, asks in the loop."""

    def __init__(
        self,
        images: ImageLinks,
        image: str,
        links: Mapping[str, str],
        is_work: Callable[[str], bool],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(root_fd=-1)
        self._images = images
        self._image = image
        self._links = links
        self._is_work = is_work
        self._loop = loop
        self._asked = 0
        self.container: str | None = None

    def forbidden(self, rules: CarryRules) -> set[str]:
        return {path for path, text in self._links.items() if self.is_forbidden(path, text, rules)}

    def _read(self, parts: list[str], name: str) -> str | None:
        path = "/" + "/".join((*parts, name))
        if path in self._links:
            return self._links[path]
        if self._is_work(path):
            return None
        try:
            path.encode()
        except UnicodeEncodeError:
            return None
        self._asked += 1
        if self._asked > _MOST_ASKED:
            self._steps_left = 0  # every further way is taken to lead to `/`
            return None
        asked = asyncio.run_coroutine_threadsafe(self._images.read(self._image, path, self), self._loop)
        return asked.result()
