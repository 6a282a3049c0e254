"""Several turns with one agent, whose program only pretends."""

from __future__ import annotations

import json
import tomllib
from typing import Any, cast

import pytest

from sandboxes.protocol import Sandbox
from tests.unit.agents.catalogue.test_installed_agent import EVENT, Stage, printing, stage
from valkyrie.agents.catalog import CATALOG
from valkyrie.agents.catalog.claude_code import ClaudeCode
from valkyrie.agents.catalog.codex import Codex
from valkyrie.agents.protocol import AgentCapabilities, AgentOptions, AgentTrial, mcp_servers, refuses
from valkyrie.domain import ExitReason, TaskSpec, Timeouts
from valkyrie.errors import UsageError
from valkyrie.plugins import load_target
from valkyrie.trajectory import Trajectory
from valkyrie.trajectory.conversion import transcript_of

__all__ = ["stage"]
RESULT = {"type": "result", "is_error": False, "total_cost_usd": 0.5, "modelUsage": {}, "session_id": "s-1"}
NOTING = 'echo "$*" >>words; cat >>prompts; echo >>prompts\n'


async def test_each_turn_goes_on_with_the_session(stage: Stage) -> None:
    seen = []

    async def look(number: int) -> None:
        prompts = await (await stage.made()).download_file("/app/prompts")
        seen.append((number, prompts.decode().split()))

    task = {"turns": ("one", "two", "three")}
    body = NOTING + printing(EVENT, RESULT)
    ended = await stage.run(body, "one", task=task, turn_ended=look, model_url=None)
    assert seen == [(0, ["one"]), (1, ["one", "two"])]
    sandbox = await stage.made()
    assert (await sandbox.download_file("/app/prompts")).decode() == "one\ntwo\nthree\n"
    words = (await sandbox.download_file("/app/words")).decode().splitlines()
    assert ["--resume s-1" in line for line in words] == [False, True, True]
    assert (ended.usage.input_tokens, ended.usage.steps, ended.usage.cost) == (21, 3, 1.5)
    trajectory = Trajectory.from_json((stage.kept / "trajectory.json").read_bytes())
    assert [step.step_id for step in trajectory.steps] == [1, 2, 3, 4, 5, 6]
    told = transcript_of(trajectory)
    assert [event.data["content"] for event in told.of_type("user_message")] == ["one", "two", "three"]
    assert [event.data["turnId"] for event in told.of_type("turn_start")] == ["0", "1", "2"]
    assert (stage.kept / "claude-code.jsonl").read_text().count("\n") == 6
    assert [path.name for path in stage.kept.glob("*.jsonl")] == ["claude-code.jsonl"]


async def test_the_first_turn_that_fails_is_the_last(stage: Stage) -> None:
    failed = {"type": "result", "is_error": True, "api_error_status": 401, "result": "bad key very-secret"}
    body = NOTING + f'case "$*" in *--resume*) {printing(failed)}\nexit 1;; esac\n' + printing(EVENT, RESULT)
    turns = ("one", "two", "three")
    ended = await stage.run(body, "one", task={"turns": turns}, secrets={"KEY": "very-secret"})
    assert (ended.exit_code, ended.trouble.cause) == (1, "model_unauthorized")
    assert ended.usage.input_tokens == 7
    assert (await (await stage.made()).download_file("/app/prompts")).decode() == "one\ntwo\n"
    told = transcript_of(Trajectory.from_json((stage.kept / "trajectory.json").read_bytes()))
    assert [event.data["message"] for event in told.of_type("error")] == ["bad key ***"]


async def test_all_turns_share_the_time(stage: Stage) -> None:
    body = NOTING + printing(EVENT, RESULT) + '\ncase "$*" in *--resume*) sleep 600;; esac'
    task = {"turns": ("one", "two", "three"), "timeouts": Timeouts(agent=2.0)}
    ended = await stage.run(body, "one", task=task)
    assert (ended.reason, ended.trouble) == (ExitReason.TIMEOUT, None)
    told = transcript_of(Trajectory.from_json((stage.kept / "trajectory.json").read_bytes()))
    assert [event.data["content"] for event in told.of_type("user_message")] == ["one", "two"]
    assert not list(told.of_type("error"))


def agents() -> dict[str, Any]:
    options = AgentOptions("anthropic/claude-sonnet-4-5")
    return {name: load_target(entry.target)(options) for name, entry in CATALOG.items()}


def refusals(task: TaskSpec) -> dict[str, str]:
    found = {name: refuses(name, agent.capabilities, task) for name, agent in agents().items()}
    return {name: said for name, said in found.items() if said}


