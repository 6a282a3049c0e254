"""A request for a sandbox, as the engine's description of a container."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sandboxes.docker.engine import Engine
from sandboxes.errors import SandboxUnsupportedError
from sandboxes.limits import DEFAULT_DISK_MB, DEFAULT_PIDS, with_defaults
from sandboxes.scripted.wrapping import check_names
from sandboxes.types import Limits, Mount, SandboxCreateRequest
from sandboxes.values import ImageDefaults

KIND, LABELS, NAME, NETWORK, ALLOWED, CONTEXT, IMAGE_DEFAULTS = (
    f"valkyrie.{word}"
    for word in ("kind", "labels", "name", "network", "allowed-networks", "context", "image-defaults")
)
OWNER, MADE = "valkyrie.owner", "valkyrie.made"
"""Labels of ours: what a thing is, the request's labels (which those of an image cannot forge), its name, its
network policy, the private networks it reaches, the digest of the folder an image or volume was made from,
what the image of a container says of user and entrypoint; the data folder whose processes made a container
for a moment, and a mark that no two volumes have in common."""
SANDBOX, GUARD, BUILD, NETWORK_KIND, FOLDER_KIND = "sandbox", "guard", "build", "network", "folder"

PUBLIC_NETWORK = "valkyrie-public"
PROGRAMS = "/.valkyrie"
"""Where our own static programs are in a container."""
PIDS_PER_MB = 2
"""No more processes than there is memory for: the kernel spends minutes on killing thousands one by one for
want of memory while a fork bomb makes new ones."""
MIB = 1 << 20
WORKDIR = "/app"

SHELL_INIT = """
if env --ignore-signal=CHLD true 2>/dev/null; then exec env --ignore-signal=CHLD sleep infinity; fi
while :; do sleep 86400 & wait $!; done
"""
"""The first process on a processor our own is not written for. It ignores its children's deaths, so that the
kernel reaps every orphan, and signals from inside do not reach it; but an agent that is root can trace it."""

READ_ONLY_PATHS = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"]
MASKED_PATHS = [
    *("/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats"),
    *("/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats"),
    *("/sys/devices/virtual/powercap", "/sys/firmware"),
]
"""What engines protect by themselves; a request that names one path of its own has to name all."""
OUT_OF_MEMORY_SETTINGS = [
    f"/proc/1{task}/oom_{name}" for task in ("", "/task/1") for name in ("adj", "score_adj")
]
"""Settings of the first process that root may write without tracing it: the kernel would kill it first."""

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
    defaults: ImageDefaults
    """What the image says."""
    engine: Engine
    programs: Mapping[str, Any] | None = None
    """The mount of our own programs; without it a shell of the image is the first process."""
    shown: tuple[Mapping[str, Any], ...] = ()
    """The mounts of folders of ours."""
    image_env: tuple[str, ...] = ()
    """Names of the variables the image sets."""
    network: str = "none"
    """The network it is on, as the engine knows it."""
    seccomp: str | None = None
    """The filter of system calls, as the engine takes it; None leaves the engine's own."""

    @property
    def volumes(self) -> list[Mapping[str, Any]]:
        """All mounts of folders of ours."""
        return [*self.shown, *([self.programs] if self.programs else [])]


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
        # For a user that is named, were it by number, engines read the container's own list of users at each
        # command; an agent may have put a pipe in its place.
        "User": "0" if plan.defaults.user else "",
        "WorkingDir": plan.defaults.workdir,
        "Entrypoint": ["/bin/sh", "-c", SHELL_INIT] if plan.programs is None else [f"{PROGRAMS}/init"],
        "Cmd": [],
        "Env": [
            *(f"{name}={value}" for name, value in request.env_vars.items()),
            # A name alone takes the image's variable away.
            *_refused(request, plan.image_env),
        ],
        "Labels": {
            **request.labels,
            KIND: SANDBOX,
            LABELS: json.dumps(request.labels),
            NAME: request.name or "",
            NETWORK: request.network_policy,
            ALLOWED: ",".join(request.allowed_networks),
            IMAGE_DEFAULTS: json.dumps([plan.defaults.user, *plan.defaults.entrypoint]),
        },
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": {
            **_limits(request, plan.engine),
            **_devices(request),
            "NetworkMode": plan.network,
            "Mounts": [
                *_separate(request, plan.engine),
                *_doors(request),
                *plan.shown,
                *([plan.programs] if plan.programs else []),
            ],
            "CapDrop": ["ALL"],
            "CapAdd": CAPABILITIES,
            "SecurityOpt": [
                "no-new-privileges",
                *([f"seccomp={plan.seccomp}"] if plan.seccomp is not None else []),
            ],
            "ReadonlyPaths": [*READ_ONLY_PATHS, *_protected(plan.engine)],
            "MaskedPaths": MASKED_PATHS,
            "LogConfig": {"Type": "none", "Config": {}},
            "RestartPolicy": {"Name": "no"},
        },
    }


