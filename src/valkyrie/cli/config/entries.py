"""What the `config` commands share."""

from __future__ import annotations

import sys
from collections.abc import Callable

import click

from valkyrie.cli.options import Decorated
from valkyrie.cli.output import Output
from valkyrie.report.formats import safe
from valkyrie.settings import config_path

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
        from valkyrie.config import mapping
        from valkyrie.errors import ValkyrieError

        try:
            return [name for name in mapping(map_name) if name.startswith(incomplete)]
        except ValkyrieError:
            return []

    return click.argument("name", shell_complete=complete)


def forget(output: Output, map_name: str, name: str, kind: str) -> int:
    """Take an entry out of the file; exit 1 when there was none."""
    from valkyrie.config import mapping, remove_entry
    from valkyrie.suggest import did_you_mean

    known = list(mapping(map_name))
    removed = remove_entry(map_name, name)
    output.emit(kind, name=name, removed=removed)
    if removed:
        output.line(f"Removed {safe(name)}.")
        return 0
    output.note(f"{safe(name)} is not in {map_name} of {config_path()}.{did_you_mean(name, known)}")
    return 1
