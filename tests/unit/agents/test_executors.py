"""From a spec's `executor:` to an agent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sandboxes.null import NullProvider
from sandboxes.types import SandboxCreateRequest
from valkyrie.agents import open_agent, open_frozen
from valkyrie.agents.library import AgentLibrary
from valkyrie.agents.loader import agent_for, known_executors
from valkyrie.agents.protocol import Agent, AgentTrial
from valkyrie.domain import ExitReason, TaskSpec, Timeouts
from valkyrie.errors import AgentError, UsageError, UserError
from valkyrie.trajectory.records import from_record

PLUGIN = """
from valkyrie.agents.plugin import SimpleAgent

class Shouter(SimpleAgent):
    name = "shouter"
    parameters = ("mark",)

    async def execute(self, turns, workspace):
        await workspace.write("said.txt", turns[-1])
        text = (await workspace.read("said.txt")).decode()
        return text.upper() + self.options.kwargs.get("mark", "!")

class Whisperer(SimpleAgent):
    name = "whisperer"

    async def execute(self, turns, workspace):
        raise ValueError("cannot")
"""


@pytest.mark.parametrize(
    ("executor", "spec"),
    [
        ("mock", "mock"),
        ("copilot-sdk", "copilot-cli"),
        ("claude-cli", "claude-code"),
        ("codex", "codex"),
        ("agent:claude-code", "claude-code"),
        ("agent:pushed-by-me", "pushed-by-me"),
    ],
)
def test_names_are_understood(executor: str, spec: str, tmp_path: Path) -> None:
    assert agent_for(executor, base=tmp_path).spec_for_open_agent == spec


def test_only_the_command_line_names_a_class(tmp_path: Path) -> None:
    name = "valkyrie.testing.null:NapAgent"
    assert agent_for("mock", override=name, base=tmp_path).spec_for_open_agent == name
    with pytest.raises(UsageError, match=f"--agent {name}"):
        agent_for(name, base=tmp_path)


def test_a_spec_that_names_none_means_copilot(tmp_path: Path) -> None:
    chosen = agent_for(None, base=tmp_path)
    assert (chosen.name, chosen.implied) == ("copilot-cli", True)
    assert not agent_for("copilot-sdk", base=tmp_path).implied


def test_the_command_line_wins(tmp_path: Path) -> None:
    assert agent_for("no-such-thing", override="mock", base=tmp_path).name == "mock"


def test_contracts_are_beside_the_spec(tmp_path: Path) -> None:
    (tmp_path / "my-agent").mkdir()
    chosen = agent_for("agent:./my-agent", base=tmp_path)
    assert (chosen.spec_for_open_agent, chosen.name) == (str(tmp_path / "my-agent"), "my-agent")
    with pytest.raises(UsageError, match="nothing is there"):
        agent_for("agent:./other", base=tmp_path)
    with pytest.raises(UsageError, match="followed by a name or a path"):
        agent_for("agent:", base=tmp_path)


def test_unknown_names_list_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"'mok'. Did you mean 'mock'.*claude-cli.*--executor-plugin"
    ) as error:
        agent_for("mok", base=tmp_path)
    assert "oracle" not in str(error.value)


def plugin(folder: Path, text: str = PLUGIN) -> Path:
    file = folder / "mine.py"
    file.write_text(text)
    return file


def opened(folder: Path, name: str, *plugins: str, **options: Any) -> Agent:
    """The agent, by way of its frozen form as JSON."""
    chosen = agent_for(name, plugins=plugins, base=folder)
    prepared = open_agent(chosen.spec_for_open_agent, library=AgentLibrary(folder / "library"), **options)
    again = open_frozen(json.loads(json.dumps(prepared.frozen)), folder, folder)
    assert again.digest == prepared.digest
    return again


async def trial(folder: Path, *turns: str, **more: Any) -> AgentTrial:
    sandbox = await NullProvider().create_sandbox(SandboxCreateRequest())
    task = TaskSpec("t", "d", turns[0], cwd="/workspace", turns=turns, **more)
    return AgentTrial(task, sandbox, {}, lambda _s, _t: None, kept=folder / "kept")


async def test_a_plugin_file_offers_its_agents(tmp_path: Path) -> None:
    plugin(tmp_path)
    assert {"shouter", "whisperer", "mock"} <= set(known_executors(["./mine.py"], tmp_path))
    agent = opened(tmp_path, "shouter", "./mine.py", model="m", kwargs={"mark": "?"})
    ended = await agent.run(await trial(tmp_path, "one", "two"))
    told = from_record(json.loads((tmp_path / "kept" / "transcript.json").read_text()))
    assert (ended.exit_code, told.output, told.executor, told.model) == (0, "TWO?", "shouter", "m")
    assert len(list(told.of_type("user_message"))) == 2


async def test_what_a_plugin_raises_is_the_agents_error(tmp_path: Path) -> None:
    plugin(tmp_path)
    agent = opened(tmp_path, "whisperer", "mine.py:Whisperer")
    with pytest.raises(AgentError, match="whisperer: ValueError: cannot"):
        await agent.run(await trial(tmp_path, "one"))


async def test_a_late_plugin_is_ended(tmp_path: Path) -> None:
    body = PLUGIN.replace('raise ValueError("cannot")', "import asyncio; await asyncio.Event().wait()")
    plugin(tmp_path, body)
    agent = opened(tmp_path, "whisperer", "mine.py")
    ended = await agent.run(await trial(tmp_path, "one", timeouts=Timeouts(agent=0.01)))
    assert ended.reason is ExitReason.TIMEOUT


def test_a_changed_plugin_is_not_the_frozen_one(tmp_path: Path) -> None:
    file = plugin(tmp_path)
    chosen = agent_for("shouter", plugins=["mine.py"], base=tmp_path)
    prepared = open_agent(chosen.spec_for_open_agent, library=AgentLibrary(tmp_path / "library"))
    file.write_text(PLUGIN + "\n")
    with pytest.raises(UserError, match="was changed since"):
        open_frozen(prepared.frozen, tmp_path, tmp_path)
    assert open_agent(chosen.spec_for_open_agent, library=AgentLibrary(tmp_path)).digest != prepared.digest


@pytest.mark.parametrize(
    ("text", "given", "message"),
    [
        (PLUGIN, "nowhere.py", "there is no file"),
        (PLUGIN, "mine.py:Other", "has no class Other"),
        ("x = 1", "mine.py", "has no class with a name"),
        ("raise SystemError('boom')", "mine.py", "importing it failed: SystemError: boom"),
        (PLUGIN.replace('"shouter"', '"mock"'), "mine.py", "'mock' is an agent of the catalogue"),
        (PLUGIN.replace('"whisperer"', '"shouter"'), "mine.py", "'shouter' is offered twice"),
        (PLUGIN, "no-such-entry-point", "no plugin 'no-such-entry-point'"),
    ],
)
def test_wrong_plugins_are_told(tmp_path: Path, text: str, given: str, message: str) -> None:
    plugin(tmp_path, text)
    with pytest.raises(UserError, match=message):
        agent_for("shouter", plugins=[given], base=tmp_path)


def test_a_plugin_says_which_parameters_it_takes(tmp_path: Path) -> None:
    plugin(tmp_path)
    with pytest.raises(UsageError, match=r"has no parameter 'marc'. Did you mean 'mark'"):
        opened(tmp_path, "shouter", "mine.py", kwargs={"marc": "?"})


def test_files_are_not_taken_from_elsewhere(tmp_path: Path) -> None:
    file = plugin(tmp_path)
    with pytest.raises(UsageError, match="not taken from elsewhere"):
        open_agent(f"file:{file}:Shouter", library=AgentLibrary(tmp_path), trusted=False)
