"""`config provider set`, `default`, `list`, `remove`."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import click

from sandboxes.installation import add_extra
from valkyrie.cli.config.entries import forget
from valkyrie.cli.config.keys import check_provider
from valkyrie.cli.options import verb
from valkyrie.cli.output import Output
from valkyrie.report.formats import NONE, safe
from valkyrie.report.layout import Column, Table
from valkyrie.settings import config_path, secrets_path

if TYPE_CHECKING:
    from sandboxes.registry import ProviderEntry

SANDBOX_PROVIDERS = "sandbox_providers"


def _complete(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    from sandboxes.registry import PROVIDERS

    return [name for name in PROVIDERS if name.startswith(incomplete)]


_name_argument = click.argument("name", shell_complete=_complete)


@verb("set", examples="valk config provider set daytona\nvalk config provider set daytona my-daytona-secret")
@_name_argument
@click.argument("secret", required=False)
def set_provider(output: Output, *, name: str, secret: str | None) -> None:
    """Say how to reach a remote sandbox provider.

    SECRET is the name of a secret that holds a JSON object of its settings, for daytona
    {"DAYTONA_API_KEY", "DAYTONA_API_URL", "DAYTONA_TARGET"}. Without it the environment variables of those
    names are used.
    """
    from valkyrie.config import set_entry
    from valkyrie.secrets.store import check_name

    entry = _remote(name)
    if secret is not None:
        check_name(secret)
    set_entry(SANDBOX_PROVIDERS, name, secret)
    output.emit("provider", name=name, secret=secret, settings=list(entry.settings))
    output.line(f"{name} is reached with {_reached_with(entry, secret)}.")
    if secret is not None and not _is_kept(secret):
        output.note(f"Note: no secret {safe(secret)} is kept here yet: valk secret set {safe(secret)}")
    rows = [
        ("For one run", f"valk run start --provider {name} …"),
        ("For all", f"valk config provider default {name}"),
    ]
    output.panel("Next", rows)


def _remote(name: str) -> ProviderEntry:
    """The provider, which must be one that has something to configure."""
    from sandboxes.registry import PROVIDERS
    from valkyrie.suggest import did_you_mean

    remote = [entry.name for entry in PROVIDERS.values() if entry.settings]
    if name not in PROVIDERS:
        hint = did_you_mean(name, remote) or f" There is {', '.join(remote)}."
        raise click.UsageError(f"No sandbox provider is called {name!r}.{hint}")
    if name not in remote:
        raise click.UsageError(
            f"{name} runs on this machine and needs no configuring. To make it the default: "
            f"valk config provider default {name}"
        )
    return PROVIDERS[name]


def _reached_with(entry: ProviderEntry, secret: str | None) -> str:
    return f"the secret {safe(secret)}" if secret else f"the environment ({', '.join(entry.settings)})"


def _is_kept(secret: str) -> bool:
    from valkyrie.errors import ValkyrieError
    from valkyrie.secrets import SecretStore

    try:
        return secret in SecretStore(secrets_path()).list()
    except ValkyrieError:
        return False


@verb("default", examples="valk config provider default local")
@_name_argument
def default(output: Output, *, name: str) -> None:
    """Choose the provider of runs that name none.

    The same as `config set default_provider NAME`.
    """
    from valkyrie.config import effective, set_value

    check_provider(name)
    set_value("default_provider", name)
    found = effective("default_provider")
    output.emit("config", key="default_provider", value=name, source="file", path=str(config_path()))
    output.line(f"default_provider = {name}  ({config_path()})")
    if found.source == "environment":
        output.note(f"Note: {found.key.env}={safe(found.value)} in the environment wins over it.")


@verb("list", examples="valk config provider list")
def list_providers(output: Output) -> None:
    """List the sandbox providers.

    Which is the default, what each still needs, and what it is.
    """
    from sandboxes.registry import PROVIDERS
    from valkyrie.config import effective, mapping

    configured, chosen = mapping(SANDBOX_PROVIDERS), effective("default_provider").value
    found = [_described(entry, configured, chosen == entry.name) for entry in PROVIDERS.values()]
    output.emit("provider_list", providers=found)
    table = Table(
        [
            Column("Provider"),
            Column("Default"),
            Column("Reached with", shrink=True),
            Column("Available", shrink=True),
            Column("What it is", shrink=True),
        ]
    )
    for row in found:
        table.rows.append(
            [
                row["name"],
                "yes" if row["default"] else NONE,
                safe(row["reached_with"]),
                "yes" if row["available"] else add_extra(row["extra"]),
                row["summary"],
            ]
        )
    output.table(table)


def _described(entry: ProviderEntry, configured: dict[str, Any], chosen: bool) -> dict[str, Any]:
    secret = configured.get(entry.name)
    missing = [] if secret or not entry.settings else _missing(entry.name)
    if not entry.settings:
        reached = "nothing needed"
    elif missing:
        reached = f"not configured: no {', '.join(missing)}"
    else:
        reached = _reached_with(entry, secret)
    return {
        "name": entry.name,
        "summary": entry.summary,
        "default": chosen,
        "configured": not missing,
        "secret": secret,
        "reached_with": reached,
        "extra": entry.extra,
        "available": entry.package is None or find_spec(entry.package) is not None,
    }


def _missing(name: str) -> list[str]:
    from valkyrie.organisation.embedded import EmbeddedOrganisation
    from valkyrie.settings import data_folder
    from valkyrie.store.layout import DataFolder
    from valkyrie.tracker.secrets import missing_settings

    return missing_settings(name, EmbeddedOrganisation(DataFolder(data_folder())))


@verb("remove", examples="valk config provider remove daytona")
@_name_argument
def remove(output: Output, *, name: str) -> int:
    """Forget how to reach a provider.

    The secret itself stays: see `secret remove`. Exit 1 when it was not configured.
    """
    from valkyrie.config import effective

    code = forget(output, SANDBOX_PROVIDERS, name, "provider_removed")
    if code == 0 and effective("default_provider").value == name:
        output.note(
            f"Note: {name} is still the default; back to this machine: valk config provider default local"
        )
    return code
