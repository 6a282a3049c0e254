"""The providers by name, loaded on first use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path

from sandboxes.errors import MissingSandboxConfigError, SandboxUnsupportedError
from sandboxes.installation import add_extra
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
    package: str | None = None
    """The module by which one sees that the extra is there."""
    settings: tuple[str, ...] = ()
    """What must be known to reach it; handed to `open_provider`, never stored by it."""

    options: tuple[str, ...] = ()
    """What may be set for one of this machine, by the names of its settings."""


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
        ProviderEntry(
            "daytona",
            "sandboxes.daytona",
            "DaytonaSandboxProvider",
            "Daytona's cloud, or anything that speaks its REST",
            extra="daytona",
            package="daytona",
            settings=("DAYTONA_API_KEY", "DAYTONA_API_URL", "DAYTONA_TARGET"),
        ),
        ProviderEntry(
            "docker",
            "sandboxes.docker",
            "DockerProvider",
            "containers of a Docker or Podman engine: images, own files, processes, network",
            extra="docker",
            package="aiodocker",
            options=("docker_image",),
        ),
        ProviderEntry("null", "sandboxes.null", "NullProvider", "runs nothing: for tests and measurements"),
    )
}


def open_provider(name: str, state_dir: Path, settings: Mapping[str, str] | None = None) -> SandboxProvider:
    """The provider of that name, keeping its state below `state_dir`.

    A remote one takes `settings` instead; what is missing among them raises MissingSandboxConfigError. One of
    this machine takes those of them that are its options.
    """
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
            f"provider {name!r} needs {error.name}: {add_extra(entry.extra)}"
        ) from error
    made = getattr(module, entry.class_name)
    if entry.settings:
        from sandboxes.types import sandbox_provider_config_from_mapping

        missing = [wanted for wanted in entry.settings if not (settings or {}).get(wanted)]
        if missing:
            raise MissingSandboxConfigError(f"provider {name!r} needs {', '.join(missing)}")
        made_of = sandbox_provider_config_from_mapping({**(settings or {}), "type": name})
        remote: SandboxProvider = made(made_of)
        return remote
    options = {name: value for name in entry.options if (value := (settings or {}).get(name))}
    provider: SandboxProvider = made(state_dir, **options)
    return provider
