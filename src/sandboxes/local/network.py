"""Network policy `public`: connect a sandbox to the public internet through a router it cannot touch."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Network, ip_network
from pathlib import Path
from typing import Final, Protocol, TypeVar

from sandboxes.errors import SandboxError, SandboxNotFoundError, SandboxUnsupportedError
from sandboxes.local import network_program, routes
from sandboxes.local.routes import (
    RESOLV_CONF,
    RTMGRP_IPV4_ROUTE,
    TAP,
    Netlink,
    NetworkTool,
    find_tool,
    open_socket,
    why_unavailable,
)

# The tool's process, from its first fork to its reaping.

LOG_LIMIT: Final = 64 * 1024

T = TypeVar("T")


class HasFileno(Protocol):
    """A file, a socket, a netlink connection."""

    def fileno(self) -> int: ...


async def readable(source: int | HasFileno) -> None:
    """Wait until there is something to read, or the end of it; a pidfd is readable when its process ended."""
    loop = asyncio.get_running_loop()
    event = asyncio.Event()
    fd = source if isinstance(source, int) else source.fileno()
    loop.add_reader(fd, event.set)
    try:
        await event.wait()
    finally:
        loop.remove_reader(fd)


async def in_thread(call: Callable[[], T]) -> T:
    """Run `call` off the loop. A cancellation waits for its end: it works on fds that are closed next."""
    work = asyncio.ensure_future(asyncio.to_thread(call))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work])
        raise


class ToolProcess:
    """One running tool. `end` must be awaited, once."""

    def __init__(self, tool: NetworkTool, netns: int, userns: int | None, log: Path) -> None:
        """Start it. `userns` owns `netns`; None when that is the user namespace we are in."""
        self._tool = tool
        self._log_path = log
        self._logged = 0
        # As the host's root we step down before the tool starts; any other user leaves it to the tool,
        # whose exec would lose the capabilities gained by entering early.
        outside = userns is not None and os.geteuid() != 0
        with ExitStack() as on_failure:
            self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            on_failure.callback(self._control.close)
            with theirs:
                words = [theirs.fileno(), netns, -1 if userns is None else userns, os.getpid()]
                argv = [sys.executable, "-I", "-S", network_program.__file__, *map(str, words)]
                argv += ["stay" if outside else "join", *tool.argv(join_userns=outside)]
                self._process = subprocess.Popen(
                    argv,
                    stdin=subprocess.PIPE,  # slirp4netns ends when it closes, as it does when we die
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    bufsize=0,
                    cwd="/",
                    env={},
                    pass_fds=[fd for fd in words[:3] if fd >= 0],
                    start_new_session=True,
                )
            on_failure.enter_context(self._process)
            on_failure.callback(self._process.kill)
            self._pidfd = os.pidfd_open(self._process.pid)
            assert self._process.stdin and self._process.stdout and self._process.stderr
            self._lifeline, self._ready = self._process.stdin, self._process.stdout
            self._errors = self._process.stderr
            os.set_blocking(self._errors.fileno(), False)
            asyncio.get_running_loop().add_reader(self._errors, self._log)
            on_failure.pop_all()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    async def namespaces(self) -> tuple[Netlink, Netlink]:
        """The router's and the sandbox's netlink, once the router is there."""
        await readable(self._control)
        message, fds, _flags, _address = socket.recv_fds(self._control, 16, 2)
        if not message:
            raise SandboxError("the sandbox's router could not be made")
        router, sandbox = (Netlink(socket.socket(fileno=fd)) for fd in fds)
        return router, sandbox

    async def ready(self) -> None:
        """Wait until the tool serves."""
        await readable(self._ready)
        if not os.read(self._ready.fileno(), 64).strip().isdigit():
            raise SandboxError(f"{self._tool.name} did not start")

    async def answer_for_sandbox(self) -> None:
        """Make the router answer the tool's ARP requests for the sandbox's address."""
        self._control.send(TAP.encode())
        await readable(self._control)
        if not self._control.recv(16):
            raise SandboxError("the sandbox's router could not be configured")

    async def ended(self) -> None:
        """Wait until the process is dead."""
        await readable(self._pidfd)

    async def end(self) -> None:
        """Kill, reap, and see the last of whatever it left."""
        try:
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        except ProcessLookupError:
            pass
        await self.ended()
        self._process.wait()
        self._control.shutdown(socket.SHUT_WR)  # the router's holder, if it is still there, goes by this
        while True:
            await readable(self._control)
            message, fds, _flags, _address = socket.recv_fds(self._control, 16, 2)
            for fd in fds:
                os.close(fd)
            if not message:
                break
        asyncio.get_running_loop().remove_reader(self._errors)
        self._log()
        for opened in (self._control, self._lifeline, self._ready, self._errors):
            opened.close()
        os.close(self._pidfd)

    def last_words(self) -> str:
        """The end of what it printed, without pasta's laments over a missing system log."""
        try:
            lines = self._log_path.read_text(errors="replace").splitlines()
        except FileNotFoundError:
            return ""
        return "\n".join(line for line in lines if not line.endswith("to syslog"))[-600:]

    def _log(self) -> None:
        """Move what the tool printed to the log, up to a limit: the agent may be able to make it print."""
        while True:
            try:
                data = os.read(self._errors.fileno(), 1 << 16)
            except BlockingIOError:
                return
            if not data:
                asyncio.get_running_loop().remove_reader(self._errors)
                return
            data = data[: LOG_LIMIT - self._logged]
            if data:
                self._logged += len(data)
                with self._log_path.open("ab") as file:
                    file.write(data)


# Plugs a sandbox's network namespace into the outside, through a router the sandbox cannot touch.

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
    tool: NetworkTool | None = None
    """None takes the best one installed."""


class Attachment:
    """A sandbox's way out: one router namespace and one tool process, which live and end together.

    It ends by `close`, with the sandbox's first process, or with this process, whichever comes first.
    """

    resolv_conf: str = RESOLV_CONF
    """What the sandbox's `/etc/resolv.conf` must say."""

    def __init__(
        self, tool: NetworkTool, process: ToolProcess, init_pidfd: int, host_changes: Netlink
    ) -> None:
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
                partial(routes.connect_sandbox, router, sandbox, netns, deny, allow)
            )
        finally:
            sandbox.close()
        await self._process.ready()
        await self._process.answer_for_sandbox()
        await in_thread(partial(routes.open_way_out, router))
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
            await in_thread(partial(routes.refuse_host, router, self._refused))


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


def _explain(tool: NetworkTool, error: Exception, printed: str) -> str:
    what = str(error) or type(error).__name__
    return f"no network for the sandbox ({tool.name}): {what}" + (f"\n{printed}" if printed else "")


__all__ = [
    "RESOLV_CONF",
    "Attachment",
    "NetworkSettings",
    "NetworkTool",
    "attach",
    "find_tool",
    "why_unavailable",
]
