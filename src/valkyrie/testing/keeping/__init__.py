"""The contracts of places that keep artifacts and logs, as pytest suites for anyone who writes one.

from valkyrie.testing.keeping import ArtifactStoreContract

class TestMyStore(ArtifactStoreContract):
    @pytest.fixture
    def store(self, tmp_path):
        return MyStore(tmp_path)
"""

from __future__ import annotations

import pytest

for _part in ("artifacts", "logs"):
    pytest.register_assert_rewrite(f"valkyrie.testing.keeping.{_part}")

from valkyrie.testing.keeping.artifacts import ArtifactStoreContract  # noqa: E402
from valkyrie.testing.keeping.logs import LogKeeperContract  # noqa: E402

__all__ = ["ArtifactStoreContract", "LogKeeperContract"]
