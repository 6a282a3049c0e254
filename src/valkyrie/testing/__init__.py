"""For tests of agents and benchmarks: a benchmark that does nothing, and a model that follows a script."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from valkyrie.testing.model_server import (
        Fault,
        ModelServer,
        Recorded,
        Say,
        Script,
        Shell,
        TokenCounts,
        ToolRequest,
    )

__all__ = ["Fault", "ModelServer", "Recorded", "Say", "Script", "Shell", "TokenCounts", "ToolRequest"]


def __getattr__(name: str) -> Any:
    """The names are imported when they are used: the parts of this package do not need each other."""
    if name in __all__:
        return getattr(import_module("valkyrie.testing.model_server"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
