"""From what is asked for to what the keeper is told, and clear words for what cannot be had here."""

from __future__ import annotations

import os
from ipaddress import ip_network
from pathlib import Path

from sandboxes import limits as defaults
from sandboxes.errors import SandboxUnsupportedError
from sandboxes.local import ground, network, wire
from sandboxes.local.commands import OUR_OWN_PIDS, OUR_OWN_PIDS_INSIDE
from sandboxes.local.probe import Machine
from sandboxes.local.records import SUFFIX, Record
from sandboxes.types import HostSource, Limits, Mount, SandboxCreateRequest

DEFAULT_PIDS_BY_RLIMIT = 1024
"""Where the kernel has no group to count in, all sandboxes' processes count as the user's own, too."""
_MOST_VIEWS = 60
"""The layers of each go to the engine as descriptors, in one message."""


def refuse_unsupported(request: SandboxCreateRequest, machine: Machine) -> None:
    """Raise for what this machine or this provider cannot give."""
    if machine.problem is not None:
        raise SandboxUnsupportedError(f"local sandboxes do not work here: {machine.problem}")
    source = request.source
    if not isinstance(source, HostSource):
        raise SandboxUnsupportedError(
            f"the local provider cannot run a source of type {source.type!r};"
            " use --provider docker, or --host-image to run on this machine's own system files"
        )
    if source.rootfs is not None and machine.mode == ground.ROOTLESS:
        raise SandboxUnsupportedError(
            "a root file system in a folder needs root, or subordinate ids for this user:"
            " run as root, or use --provider docker"
        )
    if sum(mount.copy_on_write for mount in request.mounts) > _MOST_VIEWS:
        raise SandboxUnsupportedError(f"a sandbox has at most {_MOST_VIEWS} copy-on-write mounts")
    for mount in request.mounts:
        if not Path(mount.source).is_dir():
            raise SandboxUnsupportedError(f"{mount.source} is no folder that could be shown in a sandbox")
    for text in request.allowed_networks:
        try:
            ip_network(text)
        except ValueError as error:
            raise SandboxUnsupportedError(f"{text!r} cannot be an allowed network: {error}") from error
    policy = request.network_policy
    if policy == "allowlist":
        raise SandboxUnsupportedError(
            "the local provider has networks 'none' and 'public', no list of allowed hosts;"
            " use another provider"
        )
    if policy == "public" and (reason := network.why_unavailable()) is not None:
        raise SandboxUnsupportedError(f"network 'public' is not possible here: {reason}")


def group_limits(request: SandboxCreateRequest) -> Limits:
    """What the cgroup is told: the sandbox's limits with room for our own processes."""
    limits = _in_force(request)
    assert limits.pids is not None
    return Limits(cpus=limits.cpus, memory_mb=limits.memory_mb, pids=limits.pids + OUR_OWN_PIDS)


def _in_force(request: SandboxCreateRequest) -> Limits:
    return defaults.with_defaults(request.effective_limits, defaults.host_memory_mb())


def spec_of(request: SandboxCreateRequest, machine: Machine, record: Record) -> wire.Message:
    """What the keeper is told."""
    limits = _in_force(request)
    assert isinstance(request.source, HostSource)
    public = request.network_policy == "public"
    return {
        "id": record.id,
        "rootfs": request.source.rootfs,
        "disk_mb": limits.disk_mb,
        "memory_mb": limits.memory_mb,
        "separate": [_absolute(path) for path in request.separate_folders],
        "mounts": [(*_folders(mount), mount.sockets) for mount in request.mounts if not mount.copy_on_write],
        "views": [(*_folders(mount), _hidden(mount)) for mount in request.mounts if mount.copy_on_write],
        "resolv_conf": network.RESOLV_CONF if public else "",
        "network": public,
        "rlimits": _rlimits(limits, request.effective_limits.pids, machine),
        "record_name": record.id + SUFFIX,
        "record": record.opening(),
        "boot": record.keeper.boot,
    }


def _folders(mount: Mount) -> tuple[str, str]:
    return os.path.realpath(mount.source), _absolute(mount.target)


def _hidden(mount: Mount) -> list[str]:
    """The outermost of the paths; what is below one of them is gone with it."""
    found: list[str] = []
    for path in sorted(mount.hidden):
        parts = path.split("/")
        if path.startswith("/") or not {"", ".", ".."}.isdisjoint(parts):
            raise SandboxUnsupportedError(f"{path!r} cannot be hidden; name a path below the folder")
        if not any(path.startswith(f"{outer}/") for outer in found):
            found.append(path)
    return found


def _absolute(path: str) -> str:
    if not path.startswith("/") or ".." in path.split("/") or path.strip("/") == "":
        raise SandboxUnsupportedError(
            f"{path!r} cannot be a folder of its own; name an absolute path below /"
        )
    return path


def _rlimits(limits: Limits, asked_pids: int | None, machine: Machine) -> dict[str, int]:
    """Weaker limits where there is no cgroup for them."""
    found: dict[str, int] = {}
    if machine.support.memory is None and limits.memory_mb is not None:
        # Not the address space: Node, Java and Go reserve far more of it than they ever use.
        found["data"] = limits.memory_mb << 20
    if machine.support.pids is None:
        pids = DEFAULT_PIDS_BY_RLIMIT if asked_pids is None else asked_pids
        found["nproc"] = pids + (OUR_OWN_PIDS_INSIDE if machine.counts_apart else _tasks_of(os.geteuid()))
    return found


def _tasks_of(uid: int) -> int:
    """How many processes and threads a user has."""
    count = 0
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and process.stat().st_uid == uid:
                count += len(os.listdir(process / "task"))  # noqa: PTH208 - names are enough
        except OSError:
            continue  # it ended just now
    return count
