"""Find a provider by its name, and say how to install what it needs."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit, urlunsplit

from sandboxes.errors import MissingSandboxConfigError, SandboxUnsupportedError

if TYPE_CHECKING:
    from importlib.metadata import Distribution

    from sandboxes.protocol import SandboxProvider

DISTRIBUTION = "valkyrie-bench"
_OF_EXTRA = re.compile(r"""^(?P<package>[^;]+);.*\bextra\s*==\s*["'](?P<extra>[^"']+)["']""")


def origin() -> str | None:
    """Return where this program was installed from (PEP 610) as a requirement takes it, or None."""
    found = _distribution()
    text = found.read_text("direct_url.json") if found else None
    return reference_of(json.loads(text)) if text else None


def _distribution() -> Distribution | None:
    from importlib import metadata  # 20 ms, which few commands need

    try:
        return metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return None


def public_origin() -> str | None:
    """Return the origin if other machines can reach it too: no folder or file of this one."""
    found = origin()
    return None if found is None or urlsplit(found).scheme in ("file", "git+file") else found


def reference_of(record: dict[str, Any]) -> str | None:
    """Return the URL of a PEP 610 record as a requirement takes it; None when it leads nowhere from here."""
    url = _without_password(str(record["url"]))
    if urlsplit(url).scheme == "file" and not Path(unquote(urlsplit(url).path)).exists():
        return None
    if vcs := record.get("vcs_info"):
        revision = vcs.get("requested_revision") or vcs["commit_id"]
        url = f"{vcs['vcs']}+{url}@{revision}"
    folder = record.get("subdirectory")
    return f"{url}#subdirectory={folder}" if folder else url


def add_extra(extra: str) -> str:
    """Return the command that installs what an extra needs beside this program, however that is installed."""
    return add_packages(extra_packages(extra))


def extra_packages(extra: str) -> list[str]:
    """Return the requirements of an extra, as the installed distribution names them."""
    installed = _distribution()
    lines = (installed.requires if installed else None) or []
    found = [match for line in lines if (match := _OF_EXTRA.match(line))]
    return [one["package"].strip() for one in found if one["extra"] == extra] or [extra]


def add_packages(packages: list[str]) -> str:
    """Return the command that adds packages to the environment this program runs in."""
    wanted = " ".join(shlex.quote(package) for package in packages)
    prefix = Path(sys.prefix)
    if (prefix / "pipx_metadata.json").exists():
        return f"pipx inject {shlex.quote(prefix.name)} {wanted}"
    python = shlex.quote(_from_here(Path(sys.executable)))
    if (prefix / "uv-receipt.toml").exists() or find_spec("pip") is None:
        return f"uv pip install --python {python} {wanted}"
    return f"{python} -m pip install {wanted}"


def _from_here(path: Path) -> str:
    """Return the path relative to the current folder where it lies below it."""
    below = os.path.relpath(path)
    return str(path) if below.startswith(os.pardir) else below


def _without_password(url: str) -> str:
    """Return the URL without a literal password, which must not end up in someone's repository."""
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    if not at or ":" not in user or "${" in user:
        return url
    return urlunsplit(parts._replace(netloc=host))


# The providers by name, loaded on first use.


class ProviderEntry(NamedTuple):
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
            "sandboxes.local.provider",
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


__all__ = [
    "PROVIDERS",
    "ProviderEntry",
    "open_provider",
]
