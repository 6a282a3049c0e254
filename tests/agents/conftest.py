"""Real agents, fetched from their registries, in real sandboxes: a suite of its own, run by make test-all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.abilities import need_local_sandboxes
from tests.agents.public_agents import AgentCommands
from tests.integration.conftest import end_executor

HERE = Path(__file__).parent


USUAL = (
    *("test_real_agents.py", "test_eval_agents.py", "test_redirected_agents.py"),
    *("[local-opencode-messages]", "[local-goose-messages]"),
    *("remembers[claude-code]", "remembers[codex]", "skill[claude-code]", "server[claude-code]"),
    *("[local-gemini-cli-gemini]", "[local-mini-swe-agent-chat]", "[local-copilot-cli-chat]"),
)
"""What make test-all has time for; VALKYRIE_ALL_AGENTS=1 tries every agent, API, fault and provider."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    ours = [item for item in items if HERE in item.path.parents]
    for item in ours:
        item.add_marker(pytest.mark.slow)
        item.add_marker(pytest.mark.timeout(900))
    if os.environ.get("VALKYRIE_ALL_AGENTS") == "1":
        return
    left = [item for item in ours if not _usual(item.nodeid)]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in left]


def _usual(name: str) -> bool:
    return any(word in name for word in USUAL) and "test_troubles_end_in_their_cause" not in name


@pytest.fixture(scope="session")
def layers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where agents are installed, once for all tests; hundreds of megabytes, so not left behind."""
    folder = tmp_path_factory.mktemp("layers")
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session", params=["local", "docker"])
def commands(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, layers: Path
) -> Iterator[AgentCommands]:
    """A command line with a data folder and an executor of its own."""
    provider: str = request.param
    root = tmp_path_factory.mktemp(provider)
    if provider == "docker":
        request.getfixturevalue("engine")  # skips where none can be started
    else:
        need_local_sandboxes(root / "try", network="none")
    home = root / "home"
    (home / "cache").mkdir(parents=True)
    (home / "cache" / "layers").symlink_to(layers)
    env = {
        **os.environ,
        "VALKYRIE_HOME": str(home),
        "VALKYRIE_CONFIG_PATH": str(root / "config.yaml"),
        "VALKYRIE_EXECUTOR_IDLE_S": "60",
    }
    yield AgentCommands(provider, root, env)
    end_executor(home)
