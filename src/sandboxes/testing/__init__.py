"""The contract every sandbox provider keeps, as a pytest suite for anyone who writes one.

    from sandboxes.testing import ProviderContract

    class TestMyProvider(ProviderContract):
        isolates_network = False

        @pytest.fixture
        async def provider(self, tmp_path):
            async with MyProvider(tmp_path) as provider:
                yield provider

Needs pytest and pytest-asyncio in auto mode.
"""

from __future__ import annotations

import pytest

for _part in ("base", "contract", "files", "work"):
    pytest.register_assert_rewrite(f"sandboxes.testing.{_part}")

from sandboxes.testing.contract import ProviderContract  # noqa: E402

__all__ = ["ProviderContract"]
