from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.unit.client.scripted_tracker import KEY, ScriptedTracker
from valkyrie.client import ValkyrieClient
from valkyrie.config.values import KEYS


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VALKYRIE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("VALKYRIE_CONFIG_PATH", str(tmp_path / "config" / "valkyrie.yaml"))
    for name in [key.env for key in KEYS if key.env] + [
        name for name in os.environ if "proxy" in name.lower()
    ]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def tracker() -> Iterator[ScriptedTracker]:
    with ScriptedTracker() as scripted:
        yield scripted


@pytest.fixture
async def client(tracker: ScriptedTracker) -> AsyncIterator[ValkyrieClient]:
    async with ValkyrieClient(tracker.url, KEY, timeout=60, patience=60) as opened:
        yield opened