def _refused(request: SandboxCreateRequest, image_env: Sequence[str]) -> list[str]:
    refuse = request.refused_image_env
    return [name for name in image_env if refuse and refuse(name) and name not in request.env_vars]


def _protected(engine: Engine) -> list[str]:
    """Return what of the first process is read-only, besides what it protects by not being traceable."""
    # Where the engine labels processes, its runtime writes the label of the first one below /proc/1 as the
    # last thing it does, and could not.
    labels = any("selinux" in str(option) for option in engine.info.get("SecurityOptions") or ())
    return OUT_OF_MEMORY_SETTINGS if labels else ["/proc/1"]


def limits_of(request: SandboxCreateRequest, engine: Engine) -> Limits:
    """Return the limits in force: what was asked for, else what fits the engine's machine."""
    limits = with_defaults(request.effective_limits, engine.memory_mb, disk_in_memory=False)
    if request.effective_limits.pids is None:
        room = max(256, (limits.memory_mb or 0) * PIDS_PER_MB)
        limits = replace(limits, pids=min(DEFAULT_PIDS, room))
    return replace(limits, disk_mb=limits.disk_mb or DEFAULT_DISK_MB)


def _limits(request: SandboxCreateRequest, engine: Engine) -> dict[str, Any]:
    limits = limits_of(request, engine)
    memory, disk = (limits.memory_mb or 0) * MIB, (limits.disk_mb or 0) * MIB
    found: dict[str, Any] = {
        "PidsLimit": limits.pids,
        "Memory": memory,
        "MemorySwap": memory,
        "Ulimits": [{"Name": "fsize", "Soft": disk, "Hard": disk}],
    }
    if limits.cpus is not None:
        # More than the engine has is refused by it, and would limit nothing.
        cpus = min(limits.cpus, engine.cpus) if engine.cpus else limits.cpus
        found["NanoCpus"] = max(int(cpus * 1e9), 10_000_000)
    if engine.quota:
        found["StorageOpt"] = {"size": str(disk)}
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
    room = limits_of(request, engine).disk_mb
    options: Mapping[str, Any] = {"Labels": {KIND: SANDBOX}}
    if room is not None and engine.quota == "xfs project quota":
        options = {**options, "DriverConfig": {"Name": "local", "Options": {"size": str(room * MIB)}}}
    return [
        {"Type": "volume", "Target": folder, "VolumeOptions": options} for folder in request.separate_folders
    ]


def shown_folders(request: SandboxCreateRequest, engine: Engine) -> list[Mount]:
    """Return what is shown to a sandbox of folders that do not change. Raises for an engine elsewhere."""
    shown = [mount for mount in request.mounts if not mount.copy_on_write]
    if shown and not engine.is_local:
        raise SandboxUnsupportedError(
            f"the engine at {engine.url} is on another machine: folders of this one cannot be shown in it"
        )
    return [mount for mount in shown if not mount.sockets]


def _doors(request: SandboxCreateRequest) -> list[dict[str, Any]]:
    """Return the mounts of folders with sockets, which no copy would do for."""
    return [
        {"Type": "bind", "Source": mount.source, "Target": mount.target, "ReadOnly": True}
        for mount in request.mounts
        if mount.sockets and not mount.copy_on_write
    ]
