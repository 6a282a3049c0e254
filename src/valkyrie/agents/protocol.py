"""What an agent is to the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sandboxes.protocol import Sandbox
from sandboxes.types import OutputSink
from valkyrie.nouns import ExitReason, Json, TaskSpec


@dataclass(frozen=True, slots=True)
class AgentTrial:
    """Everything an agent is given for one attempt."""

    task: TaskSpec
    sandbox: Sandbox
    secrets: Mapping[str, str]
    """Environment variable → value; only what the contract names."""
    log: OutputSink
    solution: Path | None = None
    """Only the oracle looks at it."""


@dataclass(frozen=True, slots=True)
class AgentExit:
    """How the agent's command ended."""

    exit_code: int
    reason: ExitReason | None = None


@dataclass(frozen=True, slots=True)
class OutputArtifact:
    """One file (or glob) to keep from the sandbox after the agent ran."""

    path: str
    """Where it is kept, relative."""
    source: str
    """Absolute path or glob in the sandbox; may hold {task_id}."""
    required: bool = True


class Agent(Protocol):
    """What is tested: installed into a sandbox, then run on one task."""

    @property
    def name(self) -> str: ...

    @property
    def frozen(self) -> Json:
        """Plain data from which `agents.open_frozen` makes the same agent again, in another process."""
        ...

    @property
    def digest(self) -> str:
        """Content digest of what is tested: bundle, contract, parameters."""
        ...

    @property
    def secrets(self) -> Mapping[str, str]:
        """Environment variable → secret name it wants filled."""
        ...

    @property
    def final_output(self) -> str | None:
        """Absolute path in the sandbox to archive after the run."""
        ...

    @property
    def output_artifacts(self) -> Sequence[OutputArtifact]: ...

    @property
    def needs_solution(self) -> bool:
        """True for the oracle: tasks without a solution are refused before start."""
        ...

    async def install(self, trial: AgentTrial) -> None:
        """Put the agent into the sandbox. Raises AgentInstallError."""
        ...

    async def run(self, trial: AgentTrial) -> AgentExit:
        """Run it on the task to its end or its timeout (`trial.task.timeouts.agent`)."""
        ...
