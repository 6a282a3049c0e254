"""The only truth: SQL for state, folders for what is kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlalchemy import Connection as Connection

    from valkyrie.store.writer import Writer


class Store:
    """One database, opened: looks, transactions, and (in an executor) the grouped writer."""

    def __init__(self, path: Path) -> None:
        from valkyrie.store.database import open_engine

        self.path = path
        self._engine = open_engine(path)

    def reading(self) -> AbstractContextManager[Connection]:
        """One consistent look."""
        from valkyrie.store.database import reading

        return reading(self._engine)

    def writing(self) -> AbstractContextManager[Connection]:
        """One write transaction."""
        from valkyrie.store.database import transaction

        return transaction(self._engine)

    def changes(self, interval: float = 0.2, at_least_every: float = 5.0) -> Iterator[None]:
        """Yield whenever another connection has written, once at the beginning, and now and then: whoever
        should have written may have died.

        SQLite tells other processes of a change only when asked; this is the one place that asks. Whoever
        iterates may stop at any time.
        """
        import time

        from valkyrie.store.leases import data_version

        with self._engine.connect().execution_options(read_only=True) as connection:
            seen: int | None = None
            told_at = 0.0
            while True:
                with connection.begin():
                    now = data_version(connection)
                if now != seen or time.monotonic() - told_at > at_least_every:
                    seen, told_at = now, time.monotonic()
                    yield
                else:
                    time.sleep(interval)

    def writer(self) -> Writer:
        """The grouped writer, on the running loop."""
        from valkyrie.store.writer import Writer

        return Writer(self._engine)

    def close(self) -> None:
        """Let go of the file."""
        self._engine.dispose()
