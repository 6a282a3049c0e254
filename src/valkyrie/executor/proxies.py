"""Proxies: from benchmark services to sandboxes, and from sandboxes to the model of their agent."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import shutil
import socket
import stat
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from sandboxes.types import DaytonaProviderConfig
from valkyrie.config import values
from valkyrie.config.values import tracker_networks
from valkyrie.errors import InfrastructureError, UserError
from valkyrie.notifications.messages import local_allowed
from valkyrie.targets import TargetError, connectable
from valkyrie.trial.context import BRIDGE, SOCKET

if TYPE_CHECKING:
    from sandboxes.protocol import SandboxProvider
    from sandboxes.server import Grant, SandboxServer


class SandboxProxies:
    """One key per run, to that run's sandboxes only; the server starts when the first one is asked for.

    A service on this machine is told the loopback address. One elsewhere is told `sandbox_public_url`, which
    leads to a second server on `sandbox_port`: what the public address offers is no more than such runs need.
    """

    def __init__(self, home: str) -> None:
        self._home = home
        self._servers: dict[bool, SandboxServer] = {}
        self._open: dict[str, tuple[SandboxServer, Grant]] = {}

    async def open(
        self, run_id: str, provider: SandboxProvider, *, public: bool, host_image: bool
    ) -> DaytonaProviderConfig:
        """A key to the run's sandboxes."""
        if run_id not in self._open:
            server = await self._server(public)
            labels = {"Home": self._home, "Id": run_id}
            self._open[run_id] = server, server.grant(provider, labels=labels, host_image=host_image)
        grant = self._open[run_id][1]
        return DaytonaProviderConfig(
            DAYTONA_API_KEY=grant.api_key, DAYTONA_API_URL=grant.api_url, DAYTONA_TARGET=grant.target
        )

    async def _server(self, public: bool) -> SandboxServer:
        if public not in self._servers:
            from sandboxes.server import SandboxServer

            port = int(values.effective("sandbox_port").value or 0) if public else 0
            url = values.effective("sandbox_public_url").value if public else None
            server = SandboxServer(port=port, public_url=str(url) if url else None)
            try:
                await server.start()
            except OSError as error:
                raise InfrastructureError(
                    f"The sandbox server cannot listen on port {port}: {error.strerror or error}. "
                    "`valk config set sandbox_port` chooses another."
                ) from error
            self._servers[public] = server
        return self._servers[public]

    def shut(self, run_id: str) -> bool:
        """The run's key opens nothing any more; whether there was one."""
        found = self._open.pop(run_id, None)
        if found:
            server, grant = found
            server.revoke(grant)
        return found is not None

    async def close(self) -> None:
        self._open.clear()
        while self._servers:
            await self._servers.popitem()[1].close()


# Doors through which sandboxes without a network reach the model that serves their agent.

SHARED_MEMORY = Path("/dev/shm")
PIECE = 1 << 16
MOST_OPEN = 64
"""Connections at once of one attempt: each costs this process two files. Further ones are closed."""


def proxy_folder(folder: Path, memory: Path = SHARED_MEMORY) -> Path:
    """Return where doors kept for `folder` are made: in memory where that can be had, else `folder` itself.

    A sandbox's list of mounts tells the path of a door on its file system; in memory that is a digest.
    """
    if not memory.is_mount() or not os.access(memory, os.W_OK | os.X_OK):
        return folder
    name = hashlib.sha256(os.fsencode(folder.absolute())).hexdigest()[:16]
    return memory / f"valkyrie-doors-{os.geteuid()}-{name}"


class ModelProxies:
    """Ways to where models are served, below one folder."""

    def __init__(self, root: Path, *, guarded: bool = False) -> None:
        """`guarded`: addresses are those of a server's callers, who may not lead us to what is not theirs."""
        self._root = root
        self._guarded = guarded
        self._proxies: dict[tuple[str, int], ModelProxy] = {}

    def to(self, url: str) -> ModelProxy | None:
        """The way to `url`; None for https, which needs no door."""
        parts = urlsplit(url)
        if parts.scheme == "https":
            return None
        if parts.scheme != "http" or not parts.hostname:
            raise UserError(f"--model-url {url!r} is no http or https address.")
        address = parts.hostname, parts.port or 80
        if address not in self._proxies:
            self._proxies[address] = ModelProxy(self._root, *address, guarded=self._guarded)
        return self._proxies[address]

    async def clear(self) -> None:
        """Remove every folder: first what killed executors left, and at the end our own."""
        await asyncio.to_thread(shutil.rmtree, self._root, ignore_errors=True)
        self._proxies.clear()


