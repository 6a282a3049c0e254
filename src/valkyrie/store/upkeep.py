"""Looking after a database: where its schema stands, bringing it up, and whether the books are right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection

from valkyrie.errors import UserError
from valkyrie.store import audit, executors, migrations, schema
from valkyrie.store.address import parse
from valkyrie.store.database import Database, at, check_known

MOST_TOLD = 20
"""Of the same kind of problem."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a database is, and where its schema stands."""

    kind: str
    place: str
    revision: str | None
    """None when nothing is there yet."""
    needed: str = schema.REVISION

    @property
    def current(self) -> bool:
        return self.revision == self.needed

    @property
    def newer(self) -> bool:
        """A later program wrote it: this one cannot upgrade it."""
        return self.revision is not None and self.revision > self.needed


def standing(address: Path | str) -> Standing:
    """How it is, without changing it."""
    with _opened(address) as database:
        return _standing(database)


def steps(address: Path | str) -> list[str]:
    """What `upgrade` would do."""
    found = standing(address)
    if found.current:
        return []
    if found.revision is None:
        return [f"make schema {found.needed} in {found.place}"]
    check_known(found.revision, found.place)
    copy = [f"copy {found.place} to {found.place}.{found.revision}.….bak"] if found.kind == "sqlite" else []
    ahead = migrations.steps(found.revision)
    return copy + [f"migrate to schema {name}: {what.rstrip('.')}" for name, what in ahead]


def upgrade(address: Path | str) -> list[str]:
    """Make or migrate the schema; what was done."""
    with _opened(address) as database:
        return database.bring_up(automatic=False)


def problems(address: Path | str) -> list[str]:
    """What is wrong with a database; nothing, if all is well."""
    with _opened(address) as database:
        found = _standing(database)
        if found.revision is None:
            return [f"{found.place} has no schema yet; `valkyrie db upgrade` makes it"]
        check_known(found.revision, found.place)
        if not found.current:
            return [
                f"the schema is {found.revision}, this program needs {found.needed}: `valkyrie db upgrade`"
            ]
        with database.reading() as connection:
            told = [f"the schema differs: {one}" for one in migrations.differences(connection)]
            return told + [line for look in audit.LOOKS for line in _some(look, connection)]


@dataclass(frozen=True, slots=True)
class Compacted:
    """What compacting a database gave back."""

    place: str
    before: int
    """Bytes that could be given back."""
    after: int

    @property
    def given_back(self) -> int:
        return max(0, self.before - self.after)


def compact(address: Path | str) -> Compacted:
    """Give the disk back what deleted runs left in the database; a file only while no executor is at work."""
    with _opened(address) as database:
        found = _standing(database)
        if not found.current:
            raise UserError(
                f"{found.place} has schema {found.revision or 'none'}, this program needs {found.needed}: "
                "`valkyrie db upgrade` first."
            )
        if found.kind == "sqlite":
            with database.reading() as connection:
                living = executors.living(connection)
            if living:
                raise UserError(
                    f"An executor is at work on {found.place} (pid {living[0].pid}), and would have to "
                    "wait for minutes. `valkyrie db compact` again when its runs have ended."
                )
        before = database.reclaimable()
        database.compact()
        return Compacted(found.place, before, database.reclaimable())


def _some(look: Callable[[Connection], Iterator[str]], connection: Connection) -> list[str]:
    found = list(look(connection))
    more = len(found) - MOST_TOLD
    return [*found[:MOST_TOLD], *([f"… and {more} more of these"] if more > 0 else [])]


def _standing(database: Database) -> Standing:
    return Standing(database.address.kind, database.address.place, database.revision())


@contextmanager
def _opened(address: Path | str) -> Iterator[Database]:
    """The database as it is, let go of at the end."""
    database = at(parse(address))
    try:
        with database.explained():
            yield database
    finally:
        database.close()
