"""`db upgrade`, `current`, `check`, `compact`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from valkyrie.cli.options import verb
from valkyrie.cli.output import Output
from valkyrie.report.formats import safe

if TYPE_CHECKING:
    from pathlib import Path


def _address() -> Path | str:
    """The database of this machine's settings: a URL of the environment, or the data folder's file."""
    from valkyrie.settings import data_folder, database_url
    from valkyrie.store.layout import DataFolder

    return database_url() or DataFolder(data_folder()).database


@verb("upgrade", examples="valkyrie db upgrade --dry-run\nvalkyrie db upgrade")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
def upgrade(output: Output, *, dry_run: bool) -> None:
    """Bring the database to this program's schema.

    On `VALKYRIE_DATABASE_URL`, or the data folder's file. A file is copied aside first. On PostgreSQL it is
    refused while executors are at work: drain them first (SIGTERM). What is there already is left alone.
    """
    from valkyrie.store import upkeep

    address = _address()
    done = upkeep.steps(address) if dry_run else upkeep.upgrade(address)
    found = upkeep.standing(address)
    output.emit("db_upgrade", dry_run=dry_run, steps=done, revision=found.revision, place=found.place)
    if not done:
        output.line(f"{safe(found.place)} has schema {found.revision} already.")
    for step in done:
        output.line(f"Would {safe(step)}." if dry_run else f"{safe(step[0].upper() + step[1:])}.")


@verb("current", examples="valkyrie db current\nvalkyrie db current --json")
def current(output: Output) -> None:
    """Say where the database is and which schema it has.

    Nothing is changed. No password is shown.
    """
    from valkyrie.store import upkeep

    found = upkeep.standing(_address())
    output.emit(
        "db_current", database=found.kind, place=found.place, revision=found.revision, needed=found.needed
    )
    output.panel(
        "Database",
        [
            ("Kind", found.kind),
            ("Place", safe(found.place)),
            ("Schema", found.revision or "none yet"),
            ("Needed", found.needed),
        ],
    )
    if found.newer:
        output.note("A newer Valkyrie wrote it: upgrade the program, or point it at another database.")
    elif not found.current:
        output.panel("Next", [("Upgrade", "valkyrie db upgrade")])


@verb("check", examples="valkyrie db check")
def check(output: Output) -> int:
    """Look for what is wrong with the database.

    Exit code 1 when something is: its schema is not exactly this program's, runs' counters do not equal what
    they count, something is held by an executor that is gone. Nothing is changed.
    """
    from valkyrie.store import upkeep

    address = _address()
    found = upkeep.problems(address)
    place = upkeep.standing(address).place
    output.emit("db_check", ok=not found, place=place, problems=found)
    if not found:
        output.line(f"{safe(place)} is in order.")
    output.lines(f"- {safe(problem)}" for problem in found)
    return 1 if found else 0


@verb("compact", examples="valkyrie db compact")
def compact(output: Output) -> None:
    """Give the disk back what deleted runs left in the database.

    `run delete` does so by itself in a file that this version made; one of an earlier version does after
    this. The file is written anew, which needs as much room once more; it is refused while an executor is at
    work. On PostgreSQL the tables are vacuumed, which disturbs nobody.
    """
    from valkyrie.report.formats import size
    from valkyrie.store import upkeep

    done = upkeep.compact(_address())
    output.emit("db_compact", place=done.place, given_back=done.given_back, reclaimable=done.after)
    output.line(f"{safe(done.place)} is compact: {size(done.given_back)} given back.")
