"""What kind of root file system a sandbox has, as far as installed software cares."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sandboxes.protocol import SandboxProvider
from sandboxes.values import Command, StreamName
from valkyrie.errors import InfrastructureError, UserError

if TYPE_CHECKING:
    from sandboxes.types import SandboxSource

PROBE_TIMEOUT_S = 60.0
OLDEST_NODE = 20
"""An older Node.js of the root is not used."""
_OLDEST_GLIBC = "2.17"
_MOST_OUTPUT = 4096
_CPUS = {"x86_64": "x64", "aarch64": "arm64"}
# getconf knows glibc only; musl systems may carry a loader for glibc programs all the same.
_PROBE = r"""
echo "machine=$(uname -m)"
glibc=$(getconf GNU_LIBC_VERSION 2>/dev/null)
if [ -n "$glibc" ]; then echo "libc=$glibc"
elif ls /lib/ld-musl-*.so.1 >/dev/null 2>&1; then echo "libc=musl 1.2"
fi
echo "python=$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)"
echo "node=$(node --version 2>/dev/null)"
"""


@dataclass(frozen=True, slots=True)
class RootKind:
    """What decides which packages fit."""

    machine: str
    """`x86_64` or `aarch64`."""
    libc: str
    """`glibc` or `musl`."""
    libc_version: str
    python: str | None = None
    """Version of python3, as `3.11`."""
    node: int | None = None
    """Major version of node, if it is new enough to be used."""

    @property
    def cpu(self) -> str:
        """The machine as npm names it."""
        return _CPUS[self.machine]


async def kind_of_root(
    provider: SandboxProvider, source: SandboxSource, labels: Mapping[str, str]
) -> RootKind:
    """Look into a short-lived sandbox made from `source`."""
    from sandboxes.types import SandboxCreateRequest

    request = SandboxCreateRequest.model_construct(
        source=source, labels=dict(labels), network="none", network_block_all=True, name="probe"
    )
    sandbox = await provider.create_sandbox(request)
    said: list[str] = []

    def keep(stream: StreamName, text: str) -> None:
        if stream == "stdout" and sum(map(len, said)) < _MOST_OUTPUT:
            said.append(text[:_MOST_OUTPUT])

    try:
        await sandbox.run(Command.shell(_PROBE, timeout=PROBE_TIMEOUT_S), keep)
    finally:
        await asyncio.shield(provider.delete_sandbox(sandbox.id))
    return read_kind("".join(said))


async def kind_of_host() -> RootKind:
    """The same of this machine."""
    probe = await asyncio.create_subprocess_exec(
        "/bin/sh",
        "-c",
        _PROBE,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    said, _ = await probe.communicate()
    return read_kind(said.decode(errors="replace")[:_MOST_OUTPUT])


def read_kind(said: str) -> RootKind:
    """What the probe printed; an image may print anything, so only known words are taken."""
    found = dict(re.findall(r"^(machine|libc|python|node)=(\S.*)$", said, re.MULTILINE))
    machine = found.get("machine", "").strip().replace("arm64", "aarch64").replace("amd64", "x86_64")
    if not machine:
        raise InfrastructureError(
            "the sandbox could not be looked into: its shell printed nothing. Has the image /bin/sh?",
            cause="agent_fetch_failed",
        )
    if machine not in _CPUS:
        raise UserError(
            f"catalogue agents are there for {' and '.join(_CPUS)}; this sandbox is a {machine[:40]!r}."
        )
    libc = re.fullmatch(r"(glibc|musl) (\d+\.\d+)\S*", found.get("libc", "").strip())
    python = re.fullmatch(r"3\.\d{1,3}", found.get("python", "").strip())
    node = re.match(r"v(\d{1,3})\.", found.get("node", ""))
    return RootKind(
        machine=machine,
        libc=libc[1] if libc else "glibc",
        libc_version=libc[2] if libc else _OLDEST_GLIBC,
        python=python[0] if python else None,
        node=int(node[1]) if node and int(node[1]) >= OLDEST_NODE else None,
    )
