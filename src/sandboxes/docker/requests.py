"""A request for a sandbox, as the engine's description of a container."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sandboxes.docker.engine import Engine
from sandboxes.errors import SandboxUnsupportedError
from sandboxes.scripted.wrapping import check_names
from sandboxes.types import SandboxCreateRequest

KIND, LABELS, NAME, NETWORK = (f"valkyrie.{word}" for word in ("kind", "labels", "name", "network"))
"""Labels of ours: what a thing is, the request's labels (which those of an image cannot forge), its name and
its network policy."""
SANDBOX, GUARD, BUILD = "sandbox", "guard", "build"

PUBLIC_NETWORK = "valkyrie-public"
DEFAULT_PIDS = 4096
PIDS_PER_MB = 2
"""No more processes than there is memory for: the kernel spends minutes on killing thousands one by one for
want of memory while a fork bomb makes new ones."""
MIB = 1 << 20
WORKDIR = "/app"

INIT = """
if env --ignore-signal=CHLD true 2>/dev/null; then exec env --ignore-signal=CHLD sleep infinity; fi
while :; do sleep 86400 & wait $!; done
"""
"""The first process. One that ignores its children's deaths has the kernel bury every orphan, starts nothing
that could fail or be killed, and is itself out of reach of signals from inside."""

CAPABILITIES = [
    *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE"),
    *("SETFCAP", "SETGID", "SETUID", "SYS_CHROOT"),
]
"""What package managers and `su` need; no raw sockets, no devices, nothing over the host."""

_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]+")


@dataclass(frozen=True, slots=True)
class Plan:
    """What a container is made with."""

    image: str
    workdir: str
    """Where commands start that do not say."""
    engine: Engine


def container_name(request: SandboxCreateRequest, token: str) -> str:
    """The id of a sandbox to be."""
    asked = _UNSAFE.sub("-", request.name or "sandbox")[:80].strip("-.") or "sandbox"
    return f"valkyrie-{asked}-{token}"


def container(request: SandboxCreateRequest, plan: Plan) -> dict[str, Any]:
    """The body of the call that makes the container."""
    check_names(request.env_vars)
    return {
        "Image": plan.image,
        "Hostname": "sandbox",
        "User": "0",
        "WorkingDir": plan.workdir,
        "Entrypoint": ["/bin/sh", "-c", INIT],
        "Cmd": [],
        "Env": [f"{name}={value}" for name, value in request.env_vars.items()],
        "Labels": {
            **request.labels,
            KIND: SANDBOX,
            LABELS: json.dumps(request.labels),
            NAME: request.name or "",
            NETWORK: request.network_policy,
        },
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": {
            **_limits(request, plan.engine),
            **_devices(request),
            "NetworkMode": PUBLIC_NETWORK if request.network_policy == "public" else "none",
            "Mounts": [*_separate(request, plan.engine), *_shown(request, plan.engine)],
            "CapDrop": ["ALL"],
            "CapAdd": CAPABILITIES,
            "SecurityOpt": ["no-new-privileges"],
            "LogConfig": {"Type": "none", "Config": {}},
            "RestartPolicy": {"Name": "no"},
        },
    }


def _limits(request: SandboxCreateRequest, engine: Engine) -> dict[str, Any]:
    limits = request.effective_limits
    room = DEFAULT_PIDS if limits.memory_mb is None else max(256, limits.memory_mb * PIDS_PER_MB)
    found: dict[str, Any] = {"PidsLimit": limits.pids or min(DEFAULT_PIDS, room)}
    if limits.cpus is not None:
        # More than the engine has is refused by it, and would limit nothing.
        cpus = min(limits.cpus, engine.cpus) if engine.cpus else limits.cpus
        found["NanoCpus"] = max(int(cpus * 1e9), 10_000_000)
    if limits.memory_mb is not None:
        found["Memory"] = found["MemorySwap"] = limits.memory_mb * MIB
    if limits.disk_mb is not None:
        room = limits.disk_mb * MIB
        found["Ulimits"] = [{"Name": "fsize", "Soft": room, "Hard": room}]
        if engine.quota:
            found["StorageOpt"] = {"size": str(room)}
    return found


def _devices(request: SandboxCreateRequest) -> dict[str, Any]:
    asked, count = request.resources, request.effective_limits.gpus
    if not count:
        return {}
    if asked is not None and asked.gpu_type is not None:
        raise SandboxUnsupportedError(
            f"provider 'docker' cannot choose a GPU by type ({asked.gpu_type}); leave gpu_type out"
        )
    return {"DeviceRequests": [{"Count": count, "Capabilities": [["gpu"]]}]}


def _separate(request: SandboxCreateRequest, engine: Engine) -> list[dict[str, Any]]:
    """A volume without a name for each folder: it goes with the container."""
    room = request.effective_limits.disk_mb
    options: Mapping[str, Any] = {"Labels": {KIND: SANDBOX}}
    if room is not None and engine.quota == "xfs project quota":
        options = {**options, "DriverConfig": {"Name": "local", "Options": {"size": str(room * MIB)}}}
    return [
        {"Type": "volume", "Target": folder, "VolumeOptions": options} for folder in request.separate_folders
    ]


def _shown(request: SandboxCreateRequest, engine: Engine) -> list[dict[str, Any]]:
    shown = [mount for mount in request.mounts if not mount.copy_on_write]
    if shown and not engine.is_local:
        raise SandboxUnsupportedError(
            f"the engine at {engine.url} is on another machine: folders of this one cannot be shown in it"
        )
    return [
        {"Type": "bind", "Source": mount.source, "Target": mount.target, "ReadOnly": True} for mount in shown
    ]
