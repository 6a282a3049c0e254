"""The store in a file."""

from __future__ import annotations

import fcntl
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, select, text
from sqlalchemy.pool import NullPool, Pool, QueuePool

from valkyrie.errors import StoreError
from valkyrie.store import schema
from valkyrie.store.address import Address
from valkyrie.store.database import Database, check_known, create
from valkyrie.store.documents import dumps
from valkyrie.store.troubles import explain

BUSY_TIMEOUT_S = 30.0
_KEPT_READERS = 8
"""Opening the file and reading its schema takes longer than most looks; more readers open their own."""


class SqliteDatabase(Database):
    """One file, written by one at a time."""

    own_transactions = False

    def __init__(self, address: Address) -> None:
        reader = _engine(address, poolclass=QueuePool, pool_size=_KEPT_READERS, max_overflow=-1)
        super().__init__(address, reader.execution_options(read_only=True), _engine(address))
        self._path = address.path

    def revision(self) -> str | None:
        if not self._path.exists() or not self._path.stat().st_size:
            return None
        with self.reader.connect() as connection:
            tables = set(
                connection.execute(text("SELECT name FROM sqlite_master WHERE type = 'table'")).scalars()
            )
            if not tables:
                return None
            if "alembic_version" not in tables:
                raise StoreError(
                    f"{self._path} is a database, but not one of Valkyrie's. "
                    "Move it away, or point VALKYRIE_HOME at another folder."
                )
            return connection.execute(select(schema.alembic_version.c.version_num)).scalar()

    def bring_up(self, *, automatic: bool) -> list[str]:  # noqa: ARG002 - its executors are drained by others
        try:
            with _alone(self._path):
                found = self.revision()
                if found is None:
                    return self._create()
                return [] if found == schema.REVISION else self._migrate(found)
        except OSError as error:
            raise explain(error, self.address) from error

    def changes(self, interval: float, at_least_every: float) -> Iterator[None]:
        """SQLite tells other processes of a change only when asked; this is the one place that asks."""
        with self.reader.connect() as connection:
            seen: int | None = None
            told_at = 0.0
            while True:
                with connection.begin():
                    found = connection.exec_driver_sql("PRAGMA data_version").scalar()
                if found != seen or time.monotonic() - told_at > at_least_every:
                    seen, told_at = found, time.monotonic()
                    yield
                else:
                    time.sleep(interval)

    def _create(self) -> list[str]:
        _outside_transactions(self.writer, "PRAGMA journal_mode=WAL")  # kept in the file for later openers
        with self.writer.begin() as connection:
            create(connection)
        self._path.chmod(0o600)
        return [f"made {self._path} with schema {schema.REVISION}"]

    def _migrate(self, found: str) -> list[str]:
        from valkyrie.store import migrations

        check_known(found, str(self._path))
        copy = self._path.with_name(f"{self._path.name}.{found}.{int(time.time())}.bak")
        _copy(self._path, copy)
        with self.writer.begin() as connection:
            migrations.upgrade(connection)
        return [f"copied {self._path} to {copy}", f"migrated schema {found} to {schema.REVISION}"]


def _engine(address: Address, poolclass: type[Pool] = NullPool, **pool: int) -> Engine:
    engine = create_engine(
        address.url,
        poolclass=poolclass,
        hide_parameters=True,  # what is written may be an agent's; it has no place in our error messages
        json_serializer=dumps,
        connect_args={"timeout": BUSY_TIMEOUT_S, "check_same_thread": False, "isolation_level": None},
        **pool,
    )

    @event.listens_for(engine, "connect")
    def configure(connection: Any, _record: object) -> None:
        cursor = connection.cursor()
        cursor.execute("PRAGMA synchronous=FULL")
        cursor.execute("PRAGMA foreign_keys=ON")
        cursor.close()

    # The driver is in autocommit mode, so that one BEGIN, ours, takes the write lock at once: a deferred
    # transaction that upgrades later could fail with "locked" however long the busy timeout is.
    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        if connection.get_execution_options().get("read_only"):
            connection.exec_driver_sql("BEGIN")
        else:
            connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """One process at a time makes or migrates a database: SQLite's own lock cannot be waited for while the
    journal mode changes."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with path.with_name(f"{path.name}.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _outside_transactions(engine: Engine, statement: str) -> None:
    connection = engine.raw_connection()
    try:
        connection.cursor().execute(statement)
    finally:
        connection.close()


def _copy(path: Path, copy: Path) -> None:
    """A whole copy, also while an executor writes."""
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
    copy.chmod(0o600)
