"""Which paths of a container differ from its image.

Engines can tell, but compare sizes and times: a file that was replaced by one of the same size and age goes
unseen. Where containers are kept in overlays their upper layer is looked at instead, which has every path
that was written to: from here if its folder can be read, else by a container that lives for a moment.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import posixpath
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from secrets import token_hex
from typing import Any, Final

from sandboxes.difference import KERNEL_FOLDERS
from sandboxes.docker import overlay_walk
from sandboxes.docker.client import EngineClient
from sandboxes.docker.engine import Engine
from sandboxes.docker.requests import GUARD, KIND, LABELS
from sandboxes.errors import SandboxError
from sandboxes.threads import uninterrupted
from sandboxes.work import ChangeKind, is_below

log = logging.getLogger(__name__)

_KINDS: Final[Mapping[str, ChangeKind]] = {"a": "added", "c": "changed", "r": "removed"}
_API_KINDS: Final[tuple[ChangeKind, ...]] = ("changed", "added", "removed")
_ENGINE_FILES: Final = frozenset(
    {"/.dockerenv", "/etc/hostname", "/etc/hosts", "/etc/mtab", "/etc/resolv.conf"}
)
_OUTPUT_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class Found:
    """One path that differs. `what` is f, d, l or o for files, folders, links and others; empty if it is
    gone or unknown."""

    path: str
    kind: ChangeKind
    what: str = ""


@dataclass(frozen=True)
class Listing:
    """All paths of a container that differ, folders before what is in them."""

    found: Mapping[str, Found]
    is_exact: bool
    """Whether a change that keeps a file's size and times is seen."""
    cut_short: bool = False

    @cached_property
    def made_folders(self) -> frozenset[str]:
        """Added paths: all that is below one of them was added as well."""
        return frozenset(path for path, one in self.found.items() if one.kind == "added")

    def is_added(self, path: str) -> bool:
        """Whether the path, or a folder it is in, was added."""
        return path in self.made_folders or any(above in self.made_folders for above in folders_above(path))


def folders_above(path: str) -> Iterator[str]:
    """Yield the folders a path is in, the nearest first, without the root."""
    while (path := posixpath.dirname(path)).strip("/"):
        yield path


