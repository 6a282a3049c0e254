"""Open a database by its address, or refuse it with the way out; explain its errors."""

from __future__ import annotations

import json
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from sqlalchemy import URL, Connection, Engine, insert, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DatabaseError,
    DataError,
    DBAPIError,
    IntegrityError,
    InterfaceError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    SQLAlchemyError,
    TimeoutError,
)

from sandboxes.registry import add_extra
from sandboxes.retry import Backoff, Retries
from valkyrie.domain import DEFAULT_ORG
from valkyrie.errors import StoreError, UsageError, ValkyrieError
from valkyrie.store import REVISION, schema

if TYPE_CHECKING:
    from valkyrie.store.journal import Writer

_encode = json.JSONEncoder(allow_nan=False).encode


def dumps(value: Any) -> str:
    """JSON that any reader takes: what is no finite number becomes null, as JavaScript writes it."""
    try:
        return _encode(value)
    except ValueError:
        return _encode(_finite(value))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return value


# Where a database is: a SQLite file, or a PostgreSQL server's.

Kind = Literal["sqlite", "postgresql"]
_POSTGRES = ("postgresql", "postgres", "postgresql+psycopg")


@dataclass(frozen=True, slots=True)
class Address:
    """One database's address; what it shows of itself has no password in it."""

    kind: Kind
    url: URL = field(repr=False)
    place: str
    """How people are told of it."""

    @property
    def path(self) -> Path:
        """The file of a SQLite database."""
        return Path(self.url.database or "")


def parse(address: Path | str) -> Address:
    """A file, or `sqlite:///FILE`, or `postgresql://USER@HOST/DATABASE`."""
    if isinstance(address, Path):
        return _sqlite(address)
    try:
        url = make_url(address)
    except (ArgumentError, ValueError):
        # Without the address in the message, or behind it: there may be a password in it.
        raise UsageError(
            "The database's address is not a URL. VALKYRIE_DATABASE_URL takes "
            "sqlite:///FILE or postgresql://USER:PASSWORD@HOST/DATABASE."
        ) from None
    if url.drivername == "sqlite":
        if not url.database or url.database == ":memory:":
            raise UsageError("The database's address names no file: sqlite:///FILE, or sqlite:////ROOT/FILE.")
        return _sqlite(Path(url.database))
    if url.drivername in _POSTGRES:
        return _postgres(url)
    raise UsageError(
        f"The store cannot be on {url.drivername!r}. VALKYRIE_DATABASE_URL takes sqlite:///FILE or "
        "postgresql://USER:PASSWORD@HOST/DATABASE."
    )


def _sqlite(path: Path) -> Address:
    path = path.absolute()
    return Address("sqlite", URL.create("sqlite", database=str(path)), str(path))


def _postgres(url: URL) -> Address:
    if not url.database and "dbname" not in url.query:
        raise UsageError("The database's address names no database: postgresql://USER@HOST/DATABASE.")
    host = url.host or url.query.get("host") or "localhost"
    where = URL.create("postgresql", url.username, host=str(host), port=url.port, database=url.database)
    return Address("postgresql", url.set(drivername="postgresql+psycopg"), where.render_as_string())


# What a database or disk complains of: in words a person can act on, and whether it is worth waiting for.

AWAY = "store_away"
"""The cause of a StoreError that may be gone in a moment."""

_OF_A_CALLER = (IntegrityError, DataError, ProgrammingError, NotSupportedError)
_CLASHED = ("40001", "40P01")
"""Serialisation failure, deadlock: nothing was written, and nothing is wrong."""
_PASSING = ("08", "53300", "55P03", "57014", "57P")
"""Connections that break or are too many, locks and statements that take too long, a server that restarts."""
_DISK_FULL = ("53100",)
_TOO_LARGE = "54"
"""What one row or statement may not be."""


