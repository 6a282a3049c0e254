"""The store in a file."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.pool import NullPool, Pool, QueuePool

from valkyrie.errors import StoreError
from valkyrie.store import REVISION
from valkyrie.store.database import Address, Database, create, dumps, explain

BUSY_TIMEOUT_S = 30.0
_GIVES_BACK = "auto_vacuum=INCREMENTAL"
_PAGES_AT_ONCE = 2000
"""Given back in one transaction: others write in between."""
_CHECKPOINT_WAIT_MS = 500
_KEPT_READERS = 8
"""Opening the file and reading its schema takes longer than most looks; more readers open their own."""


class SqliteDatabase(Database):
    """One file, written by one at a time."""

    own_transactions = False

    def __init__(self, address: Address) -> None:
        reader = _engine(address, poolclass=QueuePool, pool_size=_KEPT_READERS, max_overflow=-1)
        super().__init__(address, reader.execution_options(read_only=True), _engine(address))
        self._path = address.path
        self._pinned: int | None = None
        """The file that was opened, so that no other one gets its inode; without a lock to lose."""

    def open(self) -> None:
        super().open()
        with suppress(OSError):
            self._pinned = os.open(self._path, os.O_PATH | os.O_CLOEXEC)

    def close(self) -> None:
        super().close()
        pinned, self._pinned = self._pinned, None
        if pinned is not None:
            os.close(pinned)

    def check_there(self) -> None:
        if self._pinned is not None and not self._is_there(self._pinned):
            raise StoreError(
                f"The database {self._path} is gone, or another file is in its place, while this program "
                "used it. Nothing more is written. Put the file back as it was, then start again.",
                cause="store_gone",
            )

    def _is_there(self, pinned: int) -> bool:
        try:
            opened = os.fstat(pinned)
        except OSError:
            return True  # it is being closed by another thread
        try:
            return os.path.samestat(self._path.stat(), opened)
        except OSError:
            return False

    def revision(self) -> str | None:
        if not self._path.exists() or not self._path.stat().st_size:
            return None
        with self.reader.connect() as connection:
            listed = connection.exec_driver_sql("SELECT name FROM sqlite_master WHERE type = 'table'")
            tables = set(listed.scalars())
            if not tables:
                return None
            if "alembic_version" not in tables:
                raise StoreError(
                    f"{self._path} is a database, but not one of Valkyrie's. "
                    "Move it away, or point VALKYRIE_HOME at another folder."
                )
            found: str | None = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
            return found

    def bring_up(self, *, automatic: bool) -> list[str]:  # noqa: ARG002 - its executors are drained by others
        try:
            with _alone(self._path):
                found = self.revision()
                if found is None:
                    return self._create()
                return [] if found == REVISION else self._migrate(found)
        except OSError as error:
            raise explain(error, self.address) from error

    def changes(self, interval: float, at_least_every: float) -> Iterator[None]:
        """SQLite tells other processes of a change only when asked; this is the one place that asks."""
        with self.reader.connect() as connection:
            seen: int | None = None
            told_at = 0.0
            while True:
                self.check_there()
                with connection.begin():
                    found = connection.exec_driver_sql("PRAGMA data_version").scalar()
                if found != seen or time.monotonic() - told_at > at_least_every:
                    seen, told_at = found, time.monotonic()
                    yield
                else:
                    time.sleep(interval)

    def reclaimable(self) -> int:
        if not self._path.exists():
            return 0
        with self.explained():
            found = _outside_transactions(self.writer, "PRAGMA freelist_count", "PRAGMA page_size")
        return int(found[0]) * int(found[1])

    def give_back(self) -> None:
        """A file that an earlier version made has to be compacted once before this does anything."""
        with suppress(sqlite3.OperationalError):  # another program holds it locked
            free = _outside_transactions(self.writer, "PRAGMA freelist_count")[0]
            while free:
                step = f"PRAGMA incremental_vacuum({_PAGES_AT_ONCE})"
                _, left = _outside_transactions(self.writer, step, "PRAGMA freelist_count")
                if left >= free:
                    break
                free = left
            # The log of a large deletion is as long as what was deleted; a reader's is left to the next.
            _outside_transactions(
                self.writer, f"PRAGMA busy_timeout={_CHECKPOINT_WAIT_MS}", "PRAGMA wal_checkpoint(TRUNCATE)"
            )

    def compact(self) -> None:
        with self.explained():
            try:
                _outside_transactions(
                    self.writer, f"PRAGMA {_GIVES_BACK}", "VACUUM", "PRAGMA wal_checkpoint(TRUNCATE)"
                )
            except sqlite3.OperationalError as error:
                raise explain(error, self.address) from error

    def _create(self) -> list[str]:
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        # Both are kept in the file for later openers; the first only where nothing is in it yet.
        _outside_transactions(self.writer, f"PRAGMA {_GIVES_BACK}", "PRAGMA journal_mode=WAL")
        with self.writer.begin() as connection:
            create(connection)
        self._path.chmod(0o600)
        return [f"made {self._path} with schema {REVISION}"]

    def _migrate(self, found: str) -> list[str]:
        from valkyrie.store import migrations  # with it alembic, 100 ms, only to migrate

        migrations.check_known(found, str(self._path))
        copy = self._path.with_name(f"{self._path.name}.{found}.{int(time.time())}.bak")
        _copy(self._path, copy)
        with self.writer.begin() as connection:
            migrations.upgrade(connection)
        return [f"copied {self._path} to {copy}", f"migrated schema {found} to {REVISION}"]


def is_read_only(path: Path) -> bool:
    """Return whether the database's folder cannot be written, while the database is there to be read."""
    return path.exists() and not os.access(path.parent, os.W_OK)


def _connect(path: Path) -> sqlite3.Connection:
    """Open the file, never make it: one that vanished under a running program must not come back empty.

    Where nothing can be written beside it, it is read as it is.
    """
    mode = "rw"
    if is_read_only(path):
        wal = path.with_name(f"{path.name}-wal")
        mode = "ro" if wal.exists() and wal.stat().st_size else "ro&immutable=1"
    return sqlite3.connect(
        f"file:{quote(str(path))}?mode={mode}",
        uri=True,
        timeout=BUSY_TIMEOUT_S,
        check_same_thread=False,
        isolation_level=None,
    )


def _engine(address: Address, poolclass: type[Pool] = NullPool, **pool: int) -> Engine:
    engine = create_engine(
        URL.create("sqlite"),  # a text would be parsed, which takes longer than most looks
        creator=lambda: _connect(address.path),
        poolclass=poolclass,
        hide_parameters=True,  # what is written may be an agent's; it has no place in our error messages
        json_serializer=dumps,
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


def _outside_transactions(engine: Engine, *statements: str) -> list[Any]:
    """Return what each statement says first; all of it is fetched, for some only work while they are read."""
    connection = engine.raw_connection()
    try:
        cursor = connection.cursor()
        found = []
        for statement in statements:
            cursor.execute(statement)
            rows = cursor.fetchall()
            # Newer versions answer some statements with rows that have no column.
            found.append(rows[0][0] if rows and rows[0] else None)
        return found
    finally:
        connection.close()


def _copy(path: Path, copy: Path) -> None:
    """A whole copy, also while an executor writes."""
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
    copy.chmod(0o600)
