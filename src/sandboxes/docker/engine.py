"""Find the Docker or Podman engine, ask what it can do, call it over aiodocker and lock what processes share
in it."""

from __future__ import annotations

import asyncio
import fcntl
import http.client
import json
import os
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from sandboxes.errors import (
    SandboxConnectionError,
    SandboxError,
    SandboxFullError,
    SandboxNotFoundError,
    SandboxUnsupportedError,
    SandboxUserError,
)
from sandboxes.protocol import host_memory_mb
from sandboxes.registry import add_extra
from sandboxes.types import Capabilities

if TYPE_CHECKING:
    import aiodocker
    import aiohttp
    from aiodocker.stream import Stream


ASK_SECONDS = 5.0
NO_ENGINE = (
    "start Docker or Podman, or point DOCKER_HOST at an engine (on Debian: scripts/setup-system --docker)"
)


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine by its address, and its answer; or why there is none."""

    url: str | None
    info: Mapping[str, Any] = field(default_factory=dict)
    problem: str | None = None

    @property
    def is_local(self) -> bool:
        """Whether it shares this machine's files."""
        return bool(self.url and self.url.startswith("unix://"))

    @property
    def cpus(self) -> int:
        """How many it has; 0 when it does not say."""
        return int(self.info.get("NCPU") or 0)

    @property
    def memory_mb(self) -> int:
        """The memory of its machine; of this one when it does not say."""
        return int(self.info.get("MemTotal") or 0) >> 20 or host_memory_mb()

    @property
    def is_podman(self) -> bool:
        """Whether it is Podman, which takes some requests otherwise."""
        return "podman" in str(self.info).lower()

    @property
    def quota(self) -> str | None:
        """What limits a container's disk, or None when its storage driver cannot."""
        driver = str(self.info.get("Driver", ""))
        if driver in ("btrfs", "zfs", "devicemapper"):
            return driver
        backing = {str(pair[0]): str(pair[1]) for pair in self.info.get("DriverStatus") or []}
        on_xfs = backing.get("Backing Filesystem") == "xfs"
        if driver.startswith("overlay") and on_xfs and self._has_project_quota():
            return "xfs project quota"
        return None

    def _has_project_quota(self) -> bool:
        root = str(self.info.get("DockerRootDir") or "/")
        best, options = "", ""
        try:
            mounts = Path("/proc/self/mountinfo").read_text().splitlines() if self.is_local else []
        except OSError:
            return False
        for line in mounts:
            words = line.split()
            if f"{root}/".startswith(words[4].rstrip("/") + "/") and len(words[4]) >= len(best):
                best, options = words[4], words[-1]
        return any(option in ("prjquota", "pquota") for option in options.split(","))


