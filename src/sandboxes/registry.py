"""The providers by name, loaded on first use."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path

from sandboxes.errors import SandboxUnsupportedError
from sandboxes.protocol import SandboxProvider

__all__ = ["PROVIDERS", "ProviderEntry", "open_provider"]


@dataclass(frozen=True, slots=True)
class ProviderEntry:
    """One row of the table: where the class lives and what has to be installed for it."""

    name: str
    module: str
    class_name: str
    summary: str
    extra: str | None = None
    """The pip extra that brings what it needs."""


PROVIDERS: dict[str, ProviderEntry] = {
    entry.name: entry
    for entry in (
        ProviderEntry(
            "local",
            "sandboxes.local",
            "LocalProvider",
            "bubblewrap on this machine: own files, processes, network",
        ),
        ProviderEntry(
            "process",
            "sandboxes.process",
            "ProcessProvider",
            "plain processes in a folder: no isolation at all",
        ),
        ProviderEntry("null", "sandboxes.null", "NullProvider", "runs nothing: for tests and measurements"),
    )
}


def open_provider(name: str, state_dir: Path) -> SandboxProvider:
    """The provider of that name, keeping its state below `state_dir`."""
    entry = PROVIDERS.get(name)
    if entry is None:
        close = get_close_matches(name, PROVIDERS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(sorted(PROVIDERS))}."
        raise SandboxUnsupportedError(f"no sandbox provider is called {name!r}; {hint}")
    try:
        module = import_module(entry.module)
    except ImportError as error:
        if entry.extra is None:
            raise
        raise SandboxUnsupportedError(
            f"provider {name!r} needs {error.name}: pip install 'valkyrie-bench[{entry.extra}]'"
        ) from error
    provider: SandboxProvider = getattr(module, entry.class_name)(state_dir)
    return provider
