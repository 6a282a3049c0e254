"""The local provider keeps the whole contract, as root and as an ordinary user."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandboxes.local import LocalProvider
from sandboxes.testing.contract import ProviderContract


class TestLocalProvider(ProviderContract):
    @pytest.fixture
    async def provider(self, tmp_path: Path) -> AsyncIterator[LocalProvider]:
        state = tmp_path / "state"
        async with LocalProvider(state) as provider:
            yield provider
        assert not state.exists() or list(state.iterdir()) == []
