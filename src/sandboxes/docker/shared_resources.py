"""Make what containers of one engine share: the public network with its packet filter, and read-only volumes
of our folders."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import socket
import tarfile
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from ipaddress import AddressValueError, IPv4Address, IPv4Network
from pathlib import Path
from secrets import token_hex
from typing import Any, BinaryIO, Final

from sandboxes.docker import files
from sandboxes.docker.container_config import (
    ALLOWED,
    CONTEXT,
    FOLDER_KIND,
    GUARD,
    KIND,
    LABELS,
    MADE,
    NAME,
    NETWORK_KIND,
    OWNER,
    PUBLIC_NETWORK,
)
from sandboxes.docker.engine import Engine, EngineClient, engine_lock, status_of
from sandboxes.errors import SandboxError, SandboxUnsupportedError
from sandboxes.folder_contents import FolderDigests, UnreadableContentError, walk_folder
from sandboxes.local.routes import ALWAYS_DENIED, host_networks
from sandboxes.streams import uninterrupted

_LOOPBACK: Final = IPv4Network("127.0.0.0/8")
_NOWHERE: Final = IPv4Network("0.0.0.0/8")
PRIVATE_NETWORKS: Final = tuple(
    IPv4Network(text)
    for text in (
        "10.0.0.0/8",
        "100.64.0.0/10",  # shared by providers and their customers
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
    )
)
"""Networks that are not the public internet: a sandbox reaches those its request names."""
_RESOLVERS: Final = ("/etc/resolv.conf", "/run/systemd/resolve/resolv.conf")


class PublicNetwork:
    """The bridge of our own on one engine, told by its label and id.

    Engines before 25 may make several networks of one name when asked at once, and then refuse the name for
    good. So it is made under a lock; whoever has another data folder may still make a second one, which does
    no harm: all use the oldest, and others go once nothing is on them.
    """

    def __init__(self, client: EngineClient, engine: Engine, state_dir: Path) -> None:
        self._client = client
        self._by_name = engine.is_podman  # which lets no two networks have one name
        self._lock = state_dir / "network.lock"
        self._turn = asyncio.Lock()

    async def ensure(self) -> str:
        """Return what containers name the bridge by; it is made if it is not there."""
        async with self._turn:
            found = await self._found()
            if len(found) != 1:
                async with engine_lock(self._lock):
                    found = await self._found() or await self._made()
                    for other in found[1:]:
                        await self._remove(other)
        return PUBLIC_NETWORK if self._by_name else found[0]

    async def remove_if_unused(self) -> None:
        """Take the bridge away once nothing is on it."""
        async with self._turn, engine_lock(self._lock):
            for network_id in await self._found():
                await self._remove(network_id)

    async def _found(self) -> list[str]:
        """Return the ids of all bridges of ours, the oldest first."""
        found = await self._client.call(
            "GET",
            "networks",
            what=f"look for network {PUBLIC_NETWORK}",
            query={"filters": json.dumps({"label": [f"{KIND}={NETWORK_KIND}"]})},
        )
        ours = [each for each in found or () if each["Name"] == PUBLIC_NETWORK]
        return [str(each["Id"]) for each in sorted(ours, key=lambda one: (one.get("Created", ""), one["Id"]))]

    async def _made(self) -> list[str]:
        body = {
            "Name": PUBLIC_NETWORK,
            "Driver": "bridge",
            "CheckDuplicate": True,
            "EnableIPv6": False,
            "Options": {"com.docker.network.bridge.enable_icc": "false"},
            "Labels": {KIND: NETWORK_KIND},
        }
        what = f"make network {PUBLIC_NETWORK}"
        try:
            await self._client.call("POST", "networks/create", what=what, body=body)
        except SandboxError as error:
            if status_of(error) != 409:
                raise
            # Somebody with another data folder was first; or it is a stranger's.
            if found := await self._found():
                return found
            raise SandboxUnsupportedError(
                f"the engine has a network {PUBLIC_NETWORK} that is not ours (it lacks the label {KIND}); "
                f"`docker network rm {PUBLIC_NETWORK}` takes it away"
            ) from error
        if found := await self._found():
            return found
        raise SandboxError(f"cannot {what}: it was taken away at once")

    async def _remove(self, network_id: str) -> None:
        try:
            what = f"remove network {PUBLIC_NETWORK}"
            await self._client.call("DELETE", f"networks/{network_id}", what=what)
        except SandboxError as error:
            if status_of(error) not in (403, 404, 409, 500):  # in use, or gone
                raise


async def fence_off(
    client: EngineClient, engine: Engine, container: str, labels: Mapping[str, str], image: str
) -> None:
    """Refuse private networks, the host's own addresses and those of metadata services to a container.

    A container that lives for a moment lays the fence: it shares the network of the other one, not its
    files, which may be an agent's; `labels` are the other one's. What is in the sandbox lacks the privilege
    to take the fence down.
    """
    guard = f"valkyrie-guard-{token_hex(8)}"
    program = Path(__file__).with_name("fence.py").read_text()
    body = {
        "Image": image,
        "User": "0",
        "Entrypoint": ["python3", "-c", program],
        "Cmd": [
            ",".join(map(str, denied(engine))),
            ",".join(map(str, resolvers(engine))),
            labels.get(ALLOWED, ""),
        ],
        "Labels": {KIND: GUARD, LABELS: labels[LABELS]},
        "HostConfig": {
            "NetworkMode": f"container:{container}",
            "CapDrop": ["ALL"],
            "CapAdd": ["NET_ADMIN"],
            "SecurityOpt": ["no-new-privileges"],
            "PidsLimit": 64,
        },
    }
    what = f"fence the network of {container}"
    try:
        await client.call("POST", "containers/create", what=what, query={"name": guard}, body=body)
        await client.call("POST", f"containers/{guard}/start", what=what)
        ended = await client.call("POST", f"containers/{guard}/wait", what=what)
        if ended["StatusCode"] != 0:
            async with client.answer(
                "GET", f"containers/{guard}/logs", what=what, query={"stderr": 1, "tail": 3}
            ) as answer:
                said = (await answer.read()).decode("utf-8", "replace")[-300:]
            raise SandboxError(f"cannot {what}: {' '.join(said.split())}")
    except SandboxError as error:
        if "python3" in str(error) and "executable" in str(error):
            raise SandboxUnsupportedError(
                f"cannot {what}: image {image} has no python3; set docker_image to one that has, or use "
                "network_mode = 'no-network'"
            ) from error
        raise
    finally:
        await client.remove_container(guard)


def denied(engine: Engine) -> list[IPv4Network]:
    """Return what no sandbox may reach, besides the gateway, which the fence finds by itself."""
    own = host_networks() if engine.is_local else set()
    refused = {*ALWAYS_DENIED, *PRIVATE_NETWORKS, *own} - {_NOWHERE}
    return sorted(network for network in refused if not network.subnet_of(_LOOPBACK))


def resolvers(engine: Engine) -> list[IPv4Network]:
    """Name servers of the engine's machine, which it asks from inside a container's network. Those of
    another machine are not known here: any private address may be one."""
    if not engine.is_local:
        return sorted(PRIVATE_NETWORKS)
    found = set()
    for path in _RESOLVERS:
        try:
            lines = Path(path).read_text().splitlines()
        except OSError:
            continue
        for words in map(str.split, lines):
            if len(words) > 1 and words[0] == "nameserver":
                try:
                    found.add(IPv4Network((IPv4Address(words[1]), 32)))
                except AddressValueError:
                    continue
    return sorted(server for server in found if not server.subnet_of(_LOOPBACK))


# Folders of ours that containers see, read-only, as volumes of the engine.
#
# A bind mount would tell its path on this machine to everyone in the container. A volume is named by the
# digest of what is in it and filled once, by whoever comes first. It is never written to again: one whose
# content is not what its name says is removed and filled anew. So a process may be killed at any moment, and
# what it left half filled is found by its digest.

_PLACE = "/valkyrie"
"""Where a volume is in the container it is filled through."""
_POLL_SECONDS = 0.2
_STALE_SECONDS = 120.0
"""So long others wait for whoever fills a volume from another data folder, and may have died of it."""


class FolderVolumes:
    """The volumes of one engine, used from one data folder."""

    def __init__(self, client: EngineClient, engine: Engine, state_dir: Path) -> None:
        self._client = client
        self._is_local = engine.is_local
        self._lock = state_dir / "volumes.lock"
        place = f"{socket.gethostname()} {state_dir.absolute()}"
        self._owner = hashlib.sha256(place.encode("utf-8", "surrogateescape")).hexdigest()[:16]
        self._digests = FolderDigests()
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._marks: dict[str, str] = {}
        """Volumes whose content was seen to be right, and the mark each was made with."""

    async def mount(self, folder: Path, target: str, image: str) -> dict[str, Any]:
        """Return the mount that shows a folder; `image` is any that the engine has."""
        try:
            digest = await asyncio.to_thread(self._digest_of, folder)
        except (OSError, UnreadableContentError) as error:
            raise SandboxUnsupportedError(f"{folder} cannot be shown in a container: {error}") from error
        name = f"valkyrie-{digest[:40]}"
        async with self._turns[name]:
            mark = await self._sound(name, digest)
            if mark is None:
                mark = await self._made(name, digest, folder, image)
            self._marks[name] = mark
        options = {"NoCopy": True}
        return {
            "Type": "volume",
            "Source": name,
            "Target": target,
            "ReadOnly": True,
            "VolumeOptions": options,
        }

    async def are_held(self, mounts: Iterable[Mapping[str, Any]]) -> bool:
        """Return whether a container that was just made holds the very volumes that were looked at.

        The engine makes an empty one in place of one that another process removed in between.
        """
        for mount in mounts:
            labels = _labels_of(await self._inspect(str(mount["Source"])))
            if labels.get(MADE) != self._marks.get(str(mount["Source"])):
                return False
        return True

    async def remove_unused(self) -> None:
        """Remove the volumes no container uses, and what a killed process of this data folder left."""
        async with engine_lock(self._lock):
            await self._clear(OWNER, self._owner)
            found = await self._list("volumes", KIND, FOLDER_KIND)
            for volume in found:
                await self._remove(str(volume["Name"]))

    async def _list(self, path: str, label: str, value: str, **query: int) -> list[dict[str, Any]]:
        filters = json.dumps({"label": [f"{label}={value}"]})
        found = await self._client.call("GET", path, what=f"list {path}", query={"filters": filters, **query})
        listed = found.get("Volumes") if isinstance(found, dict) else found
        return list(listed or ())

    async def _remove(self, name: str) -> bool:
        """Remove a volume; False when a container has it."""
        try:
            await self._client.call("DELETE", f"volumes/{name}", what=f"remove volume {name}")
        except SandboxError as error:
            if status_of(error) == 404:
                return True
            if status_of(error) not in (409, 500):
                raise
            return False
        return True

    async def _inspect(self, name: str) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = await self._client.call(
                "GET", f"volumes/{name}", what=f"look at volume {name}"
            )
        except SandboxError as error:
            if status_of(error) == 404:
                return None
            raise
        return found

    async def _sound(self, name: str, digest: str) -> str | None:
        """Return the mark of a volume that is there with just this content, as far as that is seen here."""
        found = await self._inspect(name)
        labels = _labels_of(found)
        mark = labels.get(MADE)
        if found is None or mark is None or labels.get(CONTEXT) != digest:
            return None
        place = Path(str(found.get("Mountpoint") or "/nowhere"))
        if not (self._is_local and os.access(place, os.R_OK | os.X_OK)):
            return mark if self._marks.get(name) == mark else None
        return mark if await asyncio.to_thread(self._has, place, digest) else None

    def _digest_of(self, folder: Path) -> str:
        return self._digests.known_or_read(folder, tuple(walk_folder(os.fspath(folder), ".", frozenset())))

    def _has(self, folder: Path, digest: str) -> bool:
        try:
            return self._digest_of(folder) == digest
        except (OSError, UnreadableContentError):
            return False

    async def _made(self, name: str, digest: str, folder: Path, image: str) -> str:
        """Fill the volume, unless somebody has by now; return its mark."""
        what = f"put {folder} on the engine"
        async with self._alone(name, image):
            if mark := await self._sound(name, digest):
                return mark
            labels = _labels_of(await self._inspect(name))
            if labels.get(CONTEXT) == digest and await self._reads_back(name, digest, image):
                return labels[MADE]
            if not await self._remove(name):
                raise SandboxError(
                    f"volume {name} of the engine is not what it was made as, and a container uses it; end "
                    f"that and `docker volume rm {name}`"
                )
            mark = token_hex(8)
            body = {"Name": name, "Labels": {KIND: FOLDER_KIND, CONTEXT: digest, MADE: mark}}
            await self._client.call("POST", "volumes/create", what=what, body=body)
            async with self._opened(name, image) as opened:
                with tempfile.TemporaryFile() as packed:
                    await uninterrupted(asyncio.to_thread(_pack, folder, packed))
                    packed.seek(0)
                    await files.put_archive(self._client, opened, _PLACE, packed, what=what)
            if not await self._reads_back(name, digest, image):
                raise SandboxError(f"cannot {what}: volume {name} does not hold what was put into it")
            return mark

    async def _reads_back(self, name: str, digest: str, image: str) -> bool:
        """Return whether a volume has just this content, read through the engine where it cannot be seen
        here."""
        found = await self._inspect(name)
        place = Path(str((found or {}).get("Mountpoint") or "/nowhere"))
        if self._is_local and os.access(place, os.R_OK | os.X_OK):
            return await asyncio.to_thread(self._has, place, digest)
        async with self._opened(name, image) as opened:
            with tempfile.TemporaryFile() as packed:
                async with self._client.answer(
                    "GET", f"containers/{opened}/archive", what=f"read {name}", query={"path": _PLACE}
                ) as answer:
                    async for piece in answer.content.iter_any():
                        packed.write(piece)
                packed.seek(0)
                return await asyncio.to_thread(_holds, packed, digest)

    @asynccontextmanager
    async def _opened(self, name: str, image: str) -> AsyncIterator[str]:
        """A container that has the volume and never runs."""
        async with self._container(f"valkyrie-volume-{token_hex(8)}", image, name, mounted=True) as opened:
            yield opened

    @asynccontextmanager
    async def _alone(self, name: str, image: str) -> AsyncIterator[None]:
        """Be the only one who fills a volume, whatever data folder others have."""
        async with engine_lock(self._lock), AsyncExitStack() as held:
            await self._clear(OWNER, self._owner)
            # No two containers have one name: that is a lock all processes of an engine share.
            since = time.monotonic()
            while True:
                try:
                    await held.enter_async_context(self._container(f"{name}-filling", image, name))
                    break
                except _TakenError:
                    pass
                if time.monotonic() - since > _STALE_SECONDS:
                    await self._clear(NAME, name)
                    since = time.monotonic()
                await asyncio.sleep(_POLL_SECONDS)
            yield

    async def _clear(self, label: str, value: str) -> None:
        """Remove containers that dead processes left: a live one of this data folder has the lock."""
        for left in await self._list("containers/json", label, value, all=1):
            if left["Labels"].get(KIND) == GUARD:
                await self._client.remove_container(str(left["Id"]))

    @asynccontextmanager
    async def _container(
        self, name: str, image: str, volume: str, *, mounted: bool = False
    ) -> AsyncIterator[str]:
        what = f"make container {name}"
        mount = {"Type": "volume", "Source": volume, "Target": _PLACE}
        body = {
            "Image": image,
            "Entrypoint": [_PLACE],
            "Cmd": [],
            "Labels": {KIND: GUARD, LABELS: "{}", OWNER: self._owner, NAME: volume},
            "HostConfig": {"NetworkMode": "none", "Mounts": [mount] if mounted else []},
        }
        try:
            await self._client.call("POST", "containers/create", what=what, query={"name": name}, body=body)
        except SandboxError as error:
            if status_of(error) == 409:
                raise _TakenError(str(error)) from error
            raise
        try:
            yield name
        finally:
            await uninterrupted(self._client.remove_container(name))


class _TakenError(SandboxError):
    """A container of that name is there."""


def _labels_of(found: Mapping[str, Any] | None) -> Mapping[str, str]:
    return (found or {}).get("Labels") or {}


def _pack(folder: Path, packed: BinaryIO) -> None:
    """Pack a folder as it is, but for owners; links keep their words."""

    def owned(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member

    with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as tar:
        tar.add(folder, arcname=".", filter=owned)


def _holds(packed: BinaryIO, digest: str) -> bool:
    """Return whether an archive of a volume, as the engine made it, has this content."""
    with tempfile.TemporaryDirectory(prefix="valkyrie-") as scratch:
        try:
            with tarfile.open(fileobj=packed, mode="r:") as tar:
                tar.extractall(scratch, filter="data")
            top = Path(scratch) / _PLACE.lstrip("/")
            entries = tuple(walk_folder(os.fspath(top), ".", frozenset()))
            return FolderDigests().known_or_read(top, entries) == digest
        except (OSError, tarfile.TarError, UnreadableContentError):
            return False
