"""A database, opened: made new, migrated, or refused with the way out. Never half-opened."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TypeVar

from sqlalchemy import Connection, Engine, insert
from sqlalchemy.exc import SQLAlchemyError

from sandboxes.retry import Backoff, Retries
from valkyrie.errors import StoreError
from valkyrie.nouns import DEFAULT_ORG
from valkyrie.store import schema, troubles
from valkyrie.store.address import Address

T = TypeVar("T")

PATIENCE_S = 10.0
"""How long whoever wants to read or write waits for a database that restarts."""
LONGEST_OUTAGE_S = 300.0
"""How long an executor waits for a database before it gives up."""
BACKOFF = Backoff(first_s=0.05, longest_s=2.0)


class Database(ABC):
    """One database, of either kind."""

    own_transactions: bool
    """Writers work side by side, each call in a transaction of its own; else one at a time has the whole."""

    def __init__(self, address: Address, reader: Engine, writer: Engine) -> None:
        self.address = address
        self.reader = reader
        self.writer = writer

    def open(self) -> None:
        """See that the schema is exactly this program's: make it, migrate it, or refuse it."""
        try:
            with self.explained():
                if self.revision() != schema.REVISION:
                    self.bring_up(automatic=True)
        except BaseException:
            self.close()
            raise

    def check_there(self) -> None:  # noqa: B027 - a server sees to its own files
        """Raise StoreError when the file that was opened is no longer the database's."""

    @abstractmethod
    def revision(self) -> str | None:
        """The schema the database has; None when it has none."""

    @abstractmethod
    def bring_up(self, *, automatic: bool) -> list[str]:
        """Make or migrate the schema, one process at a time; what was done, in words."""

    @abstractmethod
    def changes(self, interval: float, at_least_every: float) -> Iterator[None]:
        """See `Store.changes`."""

    @abstractmethod
    def reclaimable(self) -> int:
        """Bytes of its files that hold nothing and can be given back to the disk; 0 where nobody can tell."""

    @abstractmethod
    def give_back(self) -> None:
        """Give such bytes back, as far as that keeps nobody waiting; what cannot be now is left."""

    @abstractmethod
    def compact(self) -> None:
        """Give all of them back; others may have to wait meanwhile."""

    @contextmanager
    def reading(self, patience: float = PATIENCE_S) -> Iterator[Connection]:
        """One consistent look."""
        self.check_there()
        with self.explained(), self._connected(self.reader, patience) as connection, connection.begin():
            yield connection

    @contextmanager
    def writing(self, patience: float = PATIENCE_S) -> Iterator[Connection]:
        """One write transaction."""
        self.check_there()
        with self.explained(), self._connected(self.writer, patience) as connection, connection.begin():
            yield connection

    def write(self, work: Callable[[Connection], T]) -> T:
        """What `work` gives, in a write transaction that is repeated when another one was in its way."""
        deadline = time.monotonic() + PATIENCE_S
        self.check_there()
        with self.explained():
            while True:
                try:
                    with self._connected(self.writer, PATIENCE_S) as connection, connection.begin():
                        return work(connection)
                except SQLAlchemyError as error:
                    if not troubles.clashed(error) or time.monotonic() > deadline:
                        raise

    def _connected(self, engine: Engine, patience: float) -> AbstractContextManager[Connection]:
        """A connection; a database that is just restarting is waited for."""
        retries = Retries(BACKOFF)
        while True:
            try:
                return engine.connect()
            except SQLAlchemyError as error:
                if not troubles.passing(error):
                    raise
                retries.block(error, within_s=patience)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Errors of the database as a person can read them."""
        try:
            yield
        except (SQLAlchemyError, OverflowError) as error:
            raise troubles.explain(error, self.address) from error

    def close(self) -> None:
        """Let go of every connection."""
        for engine in {self.reader, self.writer}:
            engine.dispose()


def at(address: Address) -> Database:
    """The database of an address, not opened yet."""
    if address.kind == "sqlite":
        from valkyrie.store.sqlite import SqliteDatabase

        return SqliteDatabase(address)
    from valkyrie.store.postgres import PostgresDatabase

    return PostgresDatabase(address)


def create(connection: Connection) -> None:
    """The whole schema, in a database that has nothing."""
    schema.metadata.create_all(connection)
    connection.execute(insert(schema.alembic_version).values(version_num=schema.REVISION))
    connection.execute(
        insert(schema.org).values(id=DEFAULT_ORG, name=DEFAULT_ORG, created_at=time.time(), settings={})
    )


def check_known(found: str, place: str) -> None:
    """Refuse a schema this program has never heard of."""
    from valkyrie.store import migrations

    if found not in migrations.known_revisions():
        raise StoreError(
            f"{place} was written by a newer Valkyrie (schema {found}; this program knows up to "
            f"{schema.REVISION}). Upgrade Valkyrie, or point it at another database."
        )
