"""Network `public`: a bridge of our own, and a fence around each sandbox on it."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import AddressValueError, IPv4Address, IPv4Network
from pathlib import Path
from secrets import token_hex
from typing import Final

from sandboxes.docker.client import EngineClient
from sandboxes.docker.engine import Engine
from sandboxes.docker.requests import ALLOWED, GUARD, KIND, LABELS, PUBLIC_NETWORK
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


async def ensure(client: EngineClient) -> None:
    """Make the bridge if it is not there."""
    try:
        await client.call(
            "POST",
            "networks/create",
            what=f"make network {PUBLIC_NETWORK}",
            body={
                "Name": PUBLIC_NETWORK,
                "Driver": "bridge",
                "CheckDuplicate": True,
                "EnableIPv6": False,
                "Options": {"com.docker.network.bridge.enable_icc": "false"},
                "Labels": {KIND: "network"},
            },
        )
    except SandboxError as error:
        if getattr(error.__cause__, "status", None) != 409:  # there already
            raise


async def remove_if_unused(client: EngineClient) -> None:
    """Take the bridge away once nothing is on it."""
    try:
        await client.call("DELETE", f"networks/{PUBLIC_NETWORK}", what=f"remove network {PUBLIC_NETWORK}")
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
