"""`agent catalog`, `agent fetch` and `agent layers`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.cli.command_result import CommandResult

Valk = Callable[..., CommandResult]
NPM = """#!/bin/sh
mkdir -p node_modules/@aaif/goose-binary-linux-x64/bin
echo program >node_modules/@aaif/goose-binary-linux-x64/bin/goose
"""


@pytest.fixture
def npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Put a program of the test in npm's place: no registry is asked."""

    def put(script: str) -> None:
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / "npm").write_text(script)
        (tmp_path / "bin" / "npm").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")

    return put


def test_the_catalogue_says_what_each_agent_needs(valk: Valk) -> None:
    agents = {agent["name"]: agent for agent in valk("agent", "catalog", "--json").json["agents"]}
    keys = [{"any_of": ["ANTHROPIC_API_KEY", "CLAUDE_CODE_OAUTH_TOKEN"], "required": True}]
    assert agents["claude-code"]["keys"] == keys
    assert agents["opencode"]["keys"][0]["required"] is False
    assert agents["opencode"]["needs_model"] and not agents["codex"]["needs_model"]
    assert agents["nop"]["version"] is None
    table = valk("agent", "catalog").out
    assert "GEMINI_API_KEY or GOOGLE_API_KEY" in table
    assert agents["goose"]["version"] in table


def test_an_agent_is_fetched_once_and_listed(valk: Valk, npm: Callable[[str], None], tmp_path: Path) -> None:
    assert "valk agent fetch" in valk("agent", "layers").out
    npm(NPM)
    said = valk("agent", "fetch", "goose", "--json")
    layer = said.json["layer"]
    assert (said.code, layer["name"]) == (0, "goose")
    assert Path(layer["folder"]).parent == tmp_path / "home" / "cache" / "layers"
    npm("#!/bin/sh\nexit 1\n")
    assert valk("agent", "fetch", "goose").out.startswith(f"goose {layer['version']} is ready")
    assert [found["folder"] for found in valk("agent", "layers", "--json").json["layers"]] == [
        layer["folder"]
    ]
    assert layer["folder"] in valk("agent", "layers").out


def test_without_network_it_says_the_way_out(valk: Valk, npm: Callable[[str], None]) -> None:
    npm("#!/bin/sh\necho npm error code ENOTFOUND\nexit 1\n")
    said = valk("agent", "fetch", "goose")
    assert (said.code, said.out) == (1, "")
    assert "reached no package registry" in said.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["gose"], "Did you mean 'goose'?"),
        (["oracle"], "nothing to fetch"),
        (["goose", "--version", "latest"], "exact version"),
    ],
)
def test_mistakes(valk: Valk, words: list[str], says: str) -> None:
    said = valk("agent", "fetch", *words)
    assert said.code == 2
    assert says in said.err
