"""Terminals: a shell in the sandbox on a pseudo-terminal of the host, and the clients that look at it."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import shlex
import struct
import subprocess
import sys
import termios
from collections import deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from secrets import token_hex

from sandboxes.protocol import Sandbox
from sandboxes.streams import exit_code, exit_of

MAX_BACKLOG_BYTES = 8 << 20
"""What a client may be behind before it is let go, and what may wait for the shell to read."""
_CHUNK_BYTES = 1 << 16
_KILL_SECONDS = 5.0

_ON_TERMINAL = (
    "import fcntl, os, sys, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
    " os.execvp(sys.argv[1], sys.argv[1:])"
)


@dataclass(frozen=True, slots=True)
class PtySpec:
    """What a client asks for."""

    id: str
    cwd: str = "/"
    envs: Mapping[str, str] = field(default_factory=dict)
    cols: int = 80
    rows: int = 24


class PtyClient:
    """One client's view: the output since it came."""

    def __init__(self) -> None:
        self._pieces: deque[bytes] = deque()
        self._held = 0
        self._news = asyncio.Event()
        self._ended = False

    def take(self, data: bytes) -> bool:
        """Queue output; False when the client is too far behind."""
        self._pieces.append(data)
        self._held += len(data)
        self._news.set()
        return self._held <= MAX_BACKLOG_BYTES

    def end(self) -> None:
        """Nothing comes after what is queued."""
        self._ended = True
        self._news.set()

    async def output(self) -> AsyncIterator[bytes]:
        """The output as it comes, until the shell ends."""
        while True:
            while self._pieces:
                piece = self._pieces.popleft()
                self._held -= len(piece)
                yield piece
            if self._ended:
                return
            self._news.clear()
            await self._news.wait()


class Pty:
    """One terminal. It outlives its clients, and ends with its shell."""

    def __init__(self, spec: PtySpec, sandbox: Sandbox) -> None:
        self.id = spec.id
        self.spec = spec
        self.cols = spec.cols
        self.rows = spec.rows
        self.created_at = datetime.now(UTC)
        self.exit_code: int | None = None
        self._sandbox = sandbox
        self._clients: set[PtyClient] = set()
        self._loop = asyncio.get_running_loop()
        self._unwritten = bytearray()
        self._master = -1
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Open the terminal and start the shell on it."""
        greeting = await self._prepare()
        argv = self._sandbox.shell_argv(self.spec.cwd)
        self._master, slave = pty.openpty()
        try:
            self.resize(self.cols, self.rows)
            self._process = subprocess.Popen(  # noqa: ASYNC220 - spawning is what this does
                [sys.executable, "-I", "-S", "-c", _ON_TERMINAL, *argv],
                stdin=slave,
                stdout=slave,
                stderr=slave,
                env={"PATH": os.defpath},
            )
        except BaseException:
            os.close(self._master)
            self._master = -1
            raise
        finally:
            os.close(slave)
        os.set_blocking(self._master, False)
        self._loop.add_reader(self._master, self._on_readable)
        self._watcher = self._loop.create_task(self._watch(self._process))
        if greeting:
            self.write(greeting)

    async def _prepare(self) -> bytes:
        """The line that brings the variables in, by way of a file: a command line is for all to see."""
        if not self.spec.envs:
            return b""
        name = f"/var/tmp/.terminal-{token_hex(8)}"
        lines = "".join(f"export {key}={shlex.quote(value)}\n" for key, value in self.spec.envs.items())
        await self._sandbox.upload_file(name, lines.encode())
        place = f'"${{VALKYRIE_ROOT:-}}{name}"'
        return f" . {place}; rm -f {place}\n".encode()

    def attach(self) -> PtyClient:
        """A new client; output from now on goes to it as well."""
        client = PtyClient()
        if self.exit_code is None:
            self._clients.add(client)
        else:
            client.end()
        return client

    def detach(self, client: PtyClient) -> None:
        """The client is gone; the terminal stays."""
        self._clients.discard(client)

    def write(self, data: bytes) -> None:
        """Type. What the shell does not read in time is dropped beyond a limit."""
        if self._master < 0 or len(self._unwritten) + len(data) > MAX_BACKLOG_BYTES:
            return
        if not self._unwritten:
            self._loop.add_writer(self._master, self._on_writable)
        self._unwritten += data

    def resize(self, cols: int, rows: int) -> None:
        """Tell the programs on the terminal its size."""
        self.cols, self.rows = cols, rows
        if self._master >= 0:
            fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))

    async def end(self) -> None:
        """Kill the shell. What ran on the terminal is told by the kernel that it hung up."""
        if self._process is not None and self.exit_code is None:
            self._process.kill()
        if self._watcher is not None:
            await asyncio.wait((self._watcher,), timeout=_KILL_SECONDS)
            self._watcher.cancel()
        self._close()

    async def _watch(self, process: subprocess.Popen[bytes]) -> None:
        code = exit_code(await exit_of(process))
        while self._read():
            pass
        self.exit_code = code
        self._close()

    def _close(self) -> None:
        if self._master >= 0:
            self._loop.remove_reader(self._master)
            self._loop.remove_writer(self._master)
            os.close(self._master)
            self._master = -1
        for client in self._clients:
            client.end()
        self._clients.clear()

    def _on_readable(self) -> None:
        self._read()

    def _read(self) -> bool:
        if self._master < 0:
            return False
        try:
            data = os.read(self._master, _CHUNK_BYTES)
        except BlockingIOError:
            return False
        except OSError:  # the last program let go of the terminal
            data = b""
        if not data:
            self._loop.remove_reader(self._master)
            return False
        for client in list(self._clients):
            if not client.take(data):
                client.end()
                self._clients.discard(client)
        return True

    def _on_writable(self) -> None:
        try:
            written = os.write(self._master, self._unwritten)
        except BlockingIOError:
            return
        except OSError:  # no one is there to read it
            written = len(self._unwritten)
        del self._unwritten[:written]
        if not self._unwritten:
            self._loop.remove_writer(self._master)


async def started(spec: PtySpec, sandbox: Sandbox) -> Pty:
    """A terminal that runs; nothing is left of one that does not."""
    terminal = Pty(spec, sandbox)
    try:
        await terminal.start()
    except BaseException:
        await asyncio.shield(terminal.end())
        raise
    return terminal