class ModelProxy:
    """The way to one address. Every attempt gets a socket of its own: none can use up another's.

    Folders are used again, for the same address only: providers may remember each one they have shown.
    """

    def __init__(self, root: Path, host: str, port: int, *, guarded: bool) -> None:
        self._root = root
        self._host, self._port = host, port
        self._guarded = guarded
        self._free: list[Path] = []
        self._looking = asyncio.Lock()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Path]:
        """A folder with a socket; it is shut at the end, whoever still speaks through it."""
        folder = self._free.pop() if self._free else await asyncio.to_thread(_new_folder, self._root)
        talks: set[asyncio.Task[None]] = set()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            talk = asyncio.current_task()
            if talk is None or len(talks) >= MOST_OPEN:
                writer.close()
                return
            talks.add(talk)
            try:
                await _carry(reader, writer, await self._places(), self._port)
            finally:
                talks.discard(talk)
                writer.close()

        try:
            server = await asyncio.start_unix_server(serve, sock=_listening(folder))
            try:
                yield folder
            finally:
                server.close()
                for talk in talks:
                    talk.cancel()
                await asyncio.gather(*talks, return_exceptions=True)
        finally:
            (folder / SOCKET).unlink(missing_ok=True)
            self._free.append(folder)

    async def _places(self) -> Sequence[str]:
        if not self._guarded:
            return [self._host]
        # One at a time: a name that is slow to look up must not hold every thread of this process.
        async with self._looking:
            return await _checked(self._host, self._port)


def _listening(folder: Path) -> socket.socket:
    """A socket in the folder, however long the folder's path is: addresses of sockets are short."""
    place = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.bind(f"/proc/self/fd/{place}/{SOCKET}")
    except BaseException:
        made.close()
        raise
    finally:
        os.close(place)
    (folder / SOCKET).chmod(0o666)
    return made


def _new_folder(root: Path) -> Path:
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    info = root.lstat()
    # Everybody may make folders in shared memory: one that another user can change is a trap.
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid() or info.st_mode & 0o022:
        raise InfrastructureError(f"{root} is not a folder of this user's own; remove it.")
    folder = Path(tempfile.mkdtemp(prefix="door-", dir=root))
    folder.chmod(0o755)
    (folder / BRIDGE).write_text(files("valkyrie.executor").joinpath(BRIDGE).read_text())
    (folder / BRIDGE).chmod(0o644)
    return folder


async def _checked(host: str, port: int) -> Sequence[str]:
    """The addresses behind a name, checked again whenever it is connected to: a name may lead elsewhere by
    now. What was named as this machine itself was allowed when the run was planned."""
    from benchmark_service.http_client import is_loopback

    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    allow_local = is_loopback(url) or local_allowed()
    try:
        networks = tracker_networks()
        return await asyncio.to_thread(connectable, host, port, allow_local=allow_local, networks=networks)
    except (TargetError, OSError):
        return ()


async def _connect(places: Sequence[str], port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    for place in places:
        with contextlib.suppress(OSError):
            return await asyncio.open_connection(place, port)
    raise ConnectionError("nothing answers there")


async def _carry(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, places: Sequence[str], port: int
) -> None:
    """Bytes both ways until either side is done."""
    try:
        up_reader, up_writer = await _connect(places, port)
    except OSError:
        writer.close()
        return
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_pump(reader, up_writer))
            group.create_task(_pump(up_reader, writer))
    except* (ConnectionError, TimeoutError):
        pass  # one side broke off; the other learns it by the end of its stream
    finally:
        for end in (up_writer, writer):
            end.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(PIECE):
        writer.write(piece)
        await writer.drain()
    with contextlib.suppress(OSError):
        writer.write_eof()
