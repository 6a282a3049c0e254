"""What becomes of a sandbox after its attempt: removed, or kept for a person to look into."""

from __future__ import annotations

import asyncio

from sandboxes.errors import SandboxError
from sandboxes.protocol import Sandbox
from valkyrie.store.leases import Leased
from valkyrie.trial.log import AttemptLog
from valkyrie.trial.world import World

REMOVE_TIMEOUT_S = 120.0
"""A provider that cannot remove a sandbox must not hold its slot for ever."""


async def keep(world: World, leased: Leased, sandbox: Sandbox, log: AttemptLog) -> None:
    """Leave the sandbox for a person to look into; of each trial only the last one stays."""
    trial = (leased.task_id, leased.k)
    before = world.kept.pop(trial, None)
    world.kept[trial] = sandbox
    if before:
        await remove(world, before.id, log)


async def remove(world: World, sandbox_id: str, log: AttemptLog) -> None:
    """End a sandbox; when that fails the grade stands, and what is left is reaped by the next executor."""
    try:
        async with asyncio.timeout(REMOVE_TIMEOUT_S):
            await world.provider.delete_sandbox(sandbox_id)
    except (SandboxError, OSError) as error:
        log.note(f"the sandbox could not be removed: {str(error) or 'it took too long'}")