def usual_sockets(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return where engines listen, those that serve everybody first."""
    places = ["/run/docker.sock", "/var/run/docker.sock", "/run/podman/podman.sock"]
    if runtime := environment.get("XDG_RUNTIME_DIR"):
        places += [f"{runtime}/docker.sock", f"{runtime}/podman/podman.sock"]
    return [*places, str(Path.home() / ".docker/run/docker.sock")]


def find_engine(environment: Mapping[str, str] = os.environ) -> Engine:
    """The engine `DOCKER_HOST` names, else the first usual socket that answers."""
    if named := environment.get("DOCKER_HOST"):
        return _ask(named)
    sockets = [path for path in usual_sockets(environment) if Path(path).is_socket()]
    answers = [_ask(f"unix://{path}") for path in sockets]
    working = [answer for answer in answers if answer.problem is None]
    if answers:
        return (working or answers)[0]
    tried = ", ".join(usual_sockets(environment))
    return Engine(None, problem=f"no container engine: none of {tried} is a socket; {NO_ENGINE}")


def _ask(url: str) -> Engine:
    try:
        connection = _connection(url)
        try:
            connection.request("GET", "/info", headers={"Host": "engine"})
            answer = connection.getresponse()
            body = answer.read(1 << 22)
        finally:
            connection.close()
        info = json.loads(body) if answer.status == 200 else None
    except (OSError, ValueError, http.client.HTTPException) as error:
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return Engine(url, problem=f"no container engine answers at {url} ({why}); {NO_ENGINE}")
    if not isinstance(info, dict):
        return Engine(url, problem=f"what answers at {url} is no container engine; {NO_ENGINE}")
    if info.get("OSType", "linux") != "linux":
        return Engine(url, info, f"the engine at {url} runs {info['OSType']} containers; switch it to Linux")
    return Engine(url, info)


def _connection(url: str) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return _UnixConnection(parts.path)
    if parts.scheme in ("tcp", "http") and parts.hostname and os.environ.get("DOCKER_TLS_VERIFY", "") != "1":
        return http.client.HTTPConnection(parts.hostname, parts.port or 2375, timeout=ASK_SECONDS)
    raise ValueError(
        "use unix:///path or tcp://host:port without TLS; for others forward the socket with ssh"
    )


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("engine", timeout=ASK_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


# What an engine answers, in the protocol's own terms.

_MESSAGE_LIMIT = 500


def message_of(error: BaseException) -> str:
    """The engine's own words, on one line."""
    text = " ".join(str(getattr(error, "message", "") or error).split()) or type(error).__name__
    return text[:_MESSAGE_LIMIT] + "…" if len(text) > _MESSAGE_LIMIT else text


def status_of(error: BaseException | None) -> int | None:
    """Return the engine's HTTP status for a failed call, or for the one an error of ours came from."""
    cause = error.__cause__ if isinstance(error, SandboxError) else error
    status = getattr(cause, "status", None)
    return status if isinstance(status, int) else None


def translated(error: BaseException, what: str) -> SandboxError:
    """The protocol's error for a failed call."""
    status = status_of(error)
    text = f"cannot {what}: {message_of(error)}"
    lower = text.lower()
    if status is None or status == 900:  # aiodocker's own number for a lost connection
        return SandboxConnectionError(f"{text}; does the container engine still run?")
    if status == 404 and "container" in lower:
        return SandboxNotFoundError(text)
    if "unable to find user" in lower or "unable to find group" in lower:
        return SandboxUserError(text)
    if "no space left" in lower or "disk quota exceeded" in lower:
        return SandboxFullError(text)
    if "could not select device driver" in lower:
        return SandboxUnsupportedError(
            f"{text}; the engine needs the NVIDIA container toolkit to pass on GPUs"
        )
    return SandboxError(text)


def is_not_running(error: BaseException) -> bool:
    """Return whether a container was there, but not alive."""
    return status_of(error) == 409 and "not running" in message_of(error).lower()


# Calls to the engine over aiodocker, each failure in the protocol's terms.

Query = Mapping[str, str | int]


def missing_client() -> str:
    """Return what to say where the engine's client library is not installed."""
    return f"provider 'docker' needs aiodocker: {add_extra('docker')}"


class EngineClient:
    """One connection pool to one engine; opened by the first call."""

    def __init__(self, url: str) -> None:
        self.url = url

    @cached_property
    def _docker(self) -> aiodocker.Docker:
        try:
            import aiodocker
            import aiohttp
        except ImportError as error:
            raise SandboxUnsupportedError(missing_client()) from error
        path = self.url.removeprefix("unix://")
        # Every running command holds a connection; a limit would make the next call wait for them.
        if path != self.url:
            connector: aiohttp.BaseConnector = aiohttp.UnixConnector(path, limit=0)
            url = "unix://localhost"
        else:
            connector, url = aiohttp.TCPConnector(limit=0), self.url.replace("tcp://", "http://", 1)
        session = aiohttp.ClientSession(connector=connector)
        return aiodocker.Docker(url, connector=connector, session=session)

    async def close(self) -> None:
        """Close all connections."""
        docker = self.__dict__.pop("_docker", None)
        if docker is not None:
            await docker.session.close()
            await docker.close()
            # aiohttp closes its sockets in the loop's next turn.
            await asyncio.sleep(0)

    @asynccontextmanager
    async def answer(
        self,
        method: str,
        path: str,
        *,
        what: str,
        query: Query | None = None,
        data: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """One call whose answer is read as it comes."""
        docker = self._docker
        try:
            # aiodocker's own calls hold whole files in memory; its request underneath does not.
            response = await docker._do_query(
                path, method, params=dict(query or {}), data=data, headers=dict(headers or {})
            )
            async with response:
                yield response
        except self.failures() as error:
            raise translated(error, what) from error

    async def call(
        self, method: str, path: str, *, what: str, query: Query | None = None, body: Any = None
    ) -> Any:
        """One call with a JSON body, if any; its JSON answer, or None."""
        data = None if body is None else json.dumps(body)
        headers = {} if body is None else {"Content-Type": "application/json"}
        async with self.answer(method, path, what=what, query=query, data=data, headers=headers) as response:
            text = await response.text()
        return json.loads(text) if text.strip() and "json" in response.content_type else None

    async def progress(
        self, path: str, *, what: str, query: Query, data: Any = None
    ) -> AsyncIterator[dict[str, Any]]:
        """The reports of a long call (a pull, a build), one JSON object a line."""
        headers = {"Content-Type": "application/x-tar"} if data is not None else {}
        async with self.answer("POST", path, what=what, query=query, data=data, headers=headers) as response:
            buffer = b""
            async for chunk in response.content.iter_any():
                *lines, buffer = (buffer + chunk).split(b"\n")
                for line in lines:
                    if line.strip():
                        yield json.loads(line)
            if buffer.strip():
                yield json.loads(buffer)

    def attach(self, exec_id: str) -> Stream:
        """The output of a command that was made with `exec`; reading starts it."""
        from aiodocker.execs import Exec

        return Exec(self._docker, exec_id, tty=False).start()

    def failures(self) -> tuple[type[BaseException], ...]:
        """Everything a call may raise because of the other side."""
        import aiohttp
        from aiodocker.exceptions import DockerError

        return (DockerError, aiohttp.ClientError, ConnectionError)

    async def remove_container(self, name: str) -> None:
        """End a container with its volumes; gone already is fine."""
        delay = 0.05
        for _ in range(8):
            try:
                await self.call(
                    "DELETE", f"containers/{name}", what=f"delete {name}", query={"force": 1, "v": 1}
                )
            except SandboxError as error:
                status = status_of(error)
                if status == 404:
                    return
                # 409: it is being removed by somebody else; 500: its processes are still on their way out.
                if status not in (409, 500):
                    raise
                failure = error
            else:
                return
            await asyncio.sleep(delay)
            delay *= 2
        raise failure


# Locks between processes that use one engine from one data folder.

_POLL_SECONDS = 0.2
"""Between looks at a lock another process holds: the kernel tells nobody when it is free."""


@asynccontextmanager
async def engine_lock(path: Path) -> AsyncIterator[None]:
    """Hold a lock that ends with this process, however it ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(_POLL_SECONDS)
        yield
    finally:
        os.close(fd)


# What sandboxes of an engine can do, in words.

_FENCED = (
    "a bridge of its own; packet filter against private networks, the gateway, link-local and metadata "
    "addresses{more}; sandboxes cannot reach each other"
)


def engine_capabilities(engine: Engine, image: str) -> Capabilities:
    """The provider's word on itself."""
    kind = "Podman" if engine.is_podman else "Docker"
    version = engine.info.get("ServerVersion", "")
    place = "this machine's" if engine.is_local else f"{engine.url}'s"
    problem = missing_client() if find_spec("aiodocker") is None else engine.problem
    here = ", and against this machine's own addresses" if engine.is_local else ""
    if engine.url is None:
        return Capabilities(
            provider="docker",
            isolation="a container of a Docker or Podman engine, of which none answers here",
            images=True,
            builds=True,
            gpus=True,
            networks=frozenset({"none", "public"}),
            missing=(("container engine", problem or "none answers"),),
            problem=problem or "no container engine answers",
        )
    return Capabilities(
        provider="docker",
        isolation=f"a container of {place} {kind} {version}: own files, processes, network; no own kernel",
        images=True,
        builds=True,
        builds_buildkit=engine.is_podman,
        gpus=True,
        mounts=engine.is_local,
        writable_system=True,
        carries_work=True,
        users=True,
        networks=frozenset({"none", "public"}),
        enforcement={
            "cpus": _cgroups(engine),
            "memory": _cgroups(engine) + ", no swap besides",
            "disk": _disk(engine),
            "pids": _cgroups(engine),
            "network": _FENCED.format(more=here),
            "image": f"{image} for tasks that name none",
        },
        missing=() if problem is None else (("container engine", problem),),
        problem=problem,
    )


def _cgroups(engine: Engine) -> str:
    version = engine.info.get("CgroupVersion")
    return f"cgroup v{version}" if version else "cgroups"


def _disk(engine: Engine) -> str:
    if engine.quota:
        return engine.quota
    driver = engine.info.get("Driver", "this storage driver")
    return (
        f"not enforced as a whole: {driver} here has no quota (overlay2 on xfs mounted with pquota has); "
        "one file may not be larger than the limit"
    )
