"""The Docker provider keeps the whole contract, against a real engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandboxes.docker import DockerProvider
from sandboxes.errors import SandboxDiedError
from sandboxes.protocol import SandboxProvider
from sandboxes.testing.contract import ProviderContract
from sandboxes.types import Command
from tests.docker_engine import PrivateEngine


@pytest.mark.slow
class TestDockerProvider(ProviderContract):
    @pytest.fixture
    async def provider(self, engine: PrivateEngine, tmp_path: Path) -> AsyncIterator[DockerProvider]:
        self.limits_disk = engine.has_quota
        async with DockerProvider(tmp_path / "state") as provider:
            yield provider
            await provider.reap({})
        assert engine.left() == []

    async def test_a_system_file_replaced_by_a_folder(
        self, provider: SandboxProvider, tmp_path: Path
    ) -> None:
        # No engine runs a command where the list of users is a folder; it still reads files there.
        done = await self.carry(
            provider, tmp_path, "rm /etc/passwd; mkdir /etc/passwd; echo x > /etc/passwd/in"
        )
        assert await done.target.download_file("/etc/passwd/in") == b"x\n"
        with pytest.raises(SandboxDiedError) as caught:
            await done.target.run(Command.shell("true"))
        assert not caught.value.outside
