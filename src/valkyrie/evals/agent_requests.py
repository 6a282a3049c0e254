"""What agents that specs bring along ask for, and whether the user lets them have it.

A contract names secrets of the user. Where the user named the agent, that is their word; where a spec names a
folder beside it (`executor: agent:./x`), each secret must be allowed: with `--pass-env`, with `-s`, or on a
terminal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from valkyrie.errors import UsageError
from valkyrie.evals.request import EvalRequest


@dataclass(frozen=True, slots=True)
class AgentAsks:
    """Secrets that one agent of a spec asks for and that were not allowed."""

    agent: str
    secrets: tuple[tuple[str, str], ...]
    """(environment variable, name of the secret)."""

    def __str__(self) -> str:
        return f"{self.agent} asks for {', '.join(_shown(*one) for one in self.secrets)}"

    def flags(self) -> str:
        """Return the words that allow it."""
        return " ".join(_flag(*one) for one in self.secrets)

    def names(self) -> tuple[str, ...]:
        """Return what `--pass-env` would name."""
        return tuple(dict.fromkeys(name for one in self.secrets for name in one))


def unallowed(agent: str, request: EvalRequest) -> AgentAsks | None:
    """Return what the agent at this path asks for beyond what is allowed; None when there is nothing."""
    from benchmark_runner.agent_bundle.bundle import read_contract
    from benchmark_runner.agent_bundle.contract import load_contract

    path = Path(agent)
    contract = load_contract(path) if path.is_dir() else load_contract(read_contract(path)[1], where=agent)
    names = set(request.pass_env)
    asked = tuple(
        (variable, name)
        for variable, name in contract.environment.items()
        if variable not in request.secrets and not {variable, name} <= names
    )
    return AgentAsks(agent, asked) if asked else None


def refuse(asks: Sequence[AgentAsks]) -> None:
    """Raise UsageError with the words that allow it."""
    if asks:
        told = "; ".join(map(str, asks))
        flags = " ".join(dict.fromkeys(one.flags() for one in asks))
        raise UsageError(
            f"An agent that a spec brings along wants secrets of yours: {told}. Nobody can be asked here; "
            f"allow it with {flags}."
        )


def _shown(variable: str, name: str) -> str:
    return variable if variable == name else f"{variable} ({name})"


def _flag(variable: str, name: str) -> str:
    return f"--pass-env {variable}" if variable == name else f"-s {variable} {name}"
