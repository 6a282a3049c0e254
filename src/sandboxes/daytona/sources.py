"""A request for a sandbox, as the SDK's parameters."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from sandboxes.daytona import sdk
from sandboxes.errors import SandboxError, SandboxUnsupportedError
from sandboxes.scripted.wrapping import check_names

if TYPE_CHECKING:
    from daytona import CreateSandboxFromImageParams, CreateSandboxFromSnapshotParams
    from daytona import Resources as DaytonaResources

    from sandboxes.types import SandboxCreateRequest, SandboxSource

MADE_LABEL = "valkyrie-creation"
"""Carries a name nobody else uses, so that what a lost answer left behind is found."""
IDLE_MINUTES = 24 * 60
"""How long a sandbox may be idle when the request does not say; a silent command counts as idle."""


def parameters(
    request: SandboxCreateRequest, made: str
) -> CreateSandboxFromImageParams | CreateSandboxFromSnapshotParams:
    """What to hand to the SDK's `create`."""
    module = sdk.load()
    check_names(request.env_vars)
    stop = IDLE_MINUTES if request.auto_stop_interval is None else request.auto_stop_interval
    common: dict[str, Any] = {
        "name": request.name,
        "labels": {**request.labels, MADE_LABEL: made},
        "env_vars": dict(request.env_vars),
        "auto_stop_interval": stop,
        "auto_delete_interval": 0,
        # A list of hosts is set afterwards; until then nothing gets out.
        "network_block_all": request.network_policy != "public",
    }
    source: SandboxSource = request.source.outer if request.source.type == "compose" else request.source
    if source.type == "image":
        resources = _resources(request)
        from_image: CreateSandboxFromImageParams = module.CreateSandboxFromImageParams(
            **common, image=source.image, resources=resources
        )
        return from_image
    if source.type == "snapshot":
        common["snapshot"] = source.snapshot
    elif source.type == "targeted_snapshot":
        common |= {"snapshot": source.snapshot, "target": source.target}
    elif source.type == "host" and source.rootfs is not None:
        raise SandboxUnsupportedError(
            "provider 'daytona' cannot use a folder of this host as root; give an image or a snapshot"
        )
    from_snapshot: CreateSandboxFromSnapshotParams = module.CreateSandboxFromSnapshotParams(**common)
    return from_snapshot


def _resources(request: SandboxCreateRequest) -> DaytonaResources | None:
    limits = request.effective_limits
    asked = request.resources
    made: DaytonaResources = sdk.load().Resources(
        cpu=_whole(limits.cpus),
        memory=_whole(None if limits.memory_mb is None else limits.memory_mb / 1024),
        disk=_whole(None if limits.disk_mb is None else limits.disk_mb / 1024),
        gpu=limits.gpus or None,
        gpu_type=_gpu_type(asked.gpu_type) if asked is not None and asked.gpu_type else None,
    )
    nothing = (made.cpu, made.memory, made.disk, made.gpu) == (None, None, None, None)
    return None if nothing else made


def _gpu_type(name: str) -> Any:
    # Called with a value it does not know, the SDK's enum makes one up.
    kinds = {kind.value: kind for kind in sdk.load().GpuType if "unknown" not in kind.value}
    if name not in kinds:
        raise SandboxError(f"Daytona has no GPU {name!r}; it has {', '.join(kinds)}")
    return kinds[name]


def _whole(amount: float | None) -> int | None:
    """Daytona counts in whole cores and gigabytes; part of one takes the whole."""
    return None if amount is None else max(1, math.ceil(amount))
