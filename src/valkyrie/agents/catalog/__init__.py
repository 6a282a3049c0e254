"""The agents every installation knows by name: a module of this package each, and those that need nothing.

A module is called like its agent; its `ENTRY` is what the catalogue says. Listing names imports none of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import ClassVar

from sandboxes.masker import Masker
from sandboxes.protocol import Command
from valkyrie.agents.protocol import (
    AgentCapabilities,
    AgentExit,
    AgentOptions,
    AgentTrial,
    LayerSpec,
    OutputArtifact,
    exit_of,
)
from valkyrie.errors import BenchmarkError, UsageError


@dataclass(frozen=True, slots=True)
class KeyGroup:
    """Environment variables with API keys, any of which will do; all that are found are given."""

    names: tuple[str, ...]
    required: bool = True

    @property
    def said(self) -> str:
        """`A, B or C`."""
        *most, last = self.names
        return f"{', '.join(most)} or {last}" if most else last


ANY_VENDOR = KeyGroup(("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GOOGLE_API_KEY"), required=False)


@dataclass(frozen=True, slots=True)
class CatalogAgent:
    """What the catalogue knows of one agent."""

    description: str
    target: str
    """`module:Class`; the class is called with one `AgentOptions`, as plugins are."""
    version: str | None = None
    """The one that is installed unless `-k version` says another; None for those without any."""
    keys: tuple[KeyGroup, ...] = ()
    needs_model: bool = False
    """`agent:model` must name one."""
    effort: str | None = None
    """The parameter in which it is told how hard to think; None for one that cannot be told."""
    tried: str = ""
    """How far it was tried against the loopback model server, in words for `valk agent catalog`."""
    tools: str = ""
    """Names of its own tools, for lint."""


class _Catalog(Mapping[str, CatalogAgent]):
    """Entries by name, each loaded when it is asked for."""

    _basic: ClassVar[Mapping[str, CatalogAgent]] = {
        "oracle": CatalogAgent("runs the task's own solution; should solve everything", f"{__name__}:Oracle"),
        "nop": CatalogAgent("does nothing; should solve nothing", f"{__name__}:Nop"),
        "mock": CatalogAgent(
            "says what it was told, or does what a fixture says: to try evals without a model",
            "valkyrie.agents.mock:Mock",
        ),
    }

    @cached_property
    def _names(self) -> tuple[str, ...]:
        modules = (path.stem for path in Path(__file__).parent.glob("[!_]*.py"))
        return (*self._basic, *sorted(name.replace("_", "-") for name in modules))

    def __getitem__(self, name: str) -> CatalogAgent:
        if name in self._basic:
            return self._basic[name]
        if name not in self._names:
            raise KeyError(name)
        entry: CatalogAgent = import_module(f"{__name__}.{name.replace('-', '_')}").ENTRY
        return entry

    def __contains__(self, name: object) -> bool:
        return name in self._basic or name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


CATALOG: Mapping[str, CatalogAgent] = _Catalog()

SOLUTION_FOLDER = "/solution"


class NeedsNothing:
    """An agent that is installed by nobody and takes no parameters."""

    name = ""
    capabilities = AgentCapabilities()
    layer: LayerSpec | None = None
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

    async def install(self, trial: AgentTrial) -> None:
        """Nothing to install."""


class Nop(NeedsNothing):
    """Does nothing, successfully: what a benchmark scores without any work."""

    name = "nop"
    capabilities = AgentCapabilities(converses=True, takes_mcp=True, takes_skills=True)

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
