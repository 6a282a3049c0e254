"""What all installed agents have in common, with programs that only pretend."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sandboxes.local.provider import LocalProvider
from sandboxes.protocol import Sandbox
from sandboxes.types import Mount, SandboxCreateRequest
from tests.abilities import need_local_sandboxes
from valkyrie.agents import command
from valkyrie.agents.catalog.claude_code import ClaudeCode
from valkyrie.agents.catalog.codex import Codex
from valkyrie.agents.protocol import AgentOptions, AgentTrial
from valkyrie.domain import ExitReason, TaskSpec, Timeouts
from valkyrie.errors import AgentInstallError, UsageError
from valkyrie.trajectory import Trajectory

TRICKY = "Say \"hi\" and '$(touch /app/owned)' `touch /app/owned` ; \\ $HOME\nüñí -p --version\n"
EVENT = {
    "type": "assistant",
    "message": {
        "id": "m1",
        "model": "some-model",
        "content": [{"type": "text", "text": "Hi."}],
        "usage": {"input_tokens": 7, "output_tokens": 2},
    },
}
RESULT = {"type": "result", "is_error": False, "total_cost_usd": 0.5, "modelUsage": {}}
MODEL_URL = "http://127.0.0.1:8765"


def program(layer: Path, body: str) -> Path:
    """A layer whose claude is a shell script."""
    place = layer / "node_modules" / "@anthropic-ai" / "claude-code-linux-x64" / "claude"
    place.parent.mkdir(parents=True)
    place.write_text(f'#!/bin/sh\n[ "$1" = --version ] && exec echo 1.2.3\n{body}\n')
    place.chmod(0o755)
    return layer


def printing(*events: Any) -> str:
    lines = "\n".join(json.dumps(event) for event in events)
    return f"cat <<'END'\n{lines}\nEND"


class Stage:
    """Sandboxes with a layer, and an agent that is run in them."""

    def __init__(self, provider: LocalProvider, folder: Path) -> None:
        self.provider = provider
        self.folder = folder
        self.kept = folder / "kept"
        self.logged: list[str] = []

    async def sandbox(self, layer: Path | None) -> Sandbox:
        mounts = (Mount(source=str(layer), target="/opt/valkyrie/claude-code"),) if layer else ()
        return await self.provider.create_sandbox(SandboxCreateRequest(mounts=mounts, network="none"))

    def trial(self, sandbox: Sandbox, instruction: str = "Do it.", **more: Any) -> AgentTrial:
        task = {"timeouts": Timeouts(agent=20.0), **more.pop("task", {})}
        return AgentTrial(
            TaskSpec(id="t", digest="d", instruction=instruction, **task),
            sandbox,
            more.pop("secrets", {}),
            lambda _stream, text: self.logged.append(text),
            kept=self.kept,
            model_url=more.pop("model_url", MODEL_URL),
            **more,
        )

    async def run(self, body: str, instruction: str = "Do it.", **more: Any) -> Any:
        """Run an agent whose program is `body`; how it ended."""
        sandbox = await self.sandbox(program(self.folder / "layer", body))
        trial = self.trial(sandbox, instruction, **more)
        await sandbox.upload_file(trial.task.problem_path, instruction.encode())
        agent = ClaudeCode(AgentOptions(model="anthropic/some-model"))
        await agent.install(trial)
        return await agent.run(trial)

    async def made(self) -> Sandbox:
        """The sandbox of the last run."""
        return [item async for item in self.provider.list_sandboxes()][-1]

    @property
    def log(self) -> str:
        return "".join(self.logged)


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    need_local_sandboxes(tmp_path / "try", network="none")
    async with LocalProvider(tmp_path / "state") as provider:
        yield Stage(provider, tmp_path)


async def test_the_prompt_arrives_as_it_is(stage: Stage) -> None:
    body = """
    cat >prompt
    echo "$*" >words
    ls owned && exit 1
    [ -w "$HOME" ] && [ -O "$(dirname "$CLAUDE_CONFIG_DIR")" ] || exit 2
    """
    ended = await stage.run(body + printing(EVENT, RESULT), TRICKY)
    assert (ended.exit_code, ended.trouble) == (0, None)
    sandbox = await stage.made()
    assert (await sandbox.download_file("/app/prompt")).decode() == TRICKY
    words = (await sandbox.download_file("/app/words")).decode()
    assert "--model some-model" in words and "hi" not in words


async def test_what_it_did_is_kept(stage: Stage) -> None:
    body = "echo complaint of $KEY >&2\n" + printing(EVENT, RESULT)
    ended = await stage.run(body, "Do it.", secrets={"KEY": "very-secret"}, model_url=None)
    usage = ended.usage
    assert (usage.input_tokens, usage.output_tokens, usage.steps) == (7, 2, 1)
    assert (usage.cost, usage.cost_source, usage.model) == (0.5, "agent", "some-model")
    assert (stage.kept / "claude-code.jsonl").read_text().count("\n") == 2
    trajectory = Trajectory.from_json((stage.kept / "trajectory.json").read_bytes())
    assert [step.source for step in trajectory.steps] == ["user", "agent"]
    assert trajectory.agent.version == ClaudeCode.entry.version
    assert "complaint of ***" in stage.log
    assert "1 steps, 7 tokens in (0 cached), 2 out, $0.5000 (agent)" in stage.log


async def test_a_model_of_ones_own_has_no_price(stage: Stage) -> None:
    ended = await stage.run(printing(EVENT, RESULT), model_url=MODEL_URL)
    assert (ended.usage.input_tokens, ended.usage.cost, ended.usage.cost_source) == (7, None, None)
    assert "7 tokens in (0 cached), 2 out" in stage.log and "$" not in stage.log


async def test_a_key_in_a_complaint_is_masked(stage: Stage) -> None:
    complaint = {"type": "result", "is_error": True, "api_error_status": 401, "result": "bad key very-secret"}
    ended = await stage.run(printing(complaint), secrets={"ANTHROPIC_API_KEY": "very-secret"})
    assert (ended.trouble.cause, ended.trouble.message) == ("model_unauthorized", "bad key ***")
    assert "very-secret" not in stage.log


@pytest.mark.parametrize(
    "junk",
    [
        "head -c 200000 /dev/urandom",
        "printf '%0100000d' 0 | tr 0 '['",
        """printf '{"type":"assistant","message":[1]}\\n{"type":"result","modelUsage":{"a":5}}\\n'""",
        """printf '{"type":"result","total_cost_usd":1e999,"is_error":true,"result":{}}\\n'""",
        """printf '{"type":"user","message":{"content":[{"type":"tool_result","content":NaN}]}}\\n'""",
        "kill -9 $$",
    ],
)
async def test_what_is_no_log_is_no_failure(stage: Stage, junk: str) -> None:
    ended = await stage.run(junk)
    assert ended.usage is None or ended.usage.input_tokens == 0


async def test_too_much_output_is_cut(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command.LogFile.__init__, "__defaults__", (1000,))
    ended = await stage.run(printing(EVENT) + "\nyes | head -c 100000")
    assert (stage.kept / "claude-code.jsonl").stat().st_size == 1000
    assert ended.usage.input_tokens == 7
    assert "is not kept" in stage.log


async def test_a_late_agent_is_ended_and_its_log_read(stage: Stage) -> None:
    ended = await stage.run(printing(EVENT) + "\nsleep 600", task={"timeouts": Timeouts(agent=0.5)})
    assert (ended.reason, ended.trouble) == (ExitReason.TIMEOUT, None)
    assert ended.usage.input_tokens == 7


async def test_a_folder_of_problems_is_named(stage: Stage) -> None:
    sandbox = await stage.sandbox(program(stage.folder / "layer", "cat >prompt"))
    trial = stage.trial(sandbox, task={"problem_path": "/problems"})
    await sandbox.upload_file("/problems/one.md", b"Do it.")
    await ClaudeCode(AgentOptions()).run(trial)
    assert b"the files in the folder /problems" in await sandbox.download_file("/app/prompt")


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user's sandboxes have one user")
async def test_it_runs_as_the_tasks_user(stage: Stage) -> None:
    await stage.run('id -u >who; echo "$HOME" >>who; touch "$HOME/x"', task={"user": "1234", "cwd": "/own"})
    sandbox = await stage.made()
    who, home = (await sandbox.download_file("/own/who")).decode().split()
    assert (who, home) == ("1234", command.HOME)


async def test_a_layer_that_is_not_shown_is_brought(stage: Stage) -> None:
    sandbox = await stage.sandbox(None)
    agent = ClaudeCode(AgentOptions())
    trial = stage.trial(sandbox, layer=program(stage.folder / "layer", "true"))
    await sandbox.upload_file(trial.task.problem_path, b"Do it.")
    await agent.install(trial)
    assert (await agent.run(trial)).exit_code == 0


async def test_each_root_file_system_is_tried_once(stage: Stage) -> None:
    count = '[ "$1" != --version ] || echo checked >>/tmp/checks'
    layer = program(stage.folder / "layer", "true")
    (script,) = layer.rglob("claude")
    script.write_text(f"#!/bin/sh\n{count}\n")
    sandbox = await stage.sandbox(layer)
    agent = ClaudeCode(AgentOptions())
    trials = [stage.trial(sandbox, task={"image": image}) for image in (None, None, "one", "one", None)]
    await asyncio.gather(*(agent.install(trial) for trial in trials))
    assert await sandbox.download_file("/tmp/checks") == b"checked\n" * 2


async def test_a_root_that_did_not_run_it_is_tried_again(stage: Stage) -> None:
    layer = program(stage.folder / "layer", "true")
    agent = ClaudeCode(AgentOptions())
    with pytest.raises(AgentInstallError):
        await agent.install(stage.trial(await stage.sandbox(None)))
    await agent.install(stage.trial(await stage.sandbox(layer)))


async def test_a_missing_program_is_named(stage: Stage) -> None:
    (stage.folder / "empty").mkdir()
    sandbox = await stage.sandbox(stage.folder / "empty")
    with pytest.raises(AgentInstallError, match=r"brings no program for this system.*-k version"):
        await ClaudeCode(AgentOptions()).install(stage.trial(sandbox))


async def test_a_program_that_does_not_run_is_named(stage: Stage) -> None:
    layer = program(stage.folder / "layer", "")
    (script,) = layer.rglob("claude")
    script.write_text("#!/nowhere/interpreter\n")
    sandbox = await stage.sandbox(layer)
    with pytest.raises(AgentInstallError, match="does not run in this root file system"):
        await ClaudeCode(AgentOptions()).install(stage.trial(sandbox))


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"max_turn": "5"}, "has no parameter 'max_turn'. Did you mean 'max_turns'"),
        ({"zzz": "5"}, "Known: version, effort"),
        ({"version": "latest"}, "an exact version is expected, like 2"),
        ({"version": "1.0 --registry=evil"}, "an exact version"),
    ],
)
def test_wrong_parameters_are_refused(kwargs: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ClaudeCode(AgentOptions(kwargs=kwargs))


def test_the_digest_is_of_what_is_tested() -> None:
    def digest(**options: Any) -> str:
        return ClaudeCode(AgentOptions(**options)).digest

    same = digest(model="m")
    assert same == digest(model="m", secrets={"ANTHROPIC_API_KEY": "mine"}, model_url="http://127.0.0.1:1")
    assert same == digest(model="m", kwargs={"version": ClaudeCode.entry.version})
    others = [digest(), digest(model="n"), digest(model="m", kwargs={"effort": "high"})]
    others.append(digest(model="m", kwargs={"version": "2.0.0"}))
    assert len({same, *others, Codex(AgentOptions(model="m")).digest}) == 6
