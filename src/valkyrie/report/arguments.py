"""What a run was asked with, for files and functions of its users, under names they know from elsewhere too.

`contract`, `concurrency`, `slice_str`, `sandbox_provider` and `sandbox_provider_secret_name` are such names.
"""

from __future__ import annotations

from typing import Any

from valkyrie.nouns import Json

_CONTRACT = (
    *("name", "model", "install_cmd", "run_cmd", "final_output", "output_artifacts"),
    *("egress_allowlist", "secrets", "kwargs"),
)


def told_arguments(row: Any) -> Json:
    """The arguments of a run's row, secrets by name only; agent and benchmark by their names."""
    arguments: Json = row.arguments
    frozen: Json = row.agent_frozen
    contract: Json = frozen.get("contract") or {
        "name": row.agent,
        "model": row.model,
        "kwargs": arguments.get("kwargs", {}),
        "secrets": arguments.get("secrets", {}),
    }
    return {
        **arguments,
        "agent": row.agent,
        "benchmark": row.benchmark,
        "contract": {name: contract[name] for name in _CONTRACT if name in contract},
        "concurrency": row.concurrency,
        "slice_str": arguments.get("slice"),
        "sandbox_provider": row.provider,
        "sandbox_provider_secret_name": arguments.get("provider_secret"),
    }