def test_who_cannot_talk_is_refused_by_name() -> None:
    task = TaskSpec("chat", "d", "a", turns=("a", "b"))
    refused = {
        name: said
        for name, agent in agents().items()
        if (said := refuses(agent.name, agent.capabilities, task))
    }
    assert refused.keys() == {"oracle", "mini-swe-agent"}
    assert (
        "chat has 2 turns, and the agent mini-swe-agent cannot hold a conversation"
        in refused["mini-swe-agent"]
    )
    assert refuses("any", AgentCapabilities(), TaskSpec("one", "d", "a", turns=("a",))) is None


def test_who_takes_no_servers_is_refused_by_name() -> None:
    task = TaskSpec("tools", "d", "a", mcp_servers={"tiny": {"command": "x"}})
    refused = {
        name: said
        for name, agent in agents().items()
        if (said := refuses(agent.name, agent.capabilities, task))
    }
    assert refused.keys() == {"oracle", "mini-swe-agent"}
    assert (
        "tools has MCP servers (tiny), and the agent mini-swe-agent takes none" in refused["mini-swe-agent"]
    )
    heads = {"web": {"type": "http", "url": "http://127.0.0.1:1", "headers": {"a": "b"}}}
    task = TaskSpec("tools", "d", "a", mcp_servers=heads)
    assert "goose sends no headers" in str(refuses("goose", agents()["goose"].capabilities, task))
    assert refuses("claude-code", agents()["claude-code"].capabilities, task) is None


def servers(**data: Any) -> Any:
    return mcp_servers(TaskSpec("t", "d", "a", cwd="/workspace", mcp_servers={"tiny": data}))[0]


@pytest.mark.parametrize(
    ("cwd", "folder"),
    [
        (None, None),
        (".", None),
        ("${workspace}", None),
        ("./sub", "/workspace/sub"),
        ("${workspace}/sub/", "/workspace/sub"),
        ("/opt/tools", "/opt/tools"),
    ],
)
def test_servers_go_to_their_folder(cwd: str | None, folder: str | None) -> None:
    found = servers(command="python3", args=["${workspace}/a.py", 3], **({"cwd": cwd} if cwd else {}))
    own = ("python3", "/workspace/a.py", "3")
    assert found.argv == (own if folder is None else (*found.argv[:4], folder, *own))
    assert folder is None or found.argv[:2] == ("/bin/sh", "-c")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "mcpServers.tiny.command: text is expected"),
        ({"comand": "x"}, "no field is called 'comand'. Did you mean 'command'"),
        ({"type": "http"}, "tiny.url: text"),
        ({"type": "pipe", "command": "x"}, "one of stdio, local, http"),
        ({"command": "x", "args": "y"}, "args: a list"),
        ({"command": "x", "env": {"A B": "c"}}, "no name of a variable"),
        ({"command": "x", "timeout": "soon"}, "a duration is expected"),
    ],
)
def test_wrong_servers_are_told_before_start(data: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        servers(**data)
    task = TaskSpec("tools", "d", "a", mcp_servers={"tiny": data})
    assert "tools: mcpServers.tiny" in str(refuses("claude-code", ClaudeCode.capabilities, task))


def test_names_of_servers_are_plain() -> None:
    with pytest.raises(UsageError, match="letters, digits"):
        mcp_servers(TaskSpec("t", "d", "a", mcp_servers={"a.b]\nx": {"command": "x"}}))


async def test_servers_reach_the_program(stage: Stage) -> None:
    body = 'while [ $# -gt 0 ]; do [ "$1" = --mcp-config ] && cat "$2" >given; shift; done'
    tiny = {"command": "python3", "args": ["a b.py"], "env": {"A": "b'c"}, "timeout": "5s"}
    await stage.run(body, task={"mcp_servers": {"tiny": tiny}})
    given = json.loads(await (await stage.made()).download_file("/app/given"))
    entry = {"type": "stdio", "command": "python3", "args": ["a b.py"], "env": {"A": "b'c"}}
    assert given == {"mcpServers": {"tiny": entry}}


def test_codex_reads_what_is_written() -> None:
    tricky: Any = {"a": {"command": 'x"y', "args": ["l\n\\"], "env": {"K": "ü'"}, "timeout": 1.5}}
    tricky["b"] = {"type": "http", "url": "http://127.0.0.1:1/mcp", "headers": {"X-A": "1"}}
    task = TaskSpec("t", "d", "i", cwd="/w", mcp_servers=tricky)
    trial = AgentTrial(task, cast(Sandbox, None), {}, lambda _s, _t: None)
    files = Codex(AgentOptions()).headless(trial).files
    assert tomllib.loads(files["codex/config.toml"])["mcp_servers"] == {
        "a": {"command": 'x"y', "args": ["l\n\\"], "env": {"K": "ü'"}, "tool_timeout_sec": 1.5},
        "b": {"url": "http://127.0.0.1:1/mcp", "http_headers": {"X-A": "1"}},
    }
