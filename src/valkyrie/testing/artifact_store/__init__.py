"""The contracts of places that keep artifacts and logs, as pytest suites for anyone who writes one.

from valkyrie.testing.artifact_store import ArtifactStoreContract

class TestMyStore(ArtifactStoreContract):
    @pytest.fixture
    def store(self, tmp_path):
        return MyStore(tmp_path)
"""

from __future__ import annotations

import pytest

for _part in ("artifacts", "logs"):
    pytest.register_assert_rewrite(f"valkyrie.testing.artifact_store.{_part}")

from valkyrie.testing.artifact_store.artifacts import ArtifactStoreContract  # noqa: E402
from valkyrie.testing.artifact_store.logs import LogKeeperContract  # noqa: E402

__all__ = ["ArtifactStoreContract", "LogKeeperContract"]