class Listings:
    """Looks at the containers of one engine; `image` has a python3."""

    def __init__(self, client: EngineClient, engine: Engine, image: str) -> None:
        self._client = client
        self._engine = engine
        self._image = image

    async def of(self, container: Mapping[str, Any]) -> Listing:
        """Return what differs in a container, by the engine's description of it."""
        name = str(container["Name"]).lstrip("/")
        mounted = mounts_of(container)
        graph = (container.get("GraphDriver") or {}).get("Data") or {}
        upper, lowers = str(graph.get("UpperDir") or ""), str(graph.get("LowerDir") or "").split(":")
        records: list[Found] | None = None
        if upper and all(lowers):
            records = await self._walked(upper, lowers, container)
        exact = records is not None
        if records is None:
            records = await self._told(name)
        found = {one.path: one for one in records if not _is_apart(one, mounted)}
        return Listing(found, exact, cut_short=len(records) >= overlay_walk.MOST)

    async def _walked(
        self, upper: str, lowers: list[str], container: Mapping[str, Any]
    ) -> list[Found] | None:
        if self._engine.is_local and os.access(upper, os.R_OK | os.X_OK):
            return await uninterrupted(asyncio.to_thread(_walk_here, upper, lowers))
        try:
            return await self._walk_there(upper, lowers, container)
        except SandboxError as error:
            log.warning("the engine tells what changed, for its layers cannot be looked at: %s", error)
            return None

    async def _walk_there(self, upper: str, lowers: list[str], container: Mapping[str, Any]) -> list[Found]:
        """Have a container list the layers, which are shown to it read-only."""
        top = posixpath.commonpath([upper, *lowers])
        guard = f"valkyrie-guard-{token_hex(8)}"
        what = f"look at the layers of {str(container['Name']).lstrip('/')}"
        labels = (container["Config"].get("Labels") or {}).get(LABELS, "{}")
        body = {
            "Image": self._image,
            "User": "0",
            "Entrypoint": ["python3", "-c", Path(overlay_walk.__file__).read_text()],
            "Cmd": [upper, *lowers],
            "Labels": {KIND: GUARD, LABELS: labels},
            "HostConfig": {
                "NetworkMode": "none",
                "Binds": [f"{top}:{top}:ro"],
                "CapDrop": ["ALL"],
                # Marks of overlays are read by those only that may mount them.
                "CapAdd": ["DAC_READ_SEARCH", "DAC_OVERRIDE", "SYS_ADMIN"],
                "SecurityOpt": ["no-new-privileges"],
                "PidsLimit": 64,
                "LogConfig": {"Type": "json-file", "Config": {}},
            },
        }
        call = self._client.call
        try:
            await call("POST", "containers/create", what=what, query={"name": guard}, body=body)
            await call("POST", f"containers/{guard}/start", what=what)
            ended = await call("POST", f"containers/{guard}/wait", what=what)
            out, said = await self._output(guard, what)
            if ended["StatusCode"] != 0:
                raise SandboxError(f"cannot {what}: {said.decode('utf-8', 'replace')[-300:]}")
        finally:
            await self._client.remove_container(guard)
        records = (record for record in out.decode("utf-8", "surrogateescape").split("\0") if record)
        return [
            Found(path, _KINDS[head[0]], head[1:])
            for head, _, path in (record.partition(" ") for record in records)
        ]

    async def _output(self, container: str, what: str) -> tuple[bytes, bytes]:
        """Return what a container has printed: frames with a stream's number and a length before each."""
        query = {"stdout": 1, "stderr": 1}
        streams = {1: bytearray(), 2: bytearray()}
        async with self._client.answer(
            "GET", f"containers/{container}/logs", what=what, query=query
        ) as answer:
            body = await answer.content.read(_OUTPUT_BYTES)
            while len(body) < _OUTPUT_BYTES and (more := await answer.content.read(_OUTPUT_BYTES)):
                body += more
        at = 0
        while at + 8 <= len(body):
            size = int.from_bytes(body[at + 4 : at + 8], "big")
            streams.setdefault(body[at], bytearray()).extend(body[at + 8 : at + 8 + size])
            at += 8 + size
        return bytes(streams[1]), bytes(streams[2])

    async def _told(self, name: str) -> list[Found]:
        """Ask the engine, which names a folder as changed for what changed in it as well."""
        what = f"list what changed in {name}"
        records: list[Found] = []
        async with self._client.answer("GET", f"containers/{name}/changes", what=what) as answer:
            async for item in _items(answer.content.iter_any()):
                records.append(Found(str(item["Path"]), _API_KINDS[int(item["Kind"])]))
                if len(records) >= overlay_walk.MOST:
                    break
        parents = {posixpath.dirname(one.path) for one in records}
        kept = [one for one in records if not (one.kind == "changed" and one.path in parents)]
        gone = {one.path for one in kept if one.kind == "removed"}
        inner = {one.path for one in kept if any(above in gone for above in folders_above(one.path))}
        kept = [one for one in kept if one.path not in inner or one.kind != "removed"]
        return sorted(kept, key=lambda one: one.path.split("/"))


def _walk_here(upper: str, lowers: Iterable[str]) -> list[Found]:
    walked = overlay_walk.walk(upper, list(lowers))
    return [
        Found(path, _KINDS[kind], what) for kind, what, path in itertools.islice(walked, overlay_walk.MOST)
    ]


async def _items(chunks: AsyncIterator[bytes]) -> AsyncIterator[dict[str, Any]]:
    """Yield the objects of a JSON list as they come."""
    decoder = json.JSONDecoder()
    held = b""
    async for chunk in chunks:
        held += chunk
        # No byte of a longer UTF-8 character is a brace: what ends with one is whole text.
        at = held.rfind(b"}") + 1
        text, held = held[:at].decode("utf-8", "replace"), held[at:]
        place = 0
        while (place := text.find("{", place)) >= 0:
            try:
                item, place = decoder.raw_decode(text, place)
            except ValueError:  # the brace was in a name
                held = text[place:].encode() + held
                break
            yield item


def _is_apart(one: Found, mounted: frozenset[str]) -> bool:
    """Whether the engine made it by itself: where things are mounted, and the folders above that."""
    if one.path in mounted or any(above in mounted for above in folders_above(one.path)):
        return True
    return one.kind == "added" and any(is_below(place, one.path) for place in mounted)


def mounts_of(container: Mapping[str, Any]) -> frozenset[str]:
    """Return the paths of a container that are not files of its own."""
    mounted = {posixpath.normpath(str(mount["Destination"])) for mount in container.get("Mounts") or ()}
    return frozenset(mounted | KERNEL_FOLDERS | _ENGINE_FILES)


def workdir_of(container: Mapping[str, Any]) -> str:
    """Return the folder commands start in, which the engine makes when the image lacks it."""
    return posixpath.normpath(str(container["Config"].get("WorkingDir") or "/"))
