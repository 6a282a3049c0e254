"""The agents every installation knows by name, and the two of them that need nothing.

An entry names its class as `module:Class`. The class is called with one `AgentOptions`; plugins are made the
same way.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sandboxes.masker import Masker
from sandboxes.values import KILLED_EXIT_CODE, TIMEOUT_EXIT_CODE, Command
from valkyrie.agents.catalogue.entries import CATALOG, CatalogEntry, KeyGroup
from valkyrie.agents.protocol import AgentExit, AgentTrial, OutputArtifact
from valkyrie.errors import BenchmarkError, UsageError
from valkyrie.nouns import ExitReason, Json

__all__ = ["CATALOG", "AgentOptions", "CatalogEntry", "KeyGroup", "Nop", "Oracle", "exit_of"]

SOLUTION_FOLDER = "/solution"


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """What the command line says about an agent: `--model`, `-k`, `-s`."""

    model: str | None = None
    kwargs: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)
    """Environment variable → secret name."""
    model_url: str | None = None
    """`--model-url`: its model is served there, so that no vendor's key is needed."""


def exit_of(code: int) -> AgentExit:
    """How a command ended, with the two codes that say it did not end by itself."""
    reasons = {TIMEOUT_EXIT_CODE: ExitReason.TIMEOUT, KILLED_EXIT_CODE: ExitReason.OS_KILLED}
    return AgentExit(code, reasons.get(code))


class NeedsNothing:
    """An agent that is installed by nobody and takes no parameters."""

    name = ""
    needs_solution = False
    final_output: str | None = None
    output_artifacts: Sequence[OutputArtifact] = ()

    def __init__(self, options: AgentOptions) -> None:
        if options.kwargs:
            raise UsageError(
                f"the agent {self.name} takes no parameters; leave out -k {next(iter(options.kwargs))}."
            )
        self._options = options

    @property
    def secrets(self) -> Mapping[str, str]:
        return self._options.secrets

    @property
    def digest(self) -> str:
        return hashlib.sha256(f"catalog:{self.name}".encode()).hexdigest()

    @property
    def frozen(self) -> Json:
        return {
            "kind": "catalog",
            "name": self.name,
            "model": self._options.model,
            "kwargs": dict(self._options.kwargs),
            "secrets": dict(self._options.secrets),
        }

    async def install(self, trial: AgentTrial) -> None:
        """Nothing to install."""


class Nop(NeedsNothing):
    """Does nothing, successfully: what a benchmark scores without any work."""

    name = "nop"
    converses = True
    takes_mcp = True
    takes_skills = True

    async def run(self, trial: AgentTrial) -> AgentExit:
        _ = trial
        return AgentExit(0)


class Oracle(NeedsNothing):
    """Runs the task's own solution: what a benchmark scores when all is done right."""

    name = "oracle"
    needs_solution = True

    async def run(self, trial: AgentTrial) -> AgentExit:
        task, sandbox = trial.task, trial.sandbox
        solution = _solution(trial)
        with Masker(trial.secrets.values()).sink(trial.log) as log:
            await sandbox.upload_folder(solution, SOLUTION_FOLDER)
            try:
                command = Command(
                    argv=("bash", f"{SOLUTION_FOLDER}/solve.sh"),
                    cwd=task.cwd,
                    env={**task.env, **task.solution_env, **trial.secrets},
                    user=task.user,
                    timeout=task.timeouts.agent,
                )
                return exit_of(await sandbox.run(command, log))
            finally:
                await sandbox.remove(SOLUTION_FOLDER)


def _solution(trial: AgentTrial) -> Path:
    if trial.solution is None or not (trial.solution / "solve.sh").is_file():
        raise BenchmarkError(f"task {trial.task.id} has no solution/solve.sh; the oracle cannot run it.")
    return trial.solution
