"""`config set`, `get`, `remove`, `list`, `path`, and `config provider`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import click

from benchmark_runner.terminal import Column, Table, safe
from sandboxes.registry import PROVIDERS, add_extra
from valkyrie.cli.options import Decorated, verb
from valkyrie.cli.output import Output
from valkyrie.config.values import (
    KEYS,
    MAPS,
    config_path,
    data_folder,
    effective,
    find_key,
    mapping,
    notices,
    remove_entry,
    secrets_path,
    set_entry,
)
from valkyrie.config.values import remove as take_out
from valkyrie.config.values import set_value as write
from valkyrie.errors import ValkyrieError
from valkyrie.report.formats import NONE
from valkyrie.secrets import SecretStore
from valkyrie.secrets.sources import check_name
from valkyrie.store.layout import DataFolder
from valkyrie.tenants.organisation import EmbeddedOrganisation
from valkyrie.text import did_you_mean
from valkyrie.tracker.secrets import missing_settings

if TYPE_CHECKING:
    from sandboxes.registry import ProviderEntry


# What the `config` commands share.

HISTORY = (
    "Note: arguments stay in the shell's history and other users can see them; leave {what} out to be asked "
    "for it."
)


def asked(question: str, given: str | None) -> str:
    """A secret value: from stdin in a pipe or for `-`, else asked for unseen."""
    if given == "-" or not sys.stdin.isatty():
        value = sys.stdin.read()
    else:
        value = str(click.prompt(question, hide_input=True, err=True, default="", show_default=False))
    if not value.strip():
        raise click.UsageError(f"{question}: it is empty; nothing was kept.")
    return value.strip()


def name_argument(map_name: str) -> Callable[[Decorated], Decorated]:
    """NAME, completed from the entries there are."""

    def complete(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
        try:
            return [name for name in mapping(map_name) if name.startswith(incomplete)]
        except ValkyrieError:
            return []

    return click.argument("name", shell_complete=complete)


def forget(output: Output, map_name: str, name: str, kind: str) -> int:
    """Take an entry out of the file; exit 1 when there was none."""
    known = list(mapping(map_name))
    removed = remove_entry(map_name, name)
    output.emit(kind, name=name, removed=removed)
    if removed:
        output.line(f"Removed {safe(name)}.")
        return 0
    output.note(f"{safe(name)} is not in {map_name} of {config_path()}.{did_you_mean(name, known)}")
    return 1


# `config set`, `get`, `remove`, `list`, `path`.


def _complete_key(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    return [key.name for key in KEYS if key.name.lower().startswith(incomplete.lower())]


_key_argument = click.argument("key", shell_complete=_complete_key)


@verb(
    "set",
    examples="valk config set default_concurrency 20\nvalk config set webhook SLACK_WEBHOOK_SECRET\n"
    "printenv VALKYRIE_API_KEY | valk config set api_key -",
)
@_key_argument
@click.argument("value", required=False)
def set_value(output: Output, *, key: str, value: str | None) -> None:
    """Set one key.

    Upper or lower case does not matter in KEY; `config list` shows them all. The VALUE of a key that is
    secret (api_key, AWS_SECRET_ACCESS_KEY, …) can be left out: it is asked for, or read from stdin in a pipe
    and with `-`. Secrets of agents do not belong here: see `valk secret set`.
    """
    setting = find_key(key)
    as_argument = value not in (None, "-") or not setting.secret
    if setting.name == "mode":
        raise click.UsageError(f"A mode has keys of its own: valk config init --mode {value or 'MODE'}")
    if value is None and not setting.secret:
        raise click.UsageError(f"{setting.name} wants {setting.wanted}.")
    if setting.name == "default_provider":
        check_provider(str(value))
    written = write(key, str(value) if as_argument else asked(f"Value of {setting.name}", value))
    output.emit("config", key=setting.name, value=written.shown, source="file", path=str(config_path()))
    output.line(f"{setting.name} = {written.shown}  ({config_path()})")
    if setting.secret and as_argument:
        output.note(HISTORY.format(what="the value"))
    if setting.env and os.environ.get(setting.env):
        output.note(f"Note: {setting.env} in the environment wins over it.")


def check_provider(name: str) -> None:
    """Refuse what no sandbox provider is called."""
    if name not in PROVIDERS:
        known = ", ".join(PROVIDERS)
        raise click.UsageError(f"default_provider wants one of {known}, not {name!r}.")


@verb("get", examples="valk config get default_concurrency\nvalk config get api_key --show")
@_key_argument
@click.option("--show", is_flag=True, help="Print a secret value whole, not masked.")
def get(output: Output, *, key: str, show: bool) -> int:
    """Print the value of one key that is in force.

    From the environment, else the file, else the default. Exit 1 when it has no value. Of a value that is
    secret only the first characters are printed.
    """
    found = effective(key)
    value = found.value if show else found.shown
    output.emit("config", key=found.key.name, value=value, source=found.source)
    if value is None:
        output.note(f"{found.key.name} is not set.")
        return 1
    output.line(safe(value))
    return 0


@verb("remove", examples="valk config remove webhook")
@_key_argument
def remove(output: Output, *, key: str) -> None:
    """Remove one key from the file.

    What the mode needs (tracker_url and api_key, unless it is local) stays; `config init` changes the mode.
    """
    name, removed = find_key(key).name, take_out(key)
    output.emit("config_removed", key=name, removed=removed)
    output.line(f"Removed {name}." if removed else f"{name} was not in {config_path()}.")


@verb("list", examples="valk config list")
def list_keys(output: Output) -> None:
    """List every key, its value and where it comes from.

    Of services, credentials and providers it says how many there are; `config service list`,
    `config auth list` and `config provider list` show them. Values that are secret are masked.
    """
    found = [effective(key.name) for key in KEYS]
    maps = [(entries, len(mapping(entries.name))) for entries in MAPS]
    keys = [
        {
            "key": e.key.name,
            "value": e.shown,
            "source": e.source,
            "env": e.key.env,
            "description": e.key.description,
        }
        for e in found
    ]
    counts = [
        {
            "key": entries.name,
            "entries": count,
            "command": entries.command,
            "description": entries.description,
        }
        for entries, count in maps
    ]
    output.emit("config_list", keys=keys, maps=counts, path=str(config_path()))
    table = Table(
        [Column("Key"), Column("Value", shrink=True), Column("From"), Column("What it is", shrink=True)]
    )
    for entry in found:
        value = NONE if entry.value is None else safe(entry.shown)
        table.rows.append([entry.key.name, value, entry.source, entry.key.description])
    for entries, count in maps:
        value = f"{count} {'entry' if count == 1 else 'entries'}" if count else NONE
        table.rows.append([entries.name, value, "file" if count else "unset", entries.description])
    if not output.json:
        output.table(table)
    output.notices(notices())


@verb("path", examples='$EDITOR "$(valk config path)"')
def path(output: Output) -> None:
    """Print where the config file is."""
    output.emit("config_path", path=str(config_path()), exists=config_path().exists())
    output.line(str(config_path()))


# `config provider set`, `default`, `list`, `remove`.

SANDBOX_PROVIDERS = "sandbox_providers"


def _complete(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
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
    check_provider(name)
    write("default_provider", name)
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
    return missing_settings(name, EmbeddedOrganisation(DataFolder(data_folder())))


@verb("remove", examples="valk config provider remove daytona")
@_name_argument
def remove_provider(output: Output, *, name: str) -> int:
    """Forget how to reach a provider.

    The secret itself stays: see `secret remove`. Exit 1 when it was not configured.
    """
    code = forget(output, SANDBOX_PROVIDERS, name, "provider_removed")
    if code == 0 and effective("default_provider").value == name:
        output.note(
            f"Note: {name} is still the default; back to this machine: valk config provider default local"
        )
    return code
