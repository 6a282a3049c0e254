"""A tracker with things of two organisations, and a server that answers for it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.integration.api.stage import Stage, open_stage, serving
from valkyrie.api.server import ApiServer


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    monkeypatch.setenv("VALKYRIE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("VALKYRIE_CONFIG_PATH", str(tmp_path / "config" / "valkyrie.yaml"))
    made = open_stage(tmp_path / "home")
    yield made
    made.tracker_app.close()


@pytest.fixture
async def server(stage: Stage) -> AsyncIterator[ApiServer]:
    async with serving(stage) as made:
        yield made
