"""Where the engine is, and what it says of itself, asked without an event loop."""

from __future__ import annotations

import http.client
import json
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sandboxes.limits import host_memory_mb

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
    """Where engines listen, those that serve everybody first."""
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
