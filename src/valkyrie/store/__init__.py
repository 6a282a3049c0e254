"""The only truth: SQL for state, folders for what is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

if TYPE_CHECKING:
    from sqlalchemy import Connection as Connection

    from valkyrie.store.journal import Writer

T = TypeVar("T")


class Store:
    """One database, opened: looks, transactions, and (in an executor) the grouped writer."""

    def __init__(self, address: Path | str) -> None:
        """`address` is a SQLite file, or a URL: `sqlite:///FILE`, `postgresql://USER@HOST/DATABASE`."""
        from valkyrie.store.database import at, parse

        self._database = at(parse(address))
        self._database.open()

    def __repr__(self) -> str:
        return f"Store({self.place!r})"

    @property
    def kind(self) -> Literal["sqlite", "postgresql"]:
        """Which of the two databases it is on."""
        return self._database.address.kind

    @property
    def place(self) -> str:
        """Where it is, without a password."""
        return self._database.address.place

    def reading(self, patience: float | None = None) -> AbstractContextManager[Connection]:
        """One consistent look. A database that restarts is waited for, for `patience` seconds."""
        return self._database.reading() if patience is None else self._database.reading(patience)

    def writing(self) -> AbstractContextManager[Connection]:
        """One write transaction."""
        return self._database.writing()

    def write(self, work: Callable[[Connection], T]) -> T:
        """Return what `work` gives in a write transaction; repeated when another one was in its way, so it
        may change nothing but the database."""
        return self._database.write(work)

    def now(self, connection: Connection) -> float:
        """The time by the store's clock, which executors on several hosts share."""
        from valkyrie.store.schema import now

        return now(connection)

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
        """Let go of the database."""
        self._database.close()
