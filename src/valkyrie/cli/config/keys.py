"""`config set`, `get`, `remove`, `list`, `path`."""

from __future__ import annotations

import os

import click

from valkyrie.cli.config.entries import HISTORY, asked
from valkyrie.cli.options import verb
from valkyrie.cli.output import Output
from valkyrie.report.formats import NONE, safe
from valkyrie.report.layout import Column, Table
from valkyrie.settings import config_path


def _complete_key(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    from valkyrie.config import KEYS

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
    from valkyrie.config import find_key
    from valkyrie.config import set_value as write

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
    from sandboxes.registry import PROVIDERS

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
    from valkyrie.config import effective

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
    from valkyrie.config import find_key
    from valkyrie.config import remove as take_out

    name, removed = find_key(key).name, take_out(key)
    output.emit("config_removed", key=name, removed=removed)
    output.line(f"Removed {name}." if removed else f"{name} was not in {config_path()}.")


@verb("list", examples="valk config list")
def list_keys(output: Output) -> None:
    """List every key, its value and where it comes from.

    Of services, credentials and providers it says how many there are; `config service list`,
    `config auth list` and `config provider list` show them. Values that are secret are masked.
    """
    from valkyrie.config import KEYS, MAPS, effective, mapping, notices

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
