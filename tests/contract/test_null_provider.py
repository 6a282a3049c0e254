from collections.abc import AsyncIterator

import pytest

from sandboxes.null import NullProvider
from sandboxes.testing import ProviderContract


class TestNullProvider(ProviderContract):
    executes = False

    @pytest.fixture
    async def provider(self) -> AsyncIterator[NullProvider]:
        async with NullProvider() as provider:
            yield provider

    async def test_commands_succeed_silently(self, provider: NullProvider) -> None:
        sandbox = await provider.create_sandbox(self.request())
        result = await sandbox.exec("exit 3")
        assert (result.exit_code, result.output) == (0, "")
        assert [piece async for piece in sandbox.command("exit 3")] == []
