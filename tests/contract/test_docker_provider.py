"""The Docker provider keeps the whole contract, against a real engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.docker_engine import PrivateEngine

from sandboxes.docker import DockerProvider
from sandboxes.testing.contract import ProviderContract


@pytest.mark.slow
class TestDockerProvider(ProviderContract):
    @pytest.fixture
    async def provider(self, engine: PrivateEngine, tmp_path: Path) -> AsyncIterator[DockerProvider]:
        self.limits_disk = engine.has_quota
        async with DockerProvider(tmp_path / "state") as provider:
            yield provider
            await provider.reap({})
        assert engine.left() == []
