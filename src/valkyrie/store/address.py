"""Where a database is: a SQLite file, or a PostgreSQL server's."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from valkyrie.errors import UsageError

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
