"""Plugs a sandbox's network namespace into the outside, through a router the sandbox cannot touch."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Network, ip_network
from pathlib import Path
from typing import Final

from sandboxes.errors import SandboxError, SandboxNotFoundError, SandboxUnsupportedError
from sandboxes.local.network import routing
from sandboxes.local.network.netlink import RTMGRP_IPV4_ROUTE, Netlink, open_socket
from sandboxes.local.network.process import ToolProcess, in_thread, readable
from sandboxes.local.network.tools import RESOLV_CONF, Tool, find_tool, why_unavailable

NS_GET_USERNS: Final = 0xB701
START_TIMEOUT: Final = 10.0
LOG_NAME: Final = "network.log"


@dataclass(frozen=True, slots=True)
class NetworkSettings:
    """What a sandbox with network `public` may not reach, and by which tool it reaches the rest."""

    deny: Sequence[str] = ()
    """IPv4 networks refused besides those that are not public and the host's own addresses."""
    allow: Sequence[str] = ()
    """IPv4 networks that are reached although they are not public, e.g. `10.1.0.0/16`. The host's addresses
    in them are not, unless one is named by itself (`10.1.0.7/32`)."""
    tool: Tool | None = None
    """None takes the best one installed."""


class Attachment:
    """A sandbox's way out: one router namespace and one tool process, which live and end together.

    It ends by `close`, with the sandbox's first process, or with this process, whichever comes first.
    """

    resolv_conf: str = RESOLV_CONF
    """What the sandbox's `/etc/resolv.conf` must say."""

    def __init__(self, tool: Tool, process: ToolProcess, init_pidfd: int, host_changes: Netlink) -> None:
        """`attach` makes these. The fd and the subscription to the host's routes become its own."""
        self.tool = tool
        self._process = process
        self._init_pidfd = init_pidfd
        self._host_changes = host_changes
        self._router: Netlink | None = None
        self._refused: set[IPv4Network] = set()
        self._settled = asyncio.Event()
        self._closing = asyncio.Event()
        self._life = asyncio.create_task(self._live())

    @property
    def pid(self) -> int:
        """The tool's process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the sandbox is still plugged in."""
        return not self._closing.is_set() and not self._life.done()

    async def close(self) -> None:
        """End the tool: nothing gets out any more, and the sandbox's interface soon goes. Again is fine."""
        self._closing.set()
        self._settled.set()
        await asyncio.shield(self._life)

    async def _plug_in(self, netns: int, deny: Sequence[IPv4Network], allow: Sequence[IPv4Network]) -> None:
        """Wire sandbox, router and tool together."""
        self._router, sandbox = await self._process.namespaces()
        router = self._router
        try:
            self._refused = await in_thread(
                partial(routing.connect_sandbox, router, sandbox, netns, deny, allow)
            )
        finally:
            sandbox.close()
        await self._process.ready()
        await self._process.answer_for_sandbox()
        await in_thread(partial(routing.open_way_out, router))
        self._settled.set()

    async def _live(self) -> None:
        try:
            # Until then a tool that dies is seen by who waits for it, on fds that must stay open so long.
            await self._settled.wait()
            if self._router is not None:
                await self._until_an_end(self._router)
        finally:
            await self._process.end()
            os.close(self._init_pidfd)
            self._host_changes.close()
            if self._router is not None:
                self._router.close()

    async def _until_an_end(self, router: Netlink) -> None:
        # Should following the host fail, the network ends too: better none than an open one.
        ends = (
            self._closing.wait(),
            self._process.ended(),
            readable(self._init_pidfd),
            self._follow_host(router),
        )
        watchers = [asyncio.ensure_future(end) for end in ends]
        try:
            await asyncio.wait(watchers, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for watcher in watchers:
                watcher.cancel()
            await asyncio.gather(*watchers, return_exceptions=True)

    async def _follow_host(self, router: Netlink) -> None:
        """Refuse the addresses the host takes on later, e.g. of a bridge that Docker makes."""
        while True:
            await readable(self._host_changes)
            self._host_changes.drain()
            await in_thread(partial(routing.refuse_host, router, self._refused))


async def attach(
    init_pid: int, userns_fd: int | None, state_dir: Path, settings: NetworkSettings | None = None
) -> Attachment:
    """Plug the network namespace of process `init_pid` into the outside.

    `userns_fd` is the user namespace that owns it; None asks the kernel. What the tool prints goes to
    `network.log` in `state_dir`. A failure or a cancellation leaves no process. Must be called in the
    thread that runs the loop for as long as the sandbox lives: the tool is killed when that thread ends.
    """
    settings = settings or NetworkSettings()
    tool = settings.tool or find_tool()
    unavailable = why_unavailable()
    if tool is None or unavailable is not None:
        raise SandboxUnsupportedError(f"network 'public' is not possible: {unavailable}")
    deny, allow = _networks(settings.deny), _networks(settings.allow)
    with ExitStack() as fds:
        try:
            netns = _keep(fds, os.open(f"/proc/{init_pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC))
            init_pidfd = os.pidfd_open(init_pid)
        except (ProcessLookupError, FileNotFoundError):
            raise SandboxNotFoundError(f"the sandbox's first process {init_pid} is gone") from None
        with ExitStack() as until_owned:
            _keep(until_owned, init_pidfd)
            if _is_ours(netns, "net"):
                raise SandboxError(f"process {init_pid} has the host's network, not one of its own")
            if userns_fd is None:
                userns_fd = _keep(fds, fcntl.ioctl(netns, NS_GET_USERNS))
            owner = None if _is_ours(userns_fd, "user") else userns_fd
            # Subscribed before the host's addresses are first read, so that none slips in between.
            host_changes = Netlink(open_socket(RTMGRP_IPV4_ROUTE))
            until_owned.callback(host_changes.close)
            process = ToolProcess(tool, netns, owner, state_dir / LOG_NAME)
            attachment = Attachment(tool, process, init_pidfd, host_changes)
            until_owned.pop_all()
        try:
            async with asyncio.timeout(START_TIMEOUT):
                await attachment._plug_in(netns, deny, allow)
        except BaseException as error:
            await attachment.close()
            if isinstance(error, SandboxError | OSError):  # TimeoutError is an OSError
                raise SandboxError(_explain(tool, error, process.last_words())) from error
            raise
    return attachment


def _networks(texts: Sequence[str]) -> list[IPv4Network]:
    """The IPv4 networks of these; IPv6 is refused anyway."""
    found = [ip_network(text) for text in texts]
    return [network for network in found if isinstance(network, IPv4Network)]


def _keep(stack: ExitStack, fd: int) -> int:
    stack.callback(os.close, fd)
    return fd


def _is_ours(fd: int, kind: str) -> bool:
    return os.path.samestat(os.fstat(fd), Path(f"/proc/self/ns/{kind}").stat())


def _explain(tool: Tool, error: Exception, printed: str) -> str:
    what = str(error) or type(error).__name__
    return f"no network for the sandbox ({tool.name}): {what}" + (f"\n{printed}" if printed else "")