def of_the_store(error: BaseException) -> bool:
    """Return whether database or disk failed; anything else is the trouble of one caller and what it
    wrote."""
    if isinstance(error, DBAPIError) and not error.connection_invalidated:
        too_large = (_sqlstate(error) or "").startswith(_TOO_LARGE)
        if too_large or isinstance(error, _OF_A_CALLER):
            return False
    return isinstance(error, DatabaseError | InterfaceError | TimeoutError | OSError)


def clashed(error: BaseException) -> bool:
    """Two transactions were in each other's way, and this one gave way."""
    return _sqlstate(error) in _CLASHED


def passing(error: BaseException) -> bool:
    """Return whether the same may well succeed in a while: another program holds the lock, the server
    restarts."""
    if isinstance(error, TimeoutError) or clashed(error):
        return True
    if not isinstance(error, DBAPIError):
        return False
    if error.connection_invalidated:
        return True
    if not _is_postgres(error):
        return isinstance(error, OperationalError) and "locked" in str(error.orig).lower()
    state = _sqlstate(error)
    if state is None:
        return isinstance(error, OperationalError) and not _is_refusal(error)
    return state.startswith(_PASSING)


def explain(error: BaseException, address: Address) -> ValkyrieError:
    """A driver's or disk's complaint as one a person can act on."""
    place, words = address.place, str(error).lower()
    if isinstance(error, DataError | OverflowError):
        return UsageError(f"A value is more than the store can keep: {first_line(error)}.")
    if "disk is full" in words or "no space left" in words or _sqlstate(error) in _DISK_FULL:
        return StoreError(
            f"The disk that holds {place} is full. Free some space, then try again: "
            "`valk disk` shows where the bytes are.",
            cause="disk_full",
        )
    if address.kind == "postgresql":
        return _explain_postgres(error, place)
    if "readonly" in words or "permission denied" in words or "unable to open" in words:
        return StoreError(f"Cannot write {place}: {first_line(error)}. Check its folder's permissions.")
    if "malformed" in words or "not a database" in words:
        return StoreError(
            f"{place} is damaged: {first_line(error)}. Move it away to begin anew; "
            "`sqlite3 FILE .recover` may save what is in it."
        )
    if isinstance(error, OperationalError) and "locked" in words:
        return StoreError(f"{place} stays locked by another program.", cause=AWAY)
    return StoreError(f"The database {place} failed: {first_line(error)}")


def _explain_postgres(error: BaseException, place: str) -> StoreError:
    if isinstance(error, TimeoutError):
        return StoreError(f"Too many want to speak to {place} at once; try again.", cause=AWAY)
    if clashed(error):
        return StoreError(f"Another change of {place} came first; try again.", cause=AWAY)
    if isinstance(error, OperationalError) and _is_refusal(error):
        return StoreError(f"{place} does not let us in: {first_line(error)}. Check VALKYRIE_DATABASE_URL.")
    if passing(error):
        return StoreError(
            f"{place} does not answer: {first_line(error)}. "
            "Check that PostgreSQL runs there, and VALKYRIE_DATABASE_URL.",
            cause=AWAY,
        )
    return StoreError(f"The database {place} failed: {first_line(error)}")


