"""From what a client asks for to a sandbox of the grant's provider."""

from __future__ import annotations

import asyncio

from sandboxes.protocol import Sandbox
from sandboxes.server.access import Access, Note
from sandboxes.server.errors import ApiError, retry_later
from sandboxes.server.shells import check_words
from sandboxes.server.wire import CreateSandbox, machine_memory
from sandboxes.types import (
    HostSource,
    ImageSource,
    Limits,
    SandboxCreateRequest,
    SandboxSource,
    SnapshotSource,
)

DEFAULT_MEMORY_GB = 1
"""As Daytona has it; without one, a key's sandboxes could take all of the machine's memory."""
_KEPT = ("autoStopInterval", "autoArchiveInterval", "autoDeleteInterval", "cpu", "memory", "disk", "snapshot")


async def create(access: Access, asked: CreateSandbox) -> Sandbox:
    """Make the sandbox, within the grant: its labels, its number, names only once."""
    request = create_request(access, asked)
    egress = egress_rules(asked.network_allow_list, asked.domain_allow_list)
    access.names_in_creation.append(asked.name)
    try:
        await _admit(access, asked.name)
        sandbox = await access.provider.create_sandbox(request)
    finally:
        access.names_in_creation.remove(asked.name)
    try:
        if egress:
            await sandbox.modify_egress_rules(egress)
    except BaseException:
        await asyncio.shield(access.provider.delete_sandbox(sandbox.id))
        raise
    access.notes[sandbox.id] = _note_of(asked)
    return sandbox


async def _admit(access: Access, name: str | None) -> None:
    living = [sandbox.name async for sandbox in access.sandboxes()]
    if name is not None and (name in living or access.names_in_creation.count(name) > 1):
        raise ApiError(409, f"Sandbox with name {name} already exists")
    if len(living) + len(access.names_in_creation) > access.max_sandboxes:
        raise retry_later(f"{access.max_sandboxes} sandboxes are in use, which is the limit; delete one")


def create_request(access: Access, asked: CreateSandbox) -> SandboxCreateRequest:
    """The request to the provider; what no provider of ours can do is refused."""
    refused = {"volumes": asked.volumes, "secrets": asked.secrets, "gpu": asked.gpu}
    for what, value in refused.items():
        if value:
            raise ApiError(400, f"These sandboxes have no {what}; ask for one without")
    check_words("", asked.env or {})
    return SandboxCreateRequest(
        source=_source(access, asked),
        limits=Limits(
            cpus=float(asked.cpu) if asked.cpu else None,
            # A disk may lie in memory, and is cut to fit the limit: one above all memory would cut nothing.
            memory_mb=min(asked.memory or DEFAULT_MEMORY_GB, machine_memory()) * 1024,
            disk_mb=asked.disk * 1024 if asked.disk else None,
        ),
        name=asked.name or None,
        labels={**(asked.labels or {}), **access.labels},
        env_vars=asked.env or {},
        auto_stop_interval=asked.auto_stop_interval,
        network_block_all=bool(asked.network_block_all),
    )


def egress_rules(*lists: str | None) -> list[str]:
    """Daytona's comma-separated lists as one list of rules."""
    return [rule.strip() for some in lists if some for rule in some.split(",") if rule.strip()]


def _source(access: Access, asked: CreateSandbox) -> SandboxSource:
    if access.host_image or (asked.build_info is None and not asked.snapshot):
        return HostSource()
    capabilities = access.provider.capabilities()
    wanted = asked.snapshot or _image_of(asked)
    if not capabilities.images:
        raise ApiError(
            400,
            f"Provider {capabilities.provider!r} runs no images (asked for {wanted}); serve with --host-image"
            " to use this machine's own system files instead, or with a provider that runs images",
        )
    return SnapshotSource(snapshot=asked.snapshot) if asked.snapshot else ImageSource(image=wanted)


def _image_of(asked: CreateSandbox) -> str:
    assert asked.build_info is not None
    lines = [line.strip() for line in asked.build_info.dockerfile_content.splitlines()]
    steps = [line for line in lines if line and not line.startswith("#")]
    words = steps[0].split() if len(steps) == 1 else []
    if len(words) != 2 or words[0].upper() != "FROM":
        raise ApiError(
            400, "Images are not built here; name one that exists instead of a Dockerfile with steps"
        )
    return words[1]


def _note_of(asked: CreateSandbox) -> Note:
    chosen = asked.model_dump(by_alias=True, exclude_none=True)
    return Note(
        settings={key: chosen[key] for key in _KEPT if key in chosen}
        | {"networkBlockAll": bool(asked.network_block_all)},
        user=None if asked.user in (None, "", "root") else asked.user,
    )
