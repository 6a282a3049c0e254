"""`admin` and `db`: for whoever runs a tracker, on its database."""

from __future__ import annotations

import getpass
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from benchmark_runner.terminal import Column, Table, safe
from valkyrie.cli.options import WholeNumber, verb
from valkyrie.cli.output import Output
from valkyrie.config.values import data_folder, database_url
from valkyrie.domain import DEFAULT_ORG, Identity, Role
from valkyrie.report.formats import NONE, moment, moment_short, plural, size
from valkyrie.secrets.delivery import VARIABLE, new_key
from valkyrie.store import tenants, upkeep
from valkyrie.store.layout import DataFolder
from valkyrie.tracker.app import TrackerApp

if TYPE_CHECKING:
    from pathlib import Path

    from valkyrie.store import Connection, Store


DAY_S = 86_400
MOST_AT_ONCE = 100_000
org_option = click.option(
    "--org", default=DEFAULT_ORG, show_default=True, metavar="NAME", help="The organisation."
)


@contextmanager
def _store() -> Iterator[Store]:
    """The tracker's database: the one of this machine, never one behind an HTTP API."""
    tracker_app = TrackerApp(DataFolder(data_folder()), server=True)
    try:
        yield tracker_app.store
    finally:
        tracker_app.close()


@verb("create", examples="valkyrie admin org create research")
@click.argument("name")
def create_org(output: Output, *, name: str) -> None:
    """Make an organisation.

    Its people see its own runs, agents and secrets, and nobody else's. Works on the tracker's database
    (VALKYRIE_DATABASE_URL, or the data folder of this machine), not over HTTP.
    """
    with _store() as store, store.writing() as connection:
        made, place = tenants.create_org(connection, name), store.place
        _record(connection, made.id, "admin_create_org", made.name)
    output.emit("org", id=made.id, name=made.name, database=place)
    output.line(f"Made organisation {safe(made.name)} ({made.id}) in {safe(place)}.")
    output.panel(
        "Next", [("A key for it", f"valkyrie admin key create --org {_word(made.name)} --person EMAIL")]
    )


@verb("list", examples="valkyrie admin org list")
def list_orgs(output: Output) -> None:
    """List the organisations.

    Works on the tracker's database (VALKYRIE_DATABASE_URL, or the data folder of this machine).
    """
    with _store() as store, store.reading() as connection:
        found, keys = tenants.orgs(connection), tenants.list_keys(connection)
    now = time.time()
    counts = {
        one.id: sum(key.org_id == one.id and key.state(now) == "active" for key in keys) for one in found
    }
    orgs = [
        {
            "id": one.id,
            "name": one.name,
            "tenant": one.tenant,
            "created_at": one.created_at,
            "active_keys": counts[one.id],
        }
        for one in found
    ]
    output.emit("org_list", orgs=orgs)
    table = Table(
        [
            Column("Name", shrink=True),
            Column("Id"),
            Column("Tenant", shrink=True),
            Column("Keys"),
            Column("Made"),
        ]
    )
    for one in found:
        row = [
            safe(one.name),
            one.id,
            safe(one.tenant or NONE),
            str(counts[one.id]),
            moment_short(one.created_at),
        ]
        table.rows.append(row)
    output.table(table)


