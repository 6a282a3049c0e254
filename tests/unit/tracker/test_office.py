"""What an office lets those who ask it do."""

from __future__ import annotations

from pathlib import Path

import pytest

from valkyrie.errors import ValkyrieError
from valkyrie.nouns import Identity
from valkyrie.store.layout import DataFolder
from valkyrie.tracker.office import Office
from valkyrie.views import RunRequest


def test_services_on_loopback_are_refused_unless_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = RunRequest("oracle", "http://127.0.0.1:1")

    def refusal() -> str:
        office = Office(DataFolder(tmp_path), server=True, allow_local=False)
        try:
            with pytest.raises(ValkyrieError) as refused:
                office.tracker(Identity()).plan(request)
            return str(refused.value)
        finally:
            office.close()

    assert "a loopback address" in refusal() and "tracker.allowed_networks" in refusal()
    monkeypatch.setenv("VALKYRIE_ALLOW_LOCAL_WEBHOOKS", "true")
    assert "cannot reach the service" in refusal()
