"""What the parts of the contract share: declared abilities, a sandbox, a way to watch a process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest

from sandboxes.protocol import Sandbox, SandboxProvider
from sandboxes.types import Command, SandboxCreateRequest, StreamName

HEARTBEAT = "while :; do echo x >> /app/beat; sleep 0.02; done"
"""A process that shows in a file whether it lives."""


class ContractBase:
    """A subclass gives a `provider` fixture and declares what does not hold for it."""

    executes = True
    """Commands really run."""
    isolates_processes = True
    """Commands see and can signal the sandbox's own processes only."""
    isolates_network = True
    """The network policy `none` is enforced."""
    changes_users = True
    """`Command.user` is supported."""
    limits_memory = True
    """The memory limit holds for the sandbox as a whole."""
    limits_processes = True
    """The limit on processes holds."""
    limits_disk = True
    """The disk limit holds."""

    LABELS = {"suite": "contract"}  # noqa: RUF012 - pytest classes are not instances to share state between

    @pytest.fixture
    async def provider(self) -> AsyncIterator[SandboxProvider]:
        """The provider under test; subclasses must give one."""
        raise NotImplementedError("give a `provider` fixture")
        yield

    @pytest.fixture
    async def sandbox(self, provider: SandboxProvider) -> AsyncIterator[Sandbox]:
        """One fresh sandbox."""
        made = await provider.create_sandbox(self.request())
        yield made
        await provider.delete_sandbox(made.id)

    def request(self, **changes: object) -> SandboxCreateRequest:
        """The usual request, without network, with some fields changed."""
        fields: dict[str, object] = {"labels": self.LABELS, "network": "none"}
        return SandboxCreateRequest.model_validate(fields | changes)

    def needs(self, *abilities: str) -> None:
        """Skip the test when the provider declares that it lacks one of these."""
        for ability in abilities:
            if not getattr(self, ability):
                pytest.skip(f"the provider declares {ability} = False")


class Capture:
    """A sink that keeps what it gets."""

    def __init__(self) -> None:
        self.stdout = ""
        self.stderr = ""

    def __call__(self, stream: StreamName, text: str) -> None:
        if stream == "stdout":
            self.stdout += text
        else:
            self.stderr += text


async def output_of(sandbox: Sandbox, script: str) -> str:
    """Stdout of a shell script which has to succeed."""
    captured = Capture()
    code = await sandbox.run(Command.shell(script, timeout=60), captured)
    assert code == 0, f"{script!r} ended with {code}: {captured.stderr}"
    return captured.stdout


async def beats(sandbox: Sandbox) -> int:
    """Return how often the heartbeat has beaten so far."""
    if not await sandbox.list_files("/app/beat"):
        return 0
    return len(await sandbox.download_file("/app/beat"))


async def wait_for_beats(sandbox: Sandbox) -> None:
    """Return once the heartbeat goes on."""
    before = await beats(sandbox)
    async with asyncio.timeout(60):
        while await beats(sandbox) <= before:  # noqa: ASYNC110 - what is watched is another process
            await asyncio.sleep(0.01)


async def assert_no_beats(sandbox: Sandbox) -> None:
    """The process with the heartbeat is dead."""
    before = await beats(sandbox)
    await asyncio.sleep(0.15)
    assert await beats(sandbox) == before, "a process that had to be dead is still running"


async def cancelled(task: asyncio.Task[object]) -> None:
    """Cancel the task and wait until it is over."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def eventually(holds: Callable[[], bool]) -> None:
    """Return once the condition holds."""
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110 - what is watched is another process
            await asyncio.sleep(0.01)
