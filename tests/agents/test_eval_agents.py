"""`valkyrie eval` with a real agent: conversation, skill, tools, files, programs, on a scripted model."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from tests.abilities import need_local_sandboxes
from tests.agents.public_agents import VALK
from valkyrie.testing import ModelServer, Say, Script, Shell, ToolRequest

SKILL = "---\nname: tidy\ndescription: Use when tidying up.\n---\nPut the pelican away.\n"

SPEC: dict[str, Any] = {
    "name": "real",
    "defaults": {"executor": "claude-cli", "timeout": "4m", "model": "claude-sonnet-4-5"},
    "environment": {"skills": ["skills/tidy"], "files": [{"src": "pelican.txt", "dest": "zoo/pelican.txt"}]},
    "stimuli": [
        {
            "name": "two turns",
            "turns": ["Tidy up the zoo.", "What did you do?"],
            "graders": [
                {"type": "skill-invocation", "config": {"required": ["tidy"]}},
                {
                    "type": "tool-calls",
                    "config": {"required": [{"name": "Bash", "command": "zoo"}]},
                    "turn": 0,
                },
                {"type": "output-contains", "config": {"substring": "put away"}, "turn": 1},
                {"type": "output-matches", "config": {"pattern": "put away.$"}},
                {"type": "file-not-exists", "config": {"path": "zoo/pelican.txt"}},
                {"type": "diff-contains", "config": {"value": "rename to away/pelican.txt"}},
                {
                    "type": "run-command",
                    "config": {"command": "cat away/pelican.txt", "stdout_contains": "honk"},
                },
                {"type": "completed"},
                {"type": "wall-time", "config": {"max": "3m"}},
            ],
            "constraints": {"max_turns": 10, "reject_tools": ["WebSearch"], "expect_skills": ["tidy"]},
        }
    ],
}


async def test_an_eval_with_a_real_agent(tmp_path: Path, layers: Path) -> None:
    need_local_sandboxes(tmp_path / "try", network="none")
    home = tmp_path / "home"
    (home / "cache").mkdir(parents=True)
    (home / "cache" / "layers").symlink_to(layers)
    (tmp_path / "skills" / "tidy").mkdir(parents=True)
    (tmp_path / "skills" / "tidy" / "SKILL.md").write_text(SKILL)
    (tmp_path / "pelican.txt").write_text("honk\n")
    (tmp_path / "eval.yaml").write_text(json.dumps(SPEC))
    script = Script.of(
        ToolRequest("Skill", {"skill": "tidy"}),
        Shell("mkdir away && mv zoo/pelican.txt away/"),
        Say("Done."),
        Say("The pelican is put away."),
    )
    async with ModelServer(script) as server:
        process = await asyncio.create_subprocess_exec(
            VALK,
            *("eval", "-e", "eval.yaml", "--model-url", server.url, "--network", "none", "--verbose"),
            cwd=tmp_path,
            env={**os.environ, "VALKYRIE_HOME": str(home)},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said = (await process.communicate())[0].decode()
        spent = server.spent()
    assert process.returncode == 0, said
    (folder,) = (tmp_path / "vally-results").iterdir()
    (record,) = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    tokens = record["trajectory"]["metrics"]["tokenUsage"]
    assert (tokens["inputTokens"], tokens["outputTokens"]) == (spent.input, spent.output)
    (about,) = folder.glob("executor-session-logs/real/*/*/trial-0/metadata.json")
    assert json.loads(about.read_text())["logSource"] == "native"
