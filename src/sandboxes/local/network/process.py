"""The tool's process, from its first fork to its reaping."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Protocol, TypeVar

from sandboxes.errors import SandboxError
from sandboxes.local.network import plug
from sandboxes.local.network.netlink import Netlink
from sandboxes.local.network.tools import TAP, Tool

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

    def __init__(self, tool: Tool, netns: int, userns: int | None, log: Path) -> None:
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
                argv = [sys.executable, "-I", "-S", plug.__file__, *map(str, words)]
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
