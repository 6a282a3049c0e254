"""What a tracker, or the contract of somebody's agent, can get out of the machine of whoever asks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.api.stage import Stage, open_stage, serving
from valkyrie.client import ValkyrieClient, caller
from valkyrie.errors import MissingSecretError


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    monkeypatch.setenv("VALKYRIE_CONFIG_PATH", str(tmp_path / "config" / "valkyrie.yaml"))
    monkeypatch.chdir(tmp_path)
    made = open_stage(tmp_path / "home")
    yield made
    made.tracker_app.close()


@pytest.mark.parametrize(
    "missing", [{"TOKEN": "VALKYRIE_API_KEY"}, {"VALKYRIE_API_KEY": "token"}, {"A": "valkyrie_secret_key"}]
)
async def test_nobodys_own_key_is_stored_for_agents_to_read(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, missing: dict[str, str]
) -> None:
    monkeypatch.setenv("VALKYRIE_API_KEY", stage.ours)
    monkeypatch.setenv("valkyrie_secret_key", "the-servers")
    async with serving(stage) as server, ValkyrieClient(server.url, stage.ours) as http:
        with pytest.raises(MissingSecretError, match="given to no tracker") as raised:
            await caller.supply(http, MissingSecretError("No value.", missing=missing), allowed=True)
        assert stage.ours not in str(raised.value)
        assert await http.secrets() == []


async def test_what_an_agent_needs_is_stored(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL_KEY", "sk-1234")
    missing = MissingSecretError("No value.", missing={"MODEL_KEY": "MODEL_KEY"})
    async with serving(stage) as server, ValkyrieClient(server.url, stage.ours) as http:
        await caller.supply(http, missing, allowed=True)
        assert [one.name for one in await http.secrets()] == ["MODEL_KEY"]