@verb(
    "create",
    examples="valkyrie admin key create --person ada@example.com\n"
    "valkyrie admin key create --org research --person ada@example.com --name laptop --expires 90\n"
    "valkyrie admin key create --person ci --role reader\n"
    "valkyrie admin key create --person ci@example.com --max-concurrency 8",
)
@org_option
@click.option("--name", metavar="TEXT", help="What the key is for, to tell keys apart [default: the person].")
@click.option(
    "--person", metavar="EMAIL", help="Whose runs are started with it [default: who types this command]."
)
@click.option("--expires", type=WholeNumber(1, 36_500), metavar="DAYS", help="Days until it is refused.")
@click.option(
    "--role",
    type=click.Choice([role.value for role in Role]),
    default=Role.MEMBER.value,
    show_default=True,
    help="What it may do.",
)
@click.option(
    "--max-concurrency",
    type=WholeNumber(1, MOST_AT_ONCE),
    metavar="N",
    help="Trials at once of all runs started with it [default: no limit].",
)
def create_key(
    output: Output,
    *,
    org: str,
    name: str | None,
    person: str | None,
    expires: int | None,
    role: str,
    max_concurrency: int | None,
) -> None:
    """Make an API key; it is printed once.

    A reader looks at everything of the organisation and changes nothing (CI, dashboards); a member also
    starts and steers runs, pushes agents and sets secrets; an admin also changes the organisation's settings
    and sees who did what.

    The key alone goes to stdout, the rest to stderr. Only its hash is kept: a key that is lost is revoked
    and another one made. Works on the tracker's database (VALKYRIE_DATABASE_URL, or the data folder of this
    machine), not over HTTP.
    """
    person = person or _who()
    expires_at = time.time() + expires * DAY_S if expires else None
    with _store() as store, store.writing() as connection:
        owner, place = tenants.org_by_name(connection, org), store.place
        key_id, clear = tenants.create_key(
            connection,
            owner.id,
            name or person,
            person,
            expires_at,
            role=Role(role),
            max_concurrency=max_concurrency,
        )
        _record(connection, owner.id, "admin_create_key", f"{key_id} ({role} of {person})")
    output.emit(
        "api_key",
        id=key_id,
        key=clear,
        org=owner.name,
        person=person,
        role=role,
        expires_at=expires_at,
        max_concurrency=max_concurrency,
    )
    if output.json:
        return
    ends = f" until {moment(expires_at)}" if expires_at else ""
    at_most = f", at most {plural(max_concurrency, 'trial')} at once" if max_concurrency else ""
    output.note(
        f"Key {key_id} ({role}) of {safe(person)} in organisation {safe(owner.name)}{ends}{at_most} "
        f"({safe(place)}). "
        "It is shown this once:"
    )
    output.line(clear)
    output.note(
        "They use it with:\n"
        "  export TRACKER_SERVICE_URL=http://HOST:PORT VALKYRIE_API_KEY=THE-KEY\n"
        "  valk config init --mode self-hosted\n"
        f"To take it back: valkyrie admin key revoke {key_id}"
    )


@verb("list", examples="valkyrie admin key list\nvalkyrie admin key list --org research --json")
@click.option("--org", metavar="NAME", help="Only keys of this organisation.")
def list_keys(output: Output, *, org: str | None) -> None:
    """List the API keys, never the keys themselves.

    Whose they are, what they may do, whether they still open anything, and when they were last used (to the
    minute). Works on the tracker's database (VALKYRIE_DATABASE_URL, or the data folder of this machine).
    """
    with _store() as store, store.reading() as connection:
        owner = tenants.org_by_name(connection, org) if org else None
        keys = tenants.list_keys(connection, owner.id if owner else None)
    now = time.time()
    output.emit("api_key_list", keys=[{**asdict(key), "state": key.state(now)} for key in keys])
    if not keys:
        output.note("No keys yet. Make one: valkyrie admin key create --person EMAIL")
        return
    names = ("Id", "Person", "Role", "Name", "Organisation", "State", "Last used", "Expires", "At once")
    table = Table([Column(name, shrink=name in ("Person", "Name")) for name in names])
    for key in keys:
        cells = [key.id, safe(key.person), key.role.value, safe(key.name), safe(key.org), key.state(now)]
        table.rows.append(
            [
                *cells,
                moment_short(key.last_used_at),
                moment_short(key.expires_at),
                str(key.max_concurrency or NONE),
            ]
        )
    output.table(table)


@verb("revoke", examples="valkyrie admin key revoke 3f2a9c01d7e4")
@click.argument("key_id", metavar="ID")
def revoke_key(output: Output, *, key_id: str) -> None:
    """Refuse a key from now on.

    A tracker that runs notices within seconds. Cannot be undone: make another key instead. Works on the
    tracker's database (VALKYRIE_DATABASE_URL, or the data folder of this machine).
    """
    with _store() as store, store.writing() as connection:
        revoked = tenants.revoke_key(connection, key_id, time.time())
        owner = next(key.org_id for key in tenants.list_keys(connection) if key.id == key_id)
        _record(connection, owner, "admin_revoke_key", key_id)
    output.emit("api_key_revoked", id=key_id, revoked=revoked)
    output.line(f"Revoked {key_id}." if revoked else f"{key_id} was revoked before.")


