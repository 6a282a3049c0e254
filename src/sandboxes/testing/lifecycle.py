"""Contract: making, finding and ending sandboxes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from sandboxes.errors import SandboxError, SandboxNotFoundError
from sandboxes.protocol import Sandbox, SandboxProvider
from sandboxes.testing.base import ContractBase, cancelled
from sandboxes.types import Command, SandboxQuery

OPERATIONS: dict[str, Callable[[Sandbox, Path], Awaitable[object]]] = {
    "exec": lambda sandbox, _: sandbox.exec("true"),
    "run": lambda sandbox, _: sandbox.run(Command.shell("true")),
    "command": lambda sandbox, _: _all(sandbox.command("true")),
    "upload_file": lambda sandbox, _: sandbox.upload_file("/app/x", b"x"),
    "download_file": lambda sandbox, _: sandbox.download_file("/app/x"),
    "upload_stream": lambda sandbox, _: sandbox.upload_stream("/app/x", _pieces()),
    "stream_download": lambda sandbox, _: _all(sandbox.stream_download("/app/x")),
    "upload_folder": lambda sandbox, folder: sandbox.upload_folder(folder, "/app"),
    "download_folder": lambda sandbox, folder: sandbox.download_folder("/app", folder / "out"),
    "list_files": lambda sandbox, _: sandbox.list_files("/app/*"),
    "is_folder": lambda sandbox, _: sandbox.is_folder("/app"),
    "remove": lambda sandbox, _: sandbox.remove("/app/x"),
    "clear_folder": lambda sandbox, _: sandbox.clear_folder("/app"),
    "kill_all": lambda sandbox, _: sandbox.kill_all(),
}


class LifecycleContract(ContractBase):
    """What holds from the making of a sandbox to its end."""

    async def test_a_new_sandbox_is_what_was_asked_for(self, provider: SandboxProvider) -> None:
        before = datetime.now(UTC) - timedelta(seconds=5)
        sandbox = await provider.create_sandbox(self.request(name="asked", labels={"a": "1", "b": "2"}))
        try:
            assert sandbox.id
            assert sandbox.name in ("asked", sandbox.id)
            assert sandbox.state == "started"
            assert sandbox.labels is not None
            assert {"a": "1", "b": "2"}.items() <= dict(sandbox.labels).items()
            assert sandbox.created_at is not None
            assert before <= sandbox.created_at <= datetime.now(UTC) + timedelta(seconds=5)
        finally:
            await provider.delete_sandbox(sandbox.id)

    async def test_listing_by_labels(self, provider: SandboxProvider) -> None:
        made = [
            await provider.create_sandbox(self.request(labels={"run": run, "kind": "test"}))
            for run in ("one", "one", "two")
        ]

        async def listed(**labels: str) -> set[str]:
            return {sandbox.id async for sandbox in provider.list_sandboxes(SandboxQuery(labels=labels))}

        assert await listed(run="one") == {made[0].id, made[1].id}
        assert await listed(run="one", kind="test") == {made[0].id, made[1].id}
        assert await listed(run="one", kind="other") == set()
        assert {sandbox.id async for sandbox in provider.list_sandboxes()} >= {item.id for item in made}
        assert await provider.reap({"run": "one"}) == 2
        assert await listed(kind="test") == {made[2].id}
        await provider.delete_sandbox(made[2].id)
        assert await listed(kind="test") == set()

    async def test_finding_by_id(self, provider: SandboxProvider, sandbox: Sandbox) -> None:
        await sandbox.upload_file("/app/mark", b"mine")
        found = await provider.get_sandbox(sandbox.id)
        assert found.id == sandbox.id
        assert await found.download_file("/app/mark") == b"mine"
        with pytest.raises(SandboxNotFoundError):
            await provider.get_sandbox("never-made")

    async def test_deleting_is_idempotent(self, provider: SandboxProvider) -> None:
        sandbox = await provider.create_sandbox(self.request())
        await provider.delete_sandbox(sandbox.id)
        await provider.delete_sandbox(sandbox.id)
        await provider.delete_sandbox("never-made")
        assert sandbox.state == "deleted"
        with pytest.raises(SandboxNotFoundError):
            await provider.get_sandbox(sandbox.id)

    @pytest.mark.parametrize("operation", OPERATIONS)
    async def test_a_stale_handle_says_so(
        self, provider: SandboxProvider, tmp_path: Path, operation: str
    ) -> None:
        sandbox = await provider.create_sandbox(self.request())
        again = await provider.get_sandbox(sandbox.id)
        await provider.delete_sandbox(sandbox.id)
        for handle in (sandbox, again):
            with pytest.raises(SandboxNotFoundError):
                await OPERATIONS[operation](handle, tmp_path)

    async def test_deleting_ends_a_running_stream(self, provider: SandboxProvider) -> None:
        self.needs("executes")
        sandbox = await provider.create_sandbox(self.request())
        with pytest.raises(SandboxNotFoundError):
            async with asyncio.timeout(60):
                async for piece in sandbox.command("while :; do echo tick; sleep 0.05; done"):
                    if "tick" in piece:
                        await provider.delete_sandbox(sandbox.id)

    async def test_sandboxes_do_not_see_each_other(self, provider: SandboxProvider) -> None:
        made = await asyncio.gather(*(provider.create_sandbox(self.request()) for _ in range(20)))
        try:
            assert len({sandbox.id for sandbox in made}) == 20

            async def use(sandbox: Sandbox) -> None:
                await sandbox.upload_file("/app/mine", sandbox.id.encode())
                await sandbox.exec("cp /app/mine /app/copy; ls /app > /app/seen")
                for path in await sandbox.list_files("/app/*"):
                    if path != "/app/seen":
                        assert await sandbox.download_file(path) == sandbox.id.encode()

            await asyncio.gather(*(use(sandbox) for sandbox in made))
        finally:
            await asyncio.gather(*(provider.delete_sandbox(sandbox.id) for sandbox in made))

    async def test_a_cancelled_creation_leaves_nothing(self, provider: SandboxProvider) -> None:
        for delay in (0, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.016):
            request = self.request(labels={"cancelled": str(delay)})
            task: asyncio.Task[object] = asyncio.create_task(provider.create_sandbox(request))
            await asyncio.sleep(delay)
            finished = task.done()
            await cancelled(task)
            left = await provider.reap(request.labels)
            assert left == (1 if finished else 0)

    async def test_capabilities_are_plain_to_read(self, provider: SandboxProvider) -> None:
        capabilities = provider.capabilities()
        assert capabilities.provider
        assert capabilities.isolation
        assert set(capabilities.enforcement) >= {"cpus", "memory", "disk", "pids"}
        assert "none" in capabilities.networks

    async def test_shell_argv_names_a_program(self, provider: SandboxProvider, sandbox: Sandbox) -> None:
        self.needs("executes")
        assert sandbox.shell_argv()
        gone = await provider.create_sandbox(self.request())
        await provider.delete_sandbox(gone.id)
        with pytest.raises(SandboxError):
            gone.shell_argv()


async def _all(items: AsyncIterator[object]) -> list[object]:
    return [item async for item in items]


async def _pieces() -> AsyncIterator[bytes]:
    yield b"x"
