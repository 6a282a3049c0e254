"""Opening the database: made new, migrated, or refused with the way out. Never half-opened."""

from __future__ import annotations

import fcntl
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, insert, select, text
from sqlalchemy.exc import DatabaseError, OperationalError
from sqlalchemy.pool import NullPool

from valkyrie.errors import StoreError
from valkyrie.store import schema

BUSY_TIMEOUT_S = 30.0


def open_engine(path: Path) -> Engine:
    """An engine on a SQLite file whose schema is exactly this program's."""
    engine = _sqlite_engine(path)
    try:
        if _revision(engine, path) != schema.REVISION:
            with _alone(path):
                found = _revision(engine, path)
                if found is None:
                    _create(engine, path)
                elif found != schema.REVISION:
                    _migrate(engine, path, found)
    except StoreError:
        engine.dispose()
        raise
    except (DatabaseError, OSError) as error:
        engine.dispose()
        raise explain(error, path) from error
    return engine


def _sqlite_engine(path: Path) -> Engine:
    engine = create_engine(
        f"sqlite:///{path}",
        poolclass=NullPool,
        hide_parameters=True,  # what is written may be an agent's; it has no place in our error messages
        connect_args={"timeout": BUSY_TIMEOUT_S, "check_same_thread": False, "isolation_level": None},
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


def _revision(engine: Engine, path: Path) -> str | None:
    if not path.exists() or not path.stat().st_size:
        return None
    with engine.connect().execution_options(read_only=True) as connection:
        tables = set(
            connection.execute(text("SELECT name FROM sqlite_master WHERE type = 'table'")).scalars()
        )
        if not tables:
            return None
        if "alembic_version" not in tables:
            raise StoreError(
                f"{engine.url.database} is a database, but not one of Valkyrie's. "
                "Move it away, or point VALKYRIE_HOME at another folder."
            )
        return connection.execute(select(schema.alembic_version.c.version_num)).scalar()


def _create(engine: Engine, path: Path) -> None:
    _outside_transactions(engine, "PRAGMA journal_mode=WAL")  # kept in the file for all who open it later
    with engine.begin() as connection:
        schema.metadata.create_all(connection)
        connection.execute(insert(schema.alembic_version).values(version_num=schema.REVISION))
    path.chmod(0o600)


def _outside_transactions(engine: Engine, statement: str) -> None:
    connection = engine.raw_connection()
    try:
        connection.cursor().execute(statement)
    finally:
        connection.close()


def _migrate(engine: Engine, path: Path, found: str) -> None:
    from valkyrie.store import migrations

    if found not in migrations.known_revisions():
        raise StoreError(
            f"{path} was written by a newer Valkyrie (schema {found}; this program knows up to "
            f"{schema.REVISION}). Upgrade Valkyrie, or point VALKYRIE_HOME at another folder."
        )
    copy = path.with_name(f"{path.name}.{found}.{int(time.time())}.bak")
    _copy(path, copy)
    migrations.upgrade(engine)


def _copy(path: Path, copy: Path) -> None:
    """A whole copy, also while an executor writes."""
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
    copy.chmod(0o600)


def explain(error: Exception, path: Path) -> StoreError:
    """A driver's or disk's complaint as one a person can act on."""
    words = str(error).lower()
    if "disk is full" in words or "no space left" in words:
        return StoreError(
            f"The disk that holds {path} is full. Free some space, then try again.", cause="disk_full"
        )
    if "readonly" in words or "permission denied" in words or "unable to open" in words:
        return StoreError(f"Cannot write {path}: {_first_line(error)}. Check its folder's permissions.")
    if "malformed" in words or "not a database" in words:
        return StoreError(
            f"{path} is damaged: {_first_line(error)}. Move it away to begin anew; "
            "`sqlite3 FILE .recover` may save what is in it."
        )
    if isinstance(error, OperationalError) and "locked" in words:
        return StoreError(f"{path} stayed locked for {BUSY_TIMEOUT_S:.0f} s by another program.")
    return StoreError(f"The database {path} failed: {_first_line(error)}")


def _first_line(error: Exception) -> str:
    return str(getattr(error, "orig", None) or error).splitlines()[0]


@contextmanager
def transaction(engine: Engine) -> Iterator[Connection]:
    """One write transaction, with errors explained."""
    try:
        with engine.begin() as connection:
            yield connection
    except DatabaseError as error:
        raise explain(error, Path(engine.url.database or "?")) from error


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """One consistent look."""
    try:
        with engine.connect().execution_options(read_only=True) as connection, connection.begin():
            yield connection
    except DatabaseError as error:
        raise explain(error, Path(engine.url.database or "?")) from error
