"""`config auth set`, `list`, `remove`."""

from __future__ import annotations

import click

from valkyrie.cli.config.entries import HISTORY, asked, forget, name_argument
from valkyrie.cli.options import verb
from valkyrie.cli.output import Output
from valkyrie.report.layout import Column, Table

AUTH = "benchmark_auth"


@verb(
    "set",
    examples="valk config auth set my-benchmark\n"
    'valk config auth set my-benchmark "Bearer $KEY"\n'
    'printf "Bearer %s" "$KEY" | valk config auth set my-benchmark -',
)
@name_argument(AUTH)
@click.argument("credential", required=False)
def set_credential(output: Output, *, name: str, credential: str | None) -> None:
    """Keep the credential of a benchmark's service.

    It is sent as the header `Authorization`, as it is (`Bearer …` included), with every request to the
    service called NAME. Left out it is asked for, or read from stdin in a pipe; `-` reads stdin.
    """
    from valkyrie.config import masked, set_entry

    as_argument = credential not in (None, "-")
    kept = str(
        set_entry(AUTH, name, credential if as_argument else asked(f"Credential of {name}", credential))
    )
    output.emit("auth", name=name, credential=masked(kept))
    output.line(f"Kept the credential of {name}: {masked(kept)}")
    if as_argument:
        output.note(HISTORY.format(what="the credential"))


@verb("list", examples="valk config auth list")
def list_credentials(output: Output) -> None:
    """List the services with a credential, masked."""
    from valkyrie.config import mapping, masked

    found = [(name, masked(credential)) for name, credential in mapping(AUTH).items()]
    output.emit("auth_list", credentials=[{"name": name, "credential": shown} for name, shown in found])
    if not found:
        output.note("No credentials yet. Keep one: valk config auth set NAME")
        return
    table = Table([Column("Name"), Column("Credential")])
    table.rows += [[name, shown] for name, shown in found]
    output.table(table)


@verb("remove", examples="valk config auth remove my-benchmark")
@name_argument(AUTH)
def remove(output: Output, *, name: str) -> int:
    """Forget a credential.

    Exit 1 when there was none of that name.
    """
    return forget(output, AUTH, name, "auth_removed")
