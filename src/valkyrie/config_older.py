"""Names and forms that config files of earlier programs have: still understood, and said so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from valkyrie.config_keys import OLD_PROVIDER_SECRETS, SANDBOX_PROVIDERS

PROVIDER = "daytona"
RENAMED = {"default_sandbox_provider": "default_provider"}
PASSED_OVER = ("environment",)
_BECAME = {
    **dict.fromkeys(
        OLD_PROVIDER_SECRETS, f"is read as {SANDBOX_PROVIDERS}.{PROVIDER} (`valk config provider set`)"
    ),
    **{old: f"is read as {new}" for old, new in RENAMED.items()},
    **dict.fromkeys(PASSED_OVER, "has no meaning here; tracker_url says which tracker is used"),
    "aws": "is read as if its keys stood at the left margin",
}


def pairs(root: Any) -> Iterator[tuple[Any, Any]]:
    """Keys and values of a file as nodes, those below `aws` and `aws.credentials` among them."""
    for key, value in root.value:
        if key.value == "aws":
            yield from _below(value)
        elif key.value not in PASSED_OVER:
            yield key, value


def _below(node: Any) -> Iterator[tuple[Any, Any]]:
    import yaml

    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        if key.value == "credentials":
            yield from _below(value)
        else:
            yield key, value


def notices(root: Any) -> list[str]:
    """What was read otherwise than it is written."""
    return [f"{key.value} {_BECAME[key.value]}." for key, _ in root.value if key.value in _BECAME]
