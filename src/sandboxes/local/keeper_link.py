"""The engine's side of the keeper: start it, ask it over a socket on the event loop, and notice its end."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

from sandboxes.cgroups import CgroupSupport
from sandboxes.errors import SandboxError
from sandboxes.local import processes, root_filesystem

Receiver = Callable[["processes.Message", list[int]], None]


class HelperChannel:
    """Sends whole messages without waiting, and hands each one that comes to `receiver`."""

    def __init__(self, sock: socket.socket, receiver: Receiver, on_end: Callable[[], None]) -> None:
        self._sock = sock
        self._sock.setblocking(False)
        self._inbox = processes.MessageInbox(sock)
        self._receiver = receiver
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._unsent: deque[tuple[memoryview, list[int]]] = deque()
        self.closed = False
        # By number: asyncio describes a socket object in words each time it looks one up.
        self._fd = sock.fileno()
        self._writing = False
        self._loop.add_reader(self._fd, self._on_readable)

    def post(self, message: processes.Message, fds: Sequence[int] = ()) -> None:
        """Send a message. The descriptors are taken over: closed here once they are on their way."""
        if self.closed:
            _close_all(fds)
            return
        self._unsent.append((memoryview(processes.encode_message(message, len(fds))), list(fds)))
        if len(self._unsent) == 1:
            self._send()

    @property
    def lacked_files(self) -> bool:
        """Whether it ended because this process has too many files open."""
        return self._inbox.lacked_files

    def close(self) -> None:
        """Hang up; the other side sees the end. Again is fine, and `on_end` is not called."""
        if self.closed:
            return
        self.closed = True
        self._loop.remove_reader(self._fd)
        self._stop_writing()
        for _, fds in self._unsent:
            _close_all(fds)
        self._unsent.clear()
        self._inbox.close()
        self._sock.close()

    def _send(self) -> None:
        while self._unsent:
            data, fds = self._unsent[0]
            try:
                sent = processes.send_some_bytes(self._sock, data, fds)
            except BlockingIOError:
                self._loop.add_writer(self._fd, self._send)
                self._writing = True
                return
            except OSError:  # the other side is gone; its end arrives on the reading side
                sent = len(data)
            _close_all(fds)
            if sent < len(data):
                self._unsent[0] = (data[sent:], [])
            else:
                self._unsent.popleft()
        self._stop_writing()

    def _stop_writing(self) -> None:
        if self._writing:
            self._loop.remove_writer(self._fd)
            self._writing = False

    def _on_readable(self) -> None:
        try:
            arrived = self._inbox.receive()
        except BlockingIOError:
            return
        for message, fds in arrived:
            self._receiver(message, fds)
        if self._inbox.ended and not self.closed:
            self.close()
            self._on_end()


def _close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)


# The engine's side of the keeper: starting it, asking it, and noticing its end.

_T = TypeVar("_T")

_START_SECONDS = 30.0
_END_SECONDS = 30.0
_SOURCE_ROOT = str(Path(__file__).resolve().parents[2])
# The package itself is left out: what it imports would be copied into every warden.
_BOOT = (
    "import sys; root = sys.argv.pop(1); sys.path.append(root);"
    " package = sys.modules['sandboxes'] = type(sys)('sandboxes'); package.__path__ = [root + '/sandboxes'];"
    " from sandboxes.local.keeper import main; main()"
)


class Lower:
    """The lower layers of sandboxes with one root, as descriptors: of the root, and of its system trees."""

    def __init__(self, names: list[str], fds: list[int]) -> None:
        self.root = fds[0]
        self.trees = dict(zip(names, fds[1:], strict=True))

    def close(self) -> None:
        """Close them."""
        for fd in (self.root, *self.trees.values()):
            os.close(fd)


class KeeperLink:
    """A running keeper."""

    def __init__(self, process: subprocess.Popen[bytes], sock: socket.socket) -> None:
        self._process = process
        self._loop = asyncio.get_running_loop()
        self._hello: asyncio.Future[processes.Message] = self._loop.create_future()
        self._gone: dict[str, asyncio.Future[bool]] = {}
        self._kills: dict[int, asyncio.Future[int]] = {}
        self._asked: dict[int, asyncio.Future[Lower]] = {}
        self._lower: dict[str | None, Lower] = {}
        self._count = 0
        self.userns_fd: int | None = None
        self.mode = ""
        self.owner = (os.geteuid(), os.getegid())
        self._channel = HelperChannel(sock, self._receive, self._ended)

    @classmethod
    async def start(cls, mode: str, state_dir: Path, support: CgroupSupport) -> KeeperLink:
        """Start a keeper and wait until it is ready."""
        ours, theirs = socket.socketpair()
        try:
            process = await asyncio.to_thread(_launch, theirs, mode, state_dir, support)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        link = cls(process, ours)
        try:
            async with asyncio.timeout(_START_SECONDS):
                hello = await link._hello
        except BaseException:
            await link.close()
            raise
        if mode != root_filesystem.ROOTLESS:
            link.owner = (hello["owner"], hello["owner"])
        link.mode = mode
        return link

    @property
    def alive(self) -> bool:
        """Whether it can be asked for anything."""
        return not self._channel.closed

    @property
    def is_ending(self) -> bool:
        """Whether the keeper is gone or on its way out. Its sandboxes learn of that before this link does."""
        return not self.alive or processes.is_exiting(self._process.pid)

    @property
    def pid(self) -> int:
        """The keeper's process id."""
        return self._process.pid

    def create(self, spec: processes.Message) -> tuple[socket.socket, asyncio.Future[bool]]:
        """Ask for a sandbox; the socket to its warden, and a future for its complete end.

        Its result is whether the cause of that was seen outside the sandbox.
        """
        ours, theirs = socket.socketpair()
        gone: asyncio.Future[bool] = self._loop.create_future()
        self._gone[spec["id"]] = gone
        self._channel.post({"op": "create", **spec}, [theirs.detach()])
        if not self.alive:
            self._end_waits()
        return ours, gone

    def end(self, sandbox_id: str) -> None:
        """End a sandbox whose warden does not."""
        self._channel.post({"op": "end", "id": sandbox_id})

    async def kill_all(self, first_pid: int, first_pidfd: int, groups: Sequence[str]) -> bool:
        """End every process of the sandbox but its first; whether they were gone in time."""
        self._count += 1
        number = self._count
        killed = self._kills[number] = self._loop.create_future()
        message = {"op": "kill_all", "n": number, "first": first_pid, "groups": list(groups)}
        self._channel.post(message, [os.dup(first_pidfd)])
        if not self.alive:
            self._end_waits()
        code: int = await asyncio.shield(killed)
        return code == 0

    async def lower(self, rootfs: str | None) -> Lower:
        """Return the lower layers of sandboxes with that root; they stay open as long as this keeper."""
        if rootfs in self._lower:
            return self._lower[rootfs]
        self._count += 1
        asked = self._asked[self._count] = self._loop.create_future()
        self._channel.post({"op": "lower", "n": self._count, "rootfs": rootfs})
        if not self.alive:
            self._end_waits()
        found = await asyncio.shield(asked)
        if rootfs in self._lower:
            found.close()
        return self._lower.setdefault(rootfs, found)

    async def close(self) -> None:
        """Hang up, which ends everything the keeper holds, and wait for that."""
        self._channel.close()
        self._end_waits()
        await asyncio.to_thread(self._wait)
        for lower in self._lower.values():
            lower.close()
        self._lower.clear()
        if self.userns_fd is not None:
            os.close(self.userns_fd)
            self.userns_fd = None

    def _wait(self) -> None:
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    def _receive(self, message: processes.Message, fds: list[int]) -> None:
        event = message["event"]
        if event == "hello":
            if fds:
                self.userns_fd = fds[0]
            self._hello.set_result(message)
        elif event == "failed":
            self._hello.set_exception(SandboxError(f"local sandboxes cannot start: {message['error']}"))
        elif event == "gone":
            _settle(self._gone.pop(message["id"], None), message["outside"])
        elif event == "lower":
            asked = self._asked.pop(message["n"], None)
            if asked is None or asked.done():
                Lower(message["trees"], fds).close()
            else:
                asked.set_result(Lower(message["trees"], fds))
        elif event == "killed":
            _settle(self._kills.pop(message["n"], None), message["code"])

    def _ended(self) -> None:
        if not self._hello.done():
            self._hello.set_exception(SandboxError("the keeper of local sandboxes ended while starting"))
        self._end_waits()

    def _end_waits(self) -> None:
        # Whatever the keeper held died with it.
        for gone in self._gone.values():
            _settle(gone, True)
        for killed in self._kills.values():
            _settle(killed, 0)
        for asked in self._asked.values():
            if not asked.done():
                asked.set_exception(SandboxError("the keeper of local sandboxes ended"))
                asked.exception()
        self._asked.clear()
        self._gone.clear()
        self._kills.clear()


def _settle(future: asyncio.Future[_T] | None, value: _T) -> None:
    if future is not None and not future.done():
        future.set_result(value)


def _launch(
    theirs: socket.socket, mode: str, state_dir: Path, support: CgroupSupport
) -> subprocess.Popen[bytes]:
    # Folders go as descriptors: the keeper does not keep the host's mounts for long.
    paths = [state_dir, *(Path(place.parent) for place in support.places)]
    with ExitStack() as opened:
        fds = [theirs.fileno()]
        for path in paths:
            fds.append(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
            opened.callback(os.close, fds[-1])
        folders = [f"{fd}:{path}" for fd, path in zip(fds[1:], paths, strict=True)]
        argv = [sys.executable, "-I", "-S", "-c", _BOOT, _SOURCE_ROOT, mode, str(fds[0]), *folders]
        # The clean environment keeps the engine's secrets away; the own session keeps Ctrl-C away.
        return subprocess.Popen(
            argv,
            env={},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=fds,
            start_new_session=True,
            cwd="/",
        )
