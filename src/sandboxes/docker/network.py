"""Network `public`: a bridge of our own, and a fence around each sandbox on it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from ipaddress import AddressValueError, IPv4Address, IPv4Network
from pathlib import Path
from secrets import token_hex
from typing import Final

from sandboxes.docker.client import EngineClient
from sandboxes.docker.engine import Engine
from sandboxes.docker.locks import locked
from sandboxes.docker.requests import ALLOWED, GUARD, KIND, LABELS, NETWORK_KIND, PUBLIC_NETWORK
from sandboxes.errors import SandboxError, SandboxUnsupportedError
from sandboxes.local.network.routing import ALWAYS_DENIED, host_networks

_LOOPBACK: Final = IPv4Network("127.0.0.0/8")
_NOWHERE: Final = IPv4Network("0.0.0.0/8")
PRIVATE: Final = tuple(
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
                async with locked(self._lock):
                    found = await self._found() or await self._made()
                    for other in found[1:]:
                        await self._remove(other)
        return PUBLIC_NETWORK if self._by_name else found[0]

    async def remove_if_unused(self) -> None:
        """Take the bridge away once nothing is on it."""
        async with self._turn, locked(self._lock):
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
            if getattr(error.__cause__, "status", None) != 409:
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
            if getattr(error.__cause__, "status", None) not in (403, 404, 409, 500):  # in use, or gone
                raise


async def fence(
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
    """What no sandbox may reach, besides the gateway, which the fence finds by itself."""
    own = host_networks() if engine.is_local else set()
    refused = {*ALWAYS_DENIED, *PRIVATE, *own} - {_NOWHERE}
    return sorted(network for network in refused if not network.subnet_of(_LOOPBACK))


def resolvers(engine: Engine) -> list[IPv4Network]:
    """Name servers of the engine's machine, which it asks from inside a container's network. Those of
    another machine are not known here: any private address may be one."""
    if not engine.is_local:
        return sorted(PRIVATE)
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
