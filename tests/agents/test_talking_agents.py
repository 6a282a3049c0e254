"""Real agents told several things, with skills and tool servers, on a model that follows a script."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.abilities import need_local_sandboxes
from tests.agents.talks import WORKSPACE, Room, Talk, heard
from valkyrie.agents.catalog import CATALOG
from valkyrie.plugins import load_target
from valkyrie.testing import ModelServer, Say, Script, Shell, ToolRequest
from valkyrie.trajectory.transcript import turn_slice

SKILL = "---\nname: tidy\ndescription: Use when tidying up.\n---\nPut the pelican away.\n"
SERVER = """
import json, sys

TOOL = {"name": "weigh", "description": "Weighs.", "inputSchema": {
    "type": "object", "properties": {"what": {"type": "string"}}, "required": ["what"]}}

def answer(method, params):
    if method == "initialize":
        about = {"capabilities": {"tools": {}}, "serverInfo": {"name": "tiny", "version": "1"}}
        return {"protocolVersion": params["protocolVersion"], **about}
    if method == "tools/list":
        return {"tools": [TOOL]}
    if method == "tools/call":
        return {"content": [{"type": "text", "text": params["arguments"]["what"] + " weighs 7 kg"}]}
    return {} if method == "ping" else None

for line in sys.stdin:
    asked = json.loads(line)
    if "id" in asked:
        found = answer(asked["method"], asked.get("params", {}))
        unknown = {"error": {"code": -32601, "message": "no such method"}}
        said = unknown if found is None else {"result": found}
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **said}), flush=True)
"""
"""A tool server of the Model Context Protocol, with one tool."""


@dataclass(frozen=True)
class Talker:
    """An agent, and what it calls things."""

    name: str
    model: str
    skill: Any
    """The turn of the model in which a skill is taken up; None where it cannot be in a sealed sandbox."""
    tool: str | None
    """What the server's tool is called; None where a script cannot call it."""


TALKERS = (
    Talker("claude-code", "claude-sonnet-4-5", ToolRequest("Skill", {"skill": "tidy"}), "mcp__tiny__weigh"),
    Talker("codex", "gpt-5-codex", Shell("cat .agents/skills/tidy/SKILL.md"), None),
    Talker("opencode", "anthropic/claude-sonnet-4-5", None, "tiny_weigh"),
    Talker("goose", "claude-sonnet-4-5", ToolRequest("load_skill", {"name": "tidy"}), "tiny__weigh"),
    Talker("gemini-cli", "gemini-2.5-pro", ToolRequest("activate_skill", {"name": "tidy"}), "mcp_tiny_weigh"),
    Talker("copilot-cli", "gpt-4.1", ToolRequest("skill", {"skill": "tidy"}), "tiny-weigh"),
)


def shown(talker: Talker) -> str:
    return talker.name


@pytest.fixture
def room(tmp_path: Path, layers: Path) -> Room:
    need_local_sandboxes(tmp_path / "try", network="none")
    return Room(tmp_path, layers)


@pytest.mark.parametrize("talker", TALKERS, ids=shown)
async def test_it_remembers(room: Room, talker: Talker) -> None:
    script = Script.of(
        Shell("echo one-$(expr 40 + 2)", text="I look."),
        Say("It is one."),
        Shell("echo two"),
        Say("It is two."),
    )
    async with ModelServer(script) as server:
        talk = Talk(["Remember the pelican.", "What did I tell you?"])
        told = await room.talk(talker.name, talker.model, server, talk)
        spent, last = server.spent(), heard(server, -1)
    assert (told.exit.exit_code, told.exit.trouble) == (0, None), told.log
    assert "Remember the pelican." in last and "It is one." in last
    usage = told.exit.usage
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens, usage.steps) == (spent.input, spent.output, 4)
    first, second = turn_slice(told.transcript, 0), turn_slice(told.transcript, 1)
    assert first is not None and second is not None
    assert (first.output, second.output, told.transcript.output) == ("It is one.", "It is two.", "It is two.")
    assert [len(list(turn.of_type("tool_call"))) for turn in (first, second)] == [1, 1]
    assert "two" in str(next(second.of_type("tool_result")).data["result"])
    log = (told.kept / f"{talker.name}.jsonl").read_text()
    assert log.index("It is one.") < log.index("It is two.")


@pytest.mark.parametrize("talker", [one for one in TALKERS if one.skill], ids=shown)
async def test_it_takes_up_a_skill(room: Room, talker: Talker) -> None:
    talk = Talk(["Tidy up."], files={"given/tidy/SKILL.md": SKILL}, skills=["tidy"], skills_dir="given")
    async with ModelServer(Script.of(talker.skill, Say("Done."))) as server:
        told = await room.talk(talker.name, talker.model, server, talk)
        first, last = heard(server, 0), heard(server, -1)
    assert "Use when tidying up." in first and "Put the pelican away." not in first
    assert "Put the pelican away." in last
    assert [event.data["name"] for event in told.transcript.of_type("skill_activation")] == ["tidy"]
    folder = load_target(CATALOG[talker.name].target).capabilities.skills_at.split("/")[0]
    assert f"{WORKSPACE}/{folder}" not in told.left


@pytest.mark.parametrize("talker", TALKERS, ids=shown)
async def test_it_uses_a_tool_server(room: Room, talker: Talker) -> None:
    tiny = {"type": "stdio", "command": "python3", "args": ["tiny.py"], "cwd": "${workspace}/servers"}
    talk = Talk(["Weigh it."], files={"servers/tiny.py": SERVER}, mcp_servers={"tiny": tiny})
    turn = ToolRequest(talker.tool, {"what": "The pelican"}) if talker.tool else Say("I could.")
    async with ModelServer(Script.of(turn, Say("Done."))) as server:
        told = await room.talk(talker.name, talker.model, server, talk)
        first, last = heard(server, 0), heard(server, -1)
    assert "Weighs." in first, told.log
    if talker.tool is None:
        return
    assert "The pelican weighs 7 kg" in last
    (call,), (result,) = told.transcript.of_type("tool_call"), told.transcript.of_type("tool_result")
    assert (call.data["toolName"], call.data["arguments"]) == (talker.tool, {"what": "The pelican"})
    assert "The pelican weighs 7 kg" in result.data["result"]
