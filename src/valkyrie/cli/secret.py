"""`secret set`, `list`, `remove`."""

from __future__ import annotations

import sys

import click

from valkyrie.cli.options import confirm, tracker, verb, yes_option
from valkyrie.cli.output import Output
from valkyrie.report.formats import safe


@verb(
    "set", examples="valk secret set openai-key\nprintenv OPENAI_API_KEY | valk secret set openai-key --stdin"
)
@click.argument("name")
@click.option(
    "--stdin", "from_stdin", is_flag=True, help="Read the value from stdin; one final line break is dropped."
)
def set_secret(output: Output, *, name: str, from_stdin: bool) -> None:
    """Keep a secret; its value is asked for, never an argument.

    What stands on a command line is seen by other users and stays in the shell's history, so the value is
    typed unseen or read from stdin. A tracker keeps it encrypted, for its organisation.
    """
    from valkyrie.secrets.store import check_name

    check_name(name)
    value = _value(name, from_stdin)
    with tracker() as opened:
        opened.set_secret(name, value)
    output.emit("secret", name=name)
    output.line(f"Kept {safe(name)}.")
    output.panel("Next", [("Use it", f"valk run start … -s ENV_VARIABLE {safe(name)}")])


def _value(name: str, from_stdin: bool) -> str:
    if from_stdin:
        value = sys.stdin.read().removesuffix("\n").removesuffix("\r")
    elif sys.stdin.isatty():
        value = str(
            click.prompt(f"Value of {name}", hide_input=True, err=True, default="", show_default=False)
        )
    else:
        raise click.UsageError("Nobody can be asked here: add --stdin and pipe the value in.")
    if not value:
        raise click.UsageError("The value is empty; nothing was kept.")
    return value


@verb("list", examples="valk secret list")
def list_secrets(output: Output) -> None:
    """List the names of the secrets kept here.

    Those of the tracker's organisation when a tracker is configured. Values are never shown.
    """
    with tracker() as opened:
        names = [secret.name for secret in opened.secrets()]
    output.emit("secret_list", names=names)
    output.lines(safe(name) for name in names)
    if not names:
        output.note("No secrets yet. Keep one: valk secret set NAME")


@verb("remove", examples="valk secret remove openai-key --yes")
@click.argument("name")
@yes_option
def remove(output: Output, *, name: str, yes: bool) -> None:
    """Forget a secret.

    Cannot be undone, so it asks first; where nobody can be asked it needs --yes.
    """
    confirm(output, f"Remove secret {name} for good?", yes=yes)
    with tracker() as opened:
        opened.remove_secret(name)
    output.emit("secret_removed", name=name)
    output.line(f"Removed {safe(name)}.")
