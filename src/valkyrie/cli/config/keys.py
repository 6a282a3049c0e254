"""`config set`, `get`, `remove`, `list`, `path`."""

from __future__ import annotations

import click

from valkyrie.cli.options import verb
from valkyrie.cli.output import Output
from valkyrie.report.formats import NONE, safe
from valkyrie.report.layout import Column, Table
from valkyrie.settings import config_path


def _complete_key(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    from valkyrie.config import KEYS

    return [key.name for key in KEYS if key.name.lower().startswith(incomplete.lower())]


_key_argument = click.argument("key", shell_complete=_complete_key)


@verb("set", examples="valk config set default_concurrency 20\nvalk config set webhook SLACK_WEBHOOK_SECRET")
@_key_argument
@click.argument("value")
def set_value(output: Output, *, key: str, value: str) -> None:
    """Set one key.

    Upper or lower case does not matter in KEY; `config list` shows them all. Secrets do not belong here:
    see `valk secret set`.
    """
    from valkyrie.config import find_key
    from valkyrie.config import set_value as write

    if find_key(key).name == "default_provider":
        check_provider(value)
    written = write(key, value)
    output.emit("config", key=written.key.name, value=written.value, source="file", path=str(config_path()))
    output.line(f"{written.key.name} = {written.value}  ({config_path()})")


def check_provider(name: str) -> None:
    """Refuse what no sandbox provider is called."""
    from sandboxes.registry import PROVIDERS

    if name not in PROVIDERS:
        known = ", ".join(PROVIDERS)
        raise click.UsageError(f"default_provider wants one of {known}, not {name!r}.")


@verb("get", examples="valk config get default_concurrency")
@_key_argument
def get(output: Output, *, key: str) -> int:
    """Print the value of one key that is in force.

    From the environment, else the file, else the default. Exit 1 when it has no value.
    """
    from valkyrie.config import effective

    found = effective(key)
    output.emit("config", key=found.key.name, value=found.value, source=found.source)
    if found.value is None:
        output.note(f"{found.key.name} is not set.")
        return 1
    output.line(safe(found.value))
    return 0


@verb("remove", examples="valk config remove webhook")
@_key_argument
def remove(output: Output, *, key: str) -> None:
    """Remove one key from the file."""
    from valkyrie.config import find_key
    from valkyrie.config import remove as take_out

    name, removed = find_key(key).name, take_out(key)
    output.emit("config_removed", key=name, removed=removed)
    output.line(f"Removed {name}." if removed else f"{name} was not in {config_path()}.")


@verb("list", examples="valk config list")
def list_keys(output: Output) -> None:
    """List every key, its value and where it comes from.

    Of services, credentials and providers it says how many there are; `config service list`,
    `config auth list` and `config provider list` show them.
    """
    from valkyrie.config import KEYS, MAPS, effective, mapping

    found = [effective(key.name) for key in KEYS]
    maps = [(entries, len(mapping(entries.name))) for entries in MAPS]
    keys = [
        {
            "key": e.key.name,
            "value": e.value,
            "source": e.source,
            "env": e.key.env,
            "description": e.key.meaning,
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
        value = NONE if entry.value is None else safe(entry.value)
        table.rows.append([entry.key.name, value, entry.source, entry.key.meaning])
    for entries, count in maps:
        value = f"{count} {'entry' if count == 1 else 'entries'}" if count else NONE
        table.rows.append([entries.name, value, "file" if count else "unset", entries.description])
    if not output.json:
        output.table(table)


@verb("path", examples='$EDITOR "$(valk config path)"')
def path(output: Output) -> None:
    """Print where the config file is."""
    output.emit("config_path", path=str(config_path()), exists=config_path().exists())
    output.line(str(config_path()))
