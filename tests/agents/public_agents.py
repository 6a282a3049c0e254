"""A person at a command line who runs public agents against a scripted model."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from valkyrie.trajectory import Trajectory

TASK = "order-build-steps"
VALK = Path(sys.executable).parent / "valk"


@dataclass(frozen=True)
class Public:
    """A public agent, and how it is told to give up soon."""

    name: str
    model: str
    impatient: tuple[str, ...] = ("-k", "max_retries", "1")


CLAUDE_CODE = Public("claude-code", "claude-sonnet-4-5")
CODEX = Public("codex", "openai/gpt-5-codex")


def solution() -> str:
    """What solves the task, as a shell script."""
    return (files("valkyrie.benchmarks") / "quickstart" / TASK / "solution" / "solve.sh").read_text()


@dataclass(frozen=True)
class AgentCommands:
    """Where runs are started, and how."""

    provider: str
    root: Path
    env: Mapping[str, str]

    async def valk(self, *words: str) -> Any:
        """One command's JSON."""
        process = await asyncio.create_subprocess_exec(
            VALK,
            *words,
            "--json",
            env=self.env,
            cwd=self.root,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
        assert out.strip(), f"valk {' '.join(words)} exited with {process.returncode}: {err.decode()}"
        return json.loads(out.decode().strip().splitlines()[-1])

    async def run(self, agent: Public, model_url: str, *more: str) -> tuple[str, dict[str, Any]]:
        """Run the agent on the task to its end; the run's id and its only trial."""
        words = ("--agent", agent.name, "--model", agent.model, "--model-url", model_url, *agent.impatient)
        benchmark = () if "--benchmark" in more else ("--benchmark", "quickstart")
        where = (*benchmark, "--task-ids", TASK, "--provider", self.provider)
        started = await self.valk("run", "start", *words, *where, "--max-attempts", "1", *more)
        run_id: str = started["run"]["id"]
        await self.valk("run", "wait", run_id)
        (trial,) = (await self.valk("run", "tasks", run_id))["trials"]
        return run_id, trial

    async def outputs(self, run_id: str) -> Path:
        """The folder with what the agent's program left."""
        target = self.root / f"outputs-{run_id}"
        await self.valk("run", "outputs", run_id, "--output-dir", str(target))
        (trajectory,) = target.rglob("trajectory.json")
        return trajectory.parent


def observed(trajectory: Trajectory) -> str:
    """All that tools brought back."""
    results = [result for step in trajectory.steps if step.observation for result in step.observation.results]
    return "\n".join(str(result.content) for result in results)
