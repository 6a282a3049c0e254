"""List which paths of a container differ from its image, and fetch chosen ones as the engine packs them."""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import logging
import os
import posixpath
import tarfile
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from secrets import token_hex
from typing import Any, Final, Protocol

from sandboxes.docker import overlay_walk
from sandboxes.docker.container_config import GUARD, KIND, LABELS
from sandboxes.docker.engine import Engine, EngineClient
from sandboxes.errors import SandboxError, SandboxNotFoundError
from sandboxes.protocol import ChangeKind, is_below
from sandboxes.streams import feed, uninterrupted
from sandboxes.work import KERNEL_FOLDERS

log = logging.getLogger(__name__)

_KINDS: Final[Mapping[str, ChangeKind]] = {"a": "added", "c": "changed", "r": "removed"}
_API_KINDS: Final[tuple[ChangeKind, ...]] = ("changed", "added", "removed")
_ENGINE_FILES: Final = frozenset(
    {"/.dockerenv", "/etc/hostname", "/etc/hosts", "/etc/mtab", "/etc/resolv.conf"}
)
_OUTPUT_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class ContainerChange:
    """One path that differs. `what` is f, d, l or o for files, folders, links and others; empty if it is
    gone or unknown."""

    path: str
    kind: ChangeKind
    what: str = ""


@dataclass(frozen=True)
class ContainerListing:
    """All paths of a container that differ, folders before what is in them."""

    found: Mapping[str, ContainerChange]
    is_exact: bool
    """Whether a change that keeps a file's size and times is seen."""
    cut_short: bool = False

    @cached_property
    def made_folders(self) -> frozenset[str]:
        """Added paths: all that is below one of them was added as well."""
        return frozenset(path for path, one in self.found.items() if one.kind == "added")

    def is_added(self, path: str) -> bool:
        """Return whether the path, or a folder it is in, was added."""
        return path in self.made_folders or any(above in self.made_folders for above in folders_above(path))


def folders_above(path: str) -> Iterator[str]:
    """Yield the folders a path is in, the nearest first, without the root."""
    while (path := posixpath.dirname(path)).strip("/"):
        yield path


class ContainerListings:
    """Looks at the containers of one engine; `image` has a python3."""

    def __init__(self, client: EngineClient, engine: Engine, image: str) -> None:
        self._client = client
        self._engine = engine
        self._image = image

    async def of(self, container: Mapping[str, Any]) -> ContainerListing:
        """Return what differs in a container, by the engine's description of it."""
        name = str(container["Name"]).lstrip("/")
        mounted = mounts_of(container)
        graph = (container.get("GraphDriver") or {}).get("Data") or {}
        upper, lowers = str(graph.get("UpperDir") or ""), str(graph.get("LowerDir") or "").split(":")
        records: list[ContainerChange] | None = None
        if upper and all(lowers):
            records = await self._walked(upper, lowers, container)
        exact = records is not None
        if records is None:
            records = await self._told(name)
        found = {one.path: one for one in records if not _is_apart(one, mounted)}
        return ContainerListing(found, exact, cut_short=len(records) >= overlay_walk.MOST)

    async def _walked(
        self, upper: str, lowers: list[str], container: Mapping[str, Any]
    ) -> list[ContainerChange] | None:
        if self._engine.is_local and os.access(upper, os.R_OK | os.X_OK):
            return await uninterrupted(asyncio.to_thread(_walk_here, upper, lowers))
        try:
            return await self._walk_there(upper, lowers, container)
        except SandboxError as error:
            log.warning("the engine tells what changed, for its layers cannot be looked at: %s", error)
            return None

    async def _walk_there(
        self, upper: str, lowers: list[str], container: Mapping[str, Any]
    ) -> list[ContainerChange]:
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
            ContainerChange(path, _KINDS[head[0]], head[1:])
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

    async def _told(self, name: str) -> list[ContainerChange]:
        """Ask the engine, which names a folder as changed for what changed in it as well."""
        what = f"list what changed in {name}"
        records: list[ContainerChange] = []
        async with self._client.answer("GET", f"containers/{name}/changes", what=what) as answer:
            async for item in _items(answer.content.iter_any()):
                records.append(ContainerChange(str(item["Path"]), _API_KINDS[int(item["Kind"])]))
                if len(records) >= overlay_walk.MOST:
                    break
        parents = {posixpath.dirname(one.path) for one in records}
        kept = [one for one in records if not (one.kind == "changed" and one.path in parents)]
        gone = {one.path for one in kept if one.kind == "removed"}
        inner = {one.path for one in kept if any(above in gone for above in folders_above(one.path))}
        kept = [one for one in kept if one.path not in inner or one.kind != "removed"]
        return sorted(kept, key=lambda one: one.path.split("/"))


