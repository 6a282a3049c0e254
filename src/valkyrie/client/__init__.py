"""The tracker from Python: `ValkyrieClient`, its verbs as coroutines, its events as async iterators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from valkyrie.client.client import ValkyrieClient
    from valkyrie.client.events import RunChanged, RunEvent, TrialChanged

__all__ = ["RunChanged", "RunEvent", "TrialChanged", "ValkyrieClient"]

# Embedded mode uses parts of this package and must not pay for an HTTP library.
_WHERE = {"ValkyrieClient": "client", "RunChanged": "events", "RunEvent": "events", "TrialChanged": "events"}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
