"""The agents every installation knows by name, as data, and the two that need nothing: oracle and nop."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sandboxes.masker import Masker
from sandboxes.values import KILLED_EXIT_CODE, TIMEOUT_EXIT_CODE, Command
from valkyrie.agents.protocol import AgentExit, AgentTrial, OutputArtifact
from valkyrie.domain import ExitReason, Json
from valkyrie.errors import BenchmarkError, UsageError

_HERE = "valkyrie.agents.catalog"
_BASICS = "valkyrie.agents.catalog.entries"


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


@dataclass(frozen=True, slots=True)
class CatalogAgent:
    """One agent of the catalogue."""

    description: str
    target: str
    """`module:Class`."""
    version: str | None = None
    """The one that is installed unless `-k version` says another; None for those without any."""
    keys: tuple[KeyGroup, ...] = ()
    needs_model: bool = False
    """`agent:model` must name one."""
    tried: str = ""
    """How far it was tried against the loopback model server, in words for `valk agent catalog`."""


_ANY_VENDOR = KeyGroup(("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GOOGLE_API_KEY"), required=False)

CATALOG: Mapping[str, CatalogAgent] = {
    "oracle": CatalogAgent("runs the task's own solution; should solve everything", f"{_BASICS}:Oracle"),
    "nop": CatalogAgent("does nothing; should solve nothing", f"{_BASICS}:Nop"),
    "mock": CatalogAgent(
        "says what it was told, or does what a fixture says: to try evals without a model",
        "valkyrie.agents.mock:Mock",
    ),
    "claude-code": CatalogAgent(
        "Anthropic's Claude Code",
        f"{_HERE}.claude_code:ClaudeCode",
        version="2.1.197",
        keys=(KeyGroup(("ANTHROPIC_API_KEY", "CLAUDE_CODE_OAUTH_TOKEN")),),
        tried="solves tasks; refusals, rate limits, overflow and cuts are told apart; converses, takes up "
        "skills, uses MCP servers",
    ),
    "codex": CatalogAgent(
        "OpenAI's Codex",
        f"{_HERE}.codex:Codex",
        version="0.166.0",
        keys=(KeyGroup(("OPENAI_API_KEY",)),),
        tried="solves tasks; refusals, rate limits, overflow and cuts are told apart; converses, takes up "
        "skills, sees MCP servers",
    ),
    "opencode": CatalogAgent(
        "opencode, the open-source terminal agent",
        f"{_HERE}.opencode:OpenCode",
        version="1.18.33",
        keys=(_ANY_VENDOR,),
        needs_model=True,
        tried="solves tasks over all four APIs; needs 1 GB of memory; waits for ever for a busy model; "
        "converses, uses MCP servers; its skills need ripgrep in the sandbox",
    ),
    "goose": CatalogAgent(
        "goose, the open-source agent that began at Block",
        f"{_HERE}.goose:Goose",
        version="1.52.0",
        keys=(_ANY_VENDOR,),
        needs_model=True,
        tried="solves tasks; refusals look like answers; npm has it for x86_64 with glibc only; converses, "
        "takes up skills, uses MCP servers",
    ),
    "gemini-cli": CatalogAgent(
        "Google's Gemini CLI",
        f"{_HERE}.gemini_cli:GeminiCli",
        version="0.61.0",
        keys=(KeyGroup(("GEMINI_API_KEY", "GOOGLE_API_KEY")),),
        tried="solves tasks; refusals look like answers; what it used is known only if it came to its end; "
        "converses, takes up skills, uses MCP servers",
    ),
    "mini-swe-agent": CatalogAgent(
        "mini-swe-agent, by the makers of SWE-bench",
        f"{_HERE}.mini_swe_agent:MiniSweAgent",
        version="2.4.6",
        keys=(
            KeyGroup(
                ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY"), required=False
            ),
        ),
        needs_model=True,
        tried="solves tasks with Anthropic's and OpenAI's APIs; needs python3 in the sandbox",
    ),
    "copilot-cli": CatalogAgent(
        "GitHub Copilot CLI",
        f"{_HERE}.copilot_cli:CopilotCli",
        version="1.0.102",
        keys=(KeyGroup(("COPILOT_GITHUB_TOKEN", "GH_TOKEN", "GITHUB_TOKEN")),),
        tried="solves tasks with a model of one's own (--model-url); GitHub's own models were not tried; "
        "converses, takes up skills, uses MCP servers",
    ),
}


# The agents every installation knows by name, and the two of them that need nothing.
#
# An entry names its class as `module:Class`. The class is called with one `AgentOptions`; plugins are made
# the same way.

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
    """Return how a command ended, with the two codes that say it did not end by itself."""
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


__all__ = [
    "CATALOG",
    "AgentOptions",
    "CatalogAgent",
    "KeyGroup",
    "Nop",
    "Oracle",
    "exit_of",
]
