"""Contract: limits hold, and the network is what was asked for."""

from __future__ import annotations

import asyncio

import pytest

from sandboxes.errors import SandboxError
from sandboxes.protocol import SandboxProvider
from sandboxes.testing.base import Capture, ContractBase, output_of
from sandboxes.types import Command, Limits


class LimitContract(ContractBase):
    """What an agent cannot take."""

    async def test_too_much_memory_is_137(self, provider: SandboxProvider) -> None:
        self.needs("executes", "limits_memory")
        sandbox = await provider.create_sandbox(self.request(limits=Limits(memory_mb=64)))
        try:
            # It keeps the last lines, and this one never ends.
            assert await sandbox.run(Command(argv=("tail", "/dev/zero"), timeout=60)) == 137
            assert await output_of(sandbox, "echo usable") == "usable\n"
        finally:
            await provider.delete_sandbox(sandbox.id)

    async def test_too_many_processes_are_refused(self, provider: SandboxProvider) -> None:
        self.needs("executes", "limits_processes")
        sandbox = await provider.create_sandbox(self.request(limits=Limits(pids=24)))
        try:
            script = "i=0; while [ $i -lt 100 ]; do sleep 60 & i=$((i+1)); done"
            assert await sandbox.run(Command.shell(script, timeout=5)) != 0
            await sandbox.kill_all()
            assert await output_of(sandbox, "echo usable") == "usable\n"
        finally:
            await provider.delete_sandbox(sandbox.id)

    async def test_a_full_disk_is_the_sandboxs_own(self, provider: SandboxProvider) -> None:
        self.needs("executes", "limits_disk")
        sandbox = await provider.create_sandbox(self.request(limits=Limits(disk_mb=16)))
        try:
            captured = Capture()
            command = Command.shell("mkdir -p /app; head -c 64000000 /dev/zero > /app/big", timeout=60)
            assert await sandbox.run(command, captured) != 0
            assert "space" in captured.stderr
            with pytest.raises(SandboxError):
                await sandbox.upload_file("/app/more", b"x" * 64_000_000)
            await sandbox.remove("/app/big")
            await sandbox.upload_file("/app/small", b"fits")
        finally:
            await provider.delete_sandbox(sandbox.id)

    async def test_a_full_disk_leaves_room_in_separate_folders(self, provider: SandboxProvider) -> None:
        self.needs("executes", "limits_disk")
        request = self.request(limits=Limits(disk_mb=16), separate_folders=("/tests",))
        sandbox = await provider.create_sandbox(request)
        try:
            fill = "mkdir -p /app; for f in /app /tests; do head -c 64000000 /dev/zero > $f/big; done"
            assert await sandbox.run(Command.shell(fill, timeout=60)) != 0
            await sandbox.clear_folder("/tests")
            await sandbox.upload_file("/tests/small", b"fits")
            assert await sandbox.run(Command.shell("cat /tests/small > /tests/copy")) == 0
            with pytest.raises(SandboxError):
                await sandbox.upload_file("/app/more", b"x" * 1_000_000)
        finally:
            await provider.delete_sandbox(sandbox.id)

    async def test_without_network_nothing_is_reached(self, provider: SandboxProvider) -> None:
        self.needs("executes", "isolates_network")
        reached = asyncio.Event()

        async def note(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            reached.set()
            writer.close()

        server = await asyncio.start_server(note, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        sandbox = await provider.create_sandbox(self.request(network="none"))
        try:
            for address in (f"127.0.0.1/{port}", "1.1.1.1/53"):
                script = f"exec 3<>/dev/tcp/{address}"
                assert await sandbox.run(Command.bash(script, timeout=60)) not in (0, 124, 127)
            assert not reached.is_set()
        finally:
            await provider.delete_sandbox(sandbox.id)
            server.close()
            await server.wait_closed()
