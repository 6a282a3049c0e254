"""The catalogue as data, and the classes behind it."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.agents.catalogue.agent_logs import reading
from valkyrie import plugins
from valkyrie.agents.catalog import CATALOG
from valkyrie.agents.installed import InstalledAgent
from valkyrie.agents.protocol import AgentOptions

INSTALLED = [name for name, entry in CATALOG.items() if entry.version]
KEYS = {
    "claude-code": [(("ANTHROPIC_API_KEY", "CLAUDE_CODE_OAUTH_TOKEN"), True)],
    "codex": [(("OPENAI_API_KEY",), True)],
    "opencode": [(("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GOOGLE_API_KEY"), False)],
    "goose": [(("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GOOGLE_API_KEY"), False)],
    "gemini-cli": [(("GEMINI_API_KEY", "GOOGLE_API_KEY"), True)],
    "copilot-cli": [(("COPILOT_GITHUB_TOKEN", "GH_TOKEN", "GITHUB_TOKEN"), True)],
}


def agent(name: str, **kwargs: str) -> InstalledAgent:
    found = plugins.load(CATALOG[name].target, group="valkyrie.agents")(AgentOptions("openai/gpt-5", kwargs))
    assert isinstance(found, InstalledAgent)
    return found


@pytest.mark.parametrize("name", INSTALLED)
def test_an_entry_and_its_class_agree(name: str) -> None:
    entry, found = CATALOG[name], agent(name)
    assert (found.name, found.version, found.entry.needs_model) == (name, entry.version, entry.needs_model)
    assert entry.tried, "how far it was tried is not said"
    layer = found.layer
    assert (layer.name, layer.version) == (name, entry.version)
    pinned = [*layer.npm, *layer.pip]
    assert pinned and all("==" in package or "@" in package[1:] for package in pinned)


@pytest.mark.parametrize("name", INSTALLED)
def test_another_version_is_another_layer_and_another_agent(name: str) -> None:
    usual, other = agent(name), agent(name, version="0.0.1")
    assert other.layer != usual.layer
    assert other.digest != usual.digest


@pytest.mark.parametrize(("name", "groups"), KEYS.items())
def test_its_keys(name: str, groups: list[tuple[tuple[str, ...], bool]]) -> None:
    assert [(group.names, group.required) for group in CATALOG[name].keys] == groups


@pytest.mark.parametrize("name", INSTALLED)
def test_a_log_of_nonsense_is_read_without_harm(name: str, tmp_path: Path) -> None:
    rng = random.Random(name)
    words = ["type", "message", "part", "data", "content", "usage", "tokens", "error", "id", "item", "role"]
    kinds = ["result", "error", "message", "step_finish", "complete", "assistant.message"]

    def nonsense(depth: int) -> object:
        if depth == 0:
            return rng.choice([None, True, -1, 10**30, 1.5, "x" * 50, "\x00\ud800", "assistant", [], {}])
        made = {word: nonsense(depth - 1) for word in rng.sample(words, 3)}
        return rng.choice([made, [made], {**made, "type": rng.choice(kinds)}])

    lines = [nonsense(3) for _ in range(300)]
    found = reading(agent(name), tmp_path, "no json", "[" * 5000, *lines, exit_code=1)
    if found.trajectory:
        found.trajectory.to_json()


def test_naming_the_catalogues_agents_loads_none() -> None:
    code = (
        "import sys\n"
        "from valkyrie.agents.catalog import CATALOG\n"
        "assert 'codex' in CATALOG and 'codex' in list(CATALOG)\n"
        "sys.exit(any(m.startswith('valkyrie.agents.catalog.') for m in sys.modules)"
        " or 'pydantic' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
