"""One agent of the catalogue in a real sandbox, told several things, on a model that follows a script."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sandboxes.local.provider import LocalProvider
from sandboxes.protocol import SandboxProvider
from sandboxes.types import Command, SandboxCreateRequest
from valkyrie.agents.catalog import CATALOG
from valkyrie.agents.layers import LayerCache
from valkyrie.agents.protocol import AgentExit, AgentOptions, AgentTrial
from valkyrie.domain import TaskSpec, Timeouts
from valkyrie.errors import ValkyrieError
from valkyrie.executor.proxies import ModelProxies
from valkyrie.plugins import load_target
from valkyrie.testing import ModelServer
from valkyrie.trajectory import Trajectory
from valkyrie.trajectory.conversion import transcript_of
from valkyrie.trajectory.transcript import Transcript
from valkyrie.trial.context import AgentEnvironment

WORKSPACE = "/workspace"


@dataclass(frozen=True)
class Talk:
    """What is told, and what is found in the workspace."""

    turns: Sequence[str]
    files: Mapping[str, str] = field(default_factory=dict)
    mcp_servers: Mapping[str, Any] = field(default_factory=dict)
    skills: Sequence[str] = ()
    skills_dir: str | None = None
    seconds: float = 120.0


@dataclass(frozen=True)
class Told:
    """What became of it."""

    exit: AgentExit
    transcript: Transcript
    kept: Path
    log: str
    left: Sequence[str]
    """Hidden files of the workspace, when the agent had gone."""


@dataclass(frozen=True)
class Room:
    """Where agents are installed and sandboxes are made."""

    root: Path
    layers: Path

    async def talk(self, name: str, model: str, server: ModelServer, talk: Talk) -> Told:
        """Run the agent; nothing but the model is reached."""
        options = AgentOptions(model, model_url=server.url)
        agent: Any = load_target(CATALOG[name].target)(options)
        kept, said = self.root / "kept", list[str]()
        doors = ModelProxies(self.root / "doors")
        environment = AgentEnvironment(LayerCache(self.layers), agent.layer, server.url, doors.to(server.url))
        async with LocalProvider(self.root / "state") as provider, environment.model_folder() as model_folder:
            request = SandboxCreateRequest(network="none")
            request = await _equipped(environment, request, provider, model_folder)
            sandbox = await provider.create_sandbox(request)
            try:
                await sandbox.run(Command(("mkdir", "-p", WORKSPACE)))
                for path, text in talk.files.items():
                    await sandbox.upload_file(f"{WORKSPACE}/{path}", text.encode())
                trial = AgentTrial(
                    self._task(talk),
                    sandbox,
                    {},
                    lambda _stream, text: said.append(text),
                    kept=kept,
                    model_url=environment.model_url,
                )
                await sandbox.upload_file(trial.task.problem_path, talk.turns[0].encode())
                await agent.install(trial)
                await environment.open_proxy(sandbox, trial.log)
                ended = await agent.run(trial)
                left = await sandbox.list_files(f"{WORKSPACE}/.*")
            finally:
                await provider.delete_sandbox(sandbox.id)
        trajectory = Trajectory.from_json((kept / "trajectory.json").read_bytes())
        told = transcript_of(trajectory, skills=talk.skills, usage=ended.usage)
        return Told(ended, told, kept, "".join(said), left)

    @staticmethod
    def _task(talk: Talk) -> TaskSpec:
        return TaskSpec(
            "talk",
            "d",
            talk.turns[0],
            cwd=WORKSPACE,
            turns=tuple(talk.turns),
            mcp_servers=talk.mcp_servers,
            skills_dir=talk.skills_dir,
            metadata={"skills": list(talk.skills)},
            network="none",
            timeouts=Timeouts(agent=talk.seconds),
        )


async def _equipped(
    environment: AgentEnvironment,
    request: SandboxCreateRequest,
    provider: SandboxProvider,
    model_folder: Path | None,
) -> SandboxCreateRequest:
    """With the agent's layer; where it cannot be fetched there is nothing to test."""
    try:
        return await environment.equip(request, provider, model_folder, lambda _text: None)
    except ValkyrieError as error:
        if "reached no package registry" in str(error):
            pytest.skip("the agent cannot be fetched here: no package registry is reached")
        raise


def heard(server: ModelServer, number: int) -> str:
    """The request with that number among those that were no aside, as text."""
    return json.dumps([one.body for one in server.requests if not one.aside][number], ensure_ascii=False)
