"""`secret set`, `list`, `remove`."""

from __future__ import annotations

import sys
from dataclasses import asdict

import click

from benchmark_runner.terminal import Column, Table, safe
from valkyrie.cli.options import confirm, tracker, verb, yes_option
from valkyrie.cli.output import Output
from valkyrie.report.formats import NONE, moment_short
from valkyrie.secrets.sources import LONGEST_VALUE, check_name, check_value


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
    check_name(name)
    value = _value(name, from_stdin)
    with tracker() as opened:
        opened.set_secret(name, value)
    output.emit("secret", name=name)
    output.line(f"Kept {safe(name)}.")
    output.panel("Next", [("Use it", f"valk run start … -s ENV_VARIABLE {safe(name)}")])


def _value(name: str, from_stdin: bool) -> str:
    if from_stdin:
        value = _from_stdin(name)
    elif sys.stdin.isatty():
        value = str(
            click.prompt(f"Value of {name}", hide_input=True, err=True, default="", show_default=False)
        )
    else:
        raise click.UsageError("Nobody can be asked here: add --stdin and pipe the value in.")
    if not value:
        raise click.UsageError("The value is empty; nothing was kept.")
    return value


def _from_stdin(name: str) -> str:
    """What stdin holds, without its last line break; no more of it is read than may be kept."""
    read = sys.stdin.buffer.read(LONGEST_VALUE + 3)
    try:
        value = read.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        if len(read) <= LONGEST_VALUE + 2:
            raise click.UsageError(
                f"The value of {safe(name)} is not UTF-8 text; nothing was kept. Encode it: base64 FILE | "
                f"valk secret set {safe(name)} --stdin"
            ) from None
        value = read.decode(errors="replace")
    if value:
        check_value(name, value)
    return value


@verb("list", examples="valk secret list")
def list_secrets(output: Output) -> None:
    """List the names of the secrets kept here.

    Those of the tracker's organisation when a tracker is configured, with who set each and when. Values are
    never shown.
    """
    with tracker() as opened:
        found = opened.secrets()
    names = [secret.name for secret in found]
    output.emit("secret_list", names=names, secrets=[asdict(secret) for secret in found])
    if not names:
        output.note("No secrets yet. Keep one: valk secret set NAME")
    elif any(secret.created_by for secret in found):
        table = Table([Column("Secret", shrink=True), Column("Set By", shrink=True), Column("Set")])
        for secret in found:
            who = safe(secret.created_by) if secret.created_by else NONE
            table.rows.append([safe(secret.name), who, moment_short(secret.created_at)])
        output.table(table)
    else:
        output.lines(safe(name) for name in names)


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