@verb(
    "audit",
    examples="valkyrie admin audit\n"
    "valkyrie admin audit --person ada@example.com --days 7\n"
    "valkyrie admin audit --about 3f2a9c01 --json",
)
@click.option("--org", metavar="NAME", help="Only of this organisation.")
@click.option("--person", metavar="EMAIL", help="Only what this person did.")
@click.option("--about", metavar="TEXT", help="Only about the run, job, agent, secret or key that begins so.")
@click.option("--days", type=WholeNumber(1, 36_500), metavar="N", help="Only the last N days.")
@click.option(
    "--limit", type=WholeNumber(1, 1_000_000), default=100, show_default=True, help="At most so many."
)
def audit(
    output: Output,
    *,
    org: str | None,
    person: str | None,
    about: str | None,
    days: int | None,
    limit: int,
) -> None:
    """Show who did what.

    Everything that changes something on a tracker, newest first: who asked for it, with which key, and
    whether it was done. What was typed on the tracker's machine has no key. What is only looked at is not
    kept. Works on the tracker's database (VALKYRIE_DATABASE_URL, or the data folder of this machine); admins
    of an organisation see their own over HTTP, as `GET /v1/audit`.
    """
    since = time.time() - days * DAY_S if days else None
    with _store() as store, store.reading() as connection:
        owner = tenants.org_by_name(connection, org).id if org else None
        found = tenants.list_actions(
            connection, org_id=owner, person=person, subject=about, since=since, limit=limit
        )
    output.emit("audit", actions=[asdict(one) for one in found])
    if not found:
        output.note("Nothing was done that these options ask for.")
        return
    names = ("When", "Who", "Key", "Organisation", "What", "About", "Outcome")
    table = Table([Column(name, shrink=name in ("Who", "About")) for name in names])
    for one in found:
        who, key, about = (safe(value) if value else NONE for value in (one.person, one.key_id, one.subject))
        outcome = one.outcome or "interrupted"
        table.rows.append([moment_short(one.at), who, key, safe(one.org), one.name, about, outcome])
    output.table(table)


@verb("secret-key", examples="export VALKYRIE_SECRET_KEY=$(valkyrie admin secret-key)")
def secret_key(output: Output) -> None:
    """Print a fresh VALKYRIE_SECRET_KEY.

    A tracker encrypts the secrets it keeps with it, and its executors open them with it: all of them need
    the same one. It is kept nowhere. To replace a key, put the new one before the old with a comma.
    """
    made = new_key()
    output.emit("secret_key", variable=VARIABLE, key=made)
    output.line(made)
    if output.terminal:
        output.note(
            f"Keep it safe: what is encrypted with it cannot be read without it. Set it as {VARIABLE}."
        )


def _record(connection: Connection, org_id: str, name: str, subject: str) -> None:
    """Write down who typed a command that changes the tracker, in the change's own transaction."""
    try:
        person = _who()
    except click.UsageError:
        person = None
    tenants.record_action(connection, Identity(org_id, person=person), name, subject, "done")


def _who() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        raise click.UsageError("Say whose key it is: --person EMAIL") from None


def _word(text: str) -> str:
    return shlex.quote(safe(text))


# `db upgrade`, `current`, `check`, `compact`.


def _address() -> Path | str:
    """The database of this machine's settings: a URL of the environment, or the data folder's file."""
    return database_url() or DataFolder(data_folder()).database


@verb("upgrade", examples="valkyrie db upgrade --dry-run\nvalkyrie db upgrade")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
def upgrade(output: Output, *, dry_run: bool) -> None:
    """Bring the database to this program's schema.

    On `VALKYRIE_DATABASE_URL`, or the data folder's file. A file is copied aside first. On PostgreSQL it is
    refused while executors are at work: drain them first (SIGTERM). What is there already is left alone.
    """
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
    done = upkeep.compact(_address())
    output.emit("db_compact", place=done.place, given_back=done.given_back, reclaimable=done.after)
    output.line(f"{safe(done.place)} is compact: {size(done.given_back)} given back.")
