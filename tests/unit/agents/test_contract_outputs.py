"""What an agent with a contract leaves for an eval: what it printed, and its own account."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandboxes.process import ProcessProvider
from sandboxes.protocol import Sandbox
from sandboxes.types import SandboxCreateRequest
from valkyrie import agents
from valkyrie.agents.contract_agent import MOST_OUTPUT
from valkyrie.agents.library import AgentLibrary
from valkyrie.agents.protocol import AgentTrial
from valkyrie.config import values
from valkyrie.domain import TaskSpec
from valkyrie.trajectory.transcript import DEFAULT_LIMIT, configured_limit, is_cut

TASK = TaskSpec(id="t", digest="d", instruction="Say hello.")
CONTRACT = """\
name: speaker
install_cmd: "true"
run_cmd: |
  test -f {{problem_statement_path}}
  {body}
output_artifacts:
  - path: trajectory.json
    source: /tmp/story-{{task_id}}.json
    required: false
"""


@pytest.fixture
async def sandbox(tmp_path: Path) -> AsyncIterator[Sandbox]:
    async with ProcessProvider(tmp_path / "sandboxes") as provider:
        made = await provider.create_sandbox(SandboxCreateRequest())
        await made.upload_file(TASK.problem_path, TASK.instruction.encode())
        yield made
        await provider.delete_sandbox(made.id)


async def kept(
    sandbox: Sandbox, root: Path, body: str, *, limit: int = DEFAULT_LIMIT, **secrets: str
) -> Path:
    """The folder with what an agent left whose run_cmd is `body`."""
    folder = root / "speaker"
    folder.mkdir()
    (folder / "contract.yaml").write_text(CONTRACT.format(body=body))
    prepared = agents.open_agent(str(folder), library=AgentLibrary(root / "library"))
    assert not prepared.capabilities.converses and not prepared.capabilities.takes_mcp
    agent = agents.open_frozen(agents.freeze(prepared, root / "run"), root / "run", root / "cache")
    places = {"kept": root / "kept", "trajectory_limit": limit}
    trial = AgentTrial(TASK, sandbox, secrets, lambda _s, _t: None, **places)
    await agent.install(trial)
    await agent.run(trial)
    return root / "kept"


async def test_what_it_printed_is_its_output(sandbox: Sandbox, tmp_path: Path) -> None:
    body = 'echo "Hello, $KEY."; echo aside >&2'
    folder = await kept(sandbox, tmp_path, body, KEY="very-secret")
    assert (folder / "output.txt").read_text() == "Hello, ***.\n"
    assert not (folder / "trajectory.json").exists()


async def test_too_much_is_cut(sandbox: Sandbox, tmp_path: Path) -> None:
    folder = await kept(sandbox, tmp_path, f"head -c {MOST_OUTPUT + 1000} /dev/zero | tr '\\0' x")
    assert (folder / "output.txt").stat().st_size == MOST_OUTPUT


async def test_silence_leaves_nothing(sandbox: Sandbox, tmp_path: Path) -> None:
    assert not (await kept(sandbox, tmp_path, "true")).exists()


async def test_its_own_account_is_kept_as_such(sandbox: Sandbox, tmp_path: Path) -> None:
    await sandbox.upload_file("/tmp/story-t.json", b'{"schema_version": "ATIF-v1.7"}')
    folder = await kept(sandbox, tmp_path, "true")
    assert (folder / "trajectory.json").read_bytes() == b'{"schema_version": "ATIF-v1.7"}'


async def test_its_account_is_cut_at_a_step_where_that_is_configured(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VALKYRIE_CONFIG_PATH", str(tmp_path / "valkyrie.yaml"))
    assert configured_limit() == DEFAULT_LIMIT
    values.set_value("trajectory_max_mb", "1")
    steps = [{"step_id": n, "source": "agent", "message": "x" * 300_000} for n in range(1, 6)]
    story = json.dumps({"schema_version": "ATIF-v1.7", "steps": steps}).encode()
    await sandbox.upload_file("/tmp/story-t.json", story)
    folder = await kept(sandbox, tmp_path, "true", limit=configured_limit())
    found = json.loads((folder / "trajectory.json").read_text())
    assert is_cut(found) and found["steps"][:-1] == steps[:3]
    assert found["steps"][-1]["message"].startswith("The account is larger than 1 MiB")
    values.set_value("trajectory_max_mb", "2")
    (tmp_path / "again").mkdir()
    folder = await kept(sandbox, tmp_path / "again", "true", limit=configured_limit())
    assert (folder / "trajectory.json").read_bytes() == story