def first_line(error: BaseException) -> str:
    """Return what the driver said, without the statement it said it of."""
    lines = str(getattr(error, "orig", None) or error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def _sqlstate(error: BaseException) -> str | None:
    return getattr(getattr(error, "orig", None), "sqlstate", None)


def _is_postgres(error: DBAPIError) -> bool:
    return type(error.orig).__module__.startswith("psycopg")


def _is_refusal(error: OperationalError) -> bool:
    """A server that answers, and will answer the same again: wrong password, no such database.

    PostgreSQL's client library gives no code for what went wrong while it connected.
    """
    words = str(error.orig)
    return any(
        sign in words
        for sign in (
            "authentication failed",
            "no password supplied",
            "no pg_hba.conf entry",
            "does not exist",
            "permission denied",
        )
    )


# A database, opened: made new, migrated, or refused with the way out. Never half-opened.

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
                if self.revision() != REVISION:
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
        """Return bytes of its files that hold nothing and can be given back to the disk; 0 where nobody can
        tell."""

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
        """Return what `work` gives, in a write transaction that is repeated when another one was in its
        way."""
        deadline = time.monotonic() + PATIENCE_S
        self.check_there()
        with self.explained():
            while True:
                try:
                    with self._connected(self.writer, PATIENCE_S) as connection, connection.begin():
                        return work(connection)
                except SQLAlchemyError as error:
                    if not clashed(error) or time.monotonic() > deadline:
                        raise

    def _connected(self, engine: Engine, patience: float) -> AbstractContextManager[Connection]:
        """A connection; a database that is just restarting is waited for."""
        retries = Retries(BACKOFF)
        while True:
            try:
                return engine.connect()
            except SQLAlchemyError as error:
                if not passing(error):
                    raise
                retries.block(error, within_s=patience)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Errors of the database as a person can read them."""
        try:
            yield
        except (SQLAlchemyError, OverflowError) as error:
            raise explain(error, self.address) from error

    def close(self) -> None:
        """Let go of every connection."""
        for engine in {self.reader, self.writer}:
            engine.dispose()


def at(address: Address) -> Database:
    """The database of an address, not opened yet."""
    if address.kind == "sqlite":
        from valkyrie.store.sqlite import SqliteDatabase

        return SqliteDatabase(address)
    try:
        from valkyrie.store.postgres import PostgresDatabase
    except ModuleNotFoundError as error:
        raise UsageError(
            f"{address.place} cannot be reached: the driver is missing. `{add_extra('postgres')}` brings it."
        ) from error
    return PostgresDatabase(address)


def create(connection: Connection) -> None:
    """The whole schema, in a database that has nothing."""
    schema.metadata.create_all(connection)
    connection.execute(insert(schema.alembic_version).values(version_num=REVISION))
    connection.execute(
        insert(schema.org).values(id=DEFAULT_ORG, name=DEFAULT_ORG, created_at=time.time(), settings={})
    )


class Store:
    """One database, opened: looks, transactions, and (in an executor) the grouped writer."""

    def __init__(self, address: Path | str) -> None:
        """`address` is a SQLite file, or a URL: `sqlite:///FILE`, `postgresql://USER@HOST/DATABASE`."""
        self._database = at(parse(address))
        self._database.open()

    def __repr__(self) -> str:
        return f"Store({self.place!r})"

    @property
    def kind(self) -> Kind:
        return self._database.address.kind

    @property
    def place(self) -> str:
        """Where it is, without a password."""
        return self._database.address.place

    def reading(self, patience: float | None = None) -> AbstractContextManager[Connection]:
        """One consistent look. A database that restarts is waited for, for `patience` seconds."""
        return self._database.reading() if patience is None else self._database.reading(patience)

    def writing(self) -> AbstractContextManager[Connection]:
        return self._database.writing()

    def write(self, work: Callable[[Connection], T]) -> T:
        """Return what `work` gives in a write transaction; repeated when another one was in its way, so it
        may change nothing but the database."""
        return self._database.write(work)

    def now(self, connection: Connection) -> float:
        """The time by the store's clock, which executors on several hosts share."""
        return schema.now(connection)

    def changes(self, interval: float = 0.2, at_least_every: float = 5.0) -> Iterator[None]:
        """Yield whenever another connection has written (all within `interval` together), once at the
        beginning, and now and then: whoever should have written may have died.

        Whoever iterates may stop at any time.
        """
        return self._database.changes(interval, at_least_every)

    def writer(self, patience: float | None = None) -> Writer:
        """The grouped writer, on the running loop; `patience` is how long it waits for a database that is
        away."""
        from valkyrie.store.journal import Writer

        return Writer(self._database) if patience is None else Writer(self._database, patience)

    def reclaimable(self) -> int:
        """Return bytes of the database that hold nothing any more and can be given back to the disk."""
        return self._database.reclaimable()

    def give_back(self) -> None:
        """Give them back, as far as that keeps nobody waiting."""
        self._database.give_back()

    def close(self) -> None:
        self._database.close()
