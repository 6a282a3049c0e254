"""What a tracker app lets its callers do."""

from __future__ import annotations

from pathlib import Path

import pytest

from valkyrie.domain import Identity
from valkyrie.errors import ValkyrieError
from valkyrie.store.layout import DataFolder
from valkyrie.tracker.app import TrackerApp
from valkyrie.views import RunRequest


def test_services_on_loopback_are_refused_unless_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = RunRequest("oracle", "http://127.0.0.1:1")

    def refusal() -> str:
        tracker_app = TrackerApp(DataFolder(tmp_path), server=True, allow_local=False)
        try:
            with pytest.raises(ValkyrieError) as refused:
                tracker_app.tracker(Identity()).plan(request)
            return str(refused.value)
        finally:
            tracker_app.close()

    assert "a loopback address" in refusal() and "tracker.allowed_networks" in refusal()
    monkeypatch.setenv("VALKYRIE_ALLOW_LOCAL_WEBHOOKS", "true")
    assert "cannot reach the service" in refusal()