def _walk_here(upper: str, lowers: Iterable[str]) -> list[ContainerChange]:
    walked = overlay_walk.walk(upper, list(lowers))
    return [
        ContainerChange(path, _KINDS[kind], what)
        for kind, what, path in itertools.islice(walked, overlay_walk.MOST)
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


def _is_apart(one: ContainerChange, mounted: frozenset[str]) -> bool:
    """Return whether the engine made it by itself: where things are mounted, and the folders above that."""
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


# Chosen files and folders out of a container, as the engine packs them: no program of the image is run.
#
# Each request for an archive costs the engine a tenth of a second. So what lies close together is fetched
# with the folder it is in, and the rest of the folder is passed over; where that turns out to be much, the
# entries of the folder are fetched one by one.

MERGED_AT: Final = 3
"""More requests than that in one folder become one."""
MOST_PASSED_OVER: Final = 64 << 20
MOST_REQUESTS: Final = 3000
_NEVER_WHOLE: Final = frozenset({"/", "/usr", "/var", "/lib", "/opt", "/etc", "/home", "/root"})
_BUFFER_BYTES: Final = 1 << 18


class MemberReceiver(Protocol):
    """Takes the members that are wanted. Called in a thread."""

    def wants(self, path: str) -> bool:
        """Return whether the entry at that path is to be taken, if it is there."""

    def take(self, path: str, member: tarfile.TarInfo, content: io.BufferedIOBase | None) -> bool:
        """Take a member, a hard link with the path it leads to; False when its content was not read."""


@dataclass(slots=True)
class WantedMembers:
    """Paths that are to be fetched. `whole` are those below which everything is wanted."""

    paths: set[str]
    whole: Collection[str] = ()
    single: set[str] = field(default_factory=set)
    """Folders that were found to hold too much else."""

    def requests(self) -> list[tuple[str, bool]]:
        """Return what to ask for, in order: a path, and whether with all that is below it."""
        below: defaultdict[str, list[tuple[str, bool]]] = defaultdict(list)
        nodes = {above for path in self.paths for above in folders_above(path)} | self.paths
        for path in sorted(nodes, key=lambda one: (-one.count("/"), one)):
            inner = below.pop(path, [])
            above = path.rpartition("/")[0]
            merges = len(inner) > MERGED_AT and path not in _NEVER_WHOLE
            if path not in self.single and (merges or (path in self.paths and path in self.whole)):
                below[above].append((path, True))
            else:
                below[above] += ([(path, False)] if path in self.paths else []) + inner
        return sorted(below[""])


async def fetch_members(
    client: EngineClient, container: str, wanted: WantedMembers, taker: MemberReceiver
) -> list[str]:
    """Hand all wanted members to the taker; the paths that were not there, or could not be asked for."""
    missing: list[str] = []
    asked = 0
    while wanted.paths:
        requests = wanted.requests()
        for path, deep in requests:
            asked += 1
            if asked > MOST_REQUESTS:
                missing += sorted(wanted.paths)
                return missing
            stream = _MemberStream(path, deep, wanted, taker)
            if not await _ask_for_member(client, container, path, stream):
                missing.append(path)
                wanted.paths.discard(path)
            elif stream.too_much:
                # What was not fetched yet is asked for anew, without merging this folder.
                wanted.single.add(path)
                break
            elif deep:
                gone = {one for one in wanted.paths if one == path or one.startswith(f"{path}/")}
                missing += sorted(gone)
                wanted.paths -= gone
            else:
                wanted.paths.discard(path)
    return missing


async def _ask_for_member(client: EngineClient, container: str, path: str, stream: _MemberStream) -> bool:
    """Return whether there was something at the path."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False  # requests are text
    what = f"read {path} in {container}"
    try:
        async with client.answer(
            "GET", f"containers/{container}/archive", what=what, query={"path": path}
        ) as answer:
            await feed(answer.content.iter_any(), stream.read)
    except SandboxNotFoundError as error:
        lower = str(error).lower()
        if "no such container" in lower and "could not find the file" not in lower:
            raise
        return False
    return True


class _MemberStream:
    """Reads one archive of the engine; the members of it that are wanted go to the taker."""

    def __init__(self, root: str, deep: bool, wanted: WantedMembers, taker: MemberReceiver) -> None:
        self._root = root
        self._deep = deep
        self._wanted = wanted
        self._taker = taker
        self._passed_over = 0
        self.too_much = False

    def read(self, chunks: Iterable[bytes]) -> None:
        source: Any = _Chunks(iter(chunks))
        try:
            with tarfile.open(
                fileobj=source, mode="r|", bufsize=_BUFFER_BYTES, errors="surrogateescape"
            ) as tar:
                for member in self._members(tar):
                    path = self._path(member)
                    if self._wants(path) and self._take(tar, path, member):
                        self._wanted.paths.discard(path)
                    else:
                        self._passed_over += member.size
                    if not self._deep:
                        return
                    if self._passed_over > MOST_PASSED_OVER:
                        self.too_much = True
                        return
                    tar.members = []  # type: ignore[attr-defined] # it would keep all of them
        except (tarfile.TarError, EOFError) as error:
            raise SandboxError(f"cannot read what the engine packed of {self._root}: {error}") from error

    def _members(self, tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
        while (member := tar.next()) is not None:
            yield member

    def _path(self, member: tarfile.TarInfo) -> str:
        return self._absolute(member.name)

    def _absolute(self, name: str) -> str:
        """The path of a member; the engine calls them by the last name of what was asked for."""
        rest = name.strip("/").partition("/")[2]
        return f"{self._root}/{rest}" if rest else self._root

    def _wants(self, path: str) -> bool:
        if path in self._wanted.paths:
            return True
        # Names that are not UTF-8 are not told by every engine.
        return any(above in self._wanted.whole for above in folders_above(path)) and self._taker.wants(path)

    def _take(self, tar: tarfile.TarFile, path: str, member: tarfile.TarInfo) -> bool:
        if member.islnk():
            member.linkname = self._absolute(member.linkname)
        content = tar.extractfile(member) if member.isreg() else None
        taken = self._taker.take(path, member, content)  # type: ignore[arg-type]
        if not taken:
            self._wanted.paths.discard(path)
        return taken


class _Chunks(io.RawIOBase):
    """Chunks of any size as a file."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._held = b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        found = bytearray()
        while size < 0 or len(found) < size:
            if not self._held:
                self._held = next(self._chunks, b"")
                if not self._held:
                    break
            take = len(self._held) if size < 0 else size - len(found)
            found += self._held[:take]
            self._held = self._held[take:]
        return bytes(found)
