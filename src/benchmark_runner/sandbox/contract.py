"""An agent's contract as the runner uses it: every placeholder of its command must be filled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmark_runner.agent_bundle.contract import AgentContract as AgentContract
from benchmark_runner.agent_bundle.contract import load_contract as load_contract
from benchmark_runner.agent_bundle.placeholders import placeholder_names, strangers, substitute
from benchmark_runner.agent_bundle.resolution import RUNTIME_PLACEHOLDERS, ResolvedContract, as_text, resolve
from benchmark_runner.errors import ContractValidationError


def format_run_cmd(run_cmd: str, values: Mapping[str, Any]) -> str:
    """Fill the command's placeholders, but for those each task fills.

    ContractValidationError, a ValueError, when another one is left outside comments: the agent would be given
    a word in braces.
    """
    unknown = strangers(run_cmd, {*values, *RUNTIME_PLACEHOLDERS})
    if left := placeholder_names(run_cmd, unknown):
        words = ", ".join(f"{{{name}}}" for name in unknown if name in left)
        raise ContractValidationError(
            f"run_cmd: nothing fills {words}; declare it under `defaults` or `kwargs`. "
            "A brace that is the shell's has a space after it."
        )
    filled = {name: as_text(value) for name, value in values.items() if name not in RUNTIME_PLACEHOLDERS}
    return substitute(run_cmd, filled)


def resolve_all(contract: AgentContract, model: str, parameters: Mapping[str, str]) -> ResolvedContract:
    """Fill in the run's values as the platform does, and refuse a command with a word in braces left."""
    resolved = resolve(contract, model, parameters)
    format_run_cmd(resolved.run_template, resolved.values)
    return resolved
