"""One thread writes; many trials' changes share a transaction, and each caller awaits its own commit."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DatabaseError, DataError, IntegrityError, NotSupportedError, ProgrammingError

from valkyrie.errors import LeaseLostError, StoreError
from valkyrie.store import journal
from valkyrie.store.database import explain
from valkyrie.store.leases import StaleLeaseError

T = TypeVar("T")

GATHER_S = 0.002
"""How long a commit of few changes waits for more, while commits follow one another."""
BUSY_WITHIN_S = 0.01
FEW = 4


@dataclass(slots=True)
class _Call:
    future: asyncio.Future[Any]
    change: journal.Change | None = None
    work: Callable[[Connection], Any] | None = None


class Writer:
    """Owns the one connection that writes.

    When it dies, everyone who waits on it fails with its error, and so does every later call.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._queue: deque[_Call] = deque()
        self._ready = threading.Event()
        self._closing = False
        self._broken: StoreError | None = None
        self._batch: list[_Call] = []
        self._committed_at = 0.0
        self._thread = threading.Thread(target=self._main, name="store-writer", daemon=True)
        self._thread.start()

    @property
    def broken(self) -> bool:
        """Writing has failed for good."""
        return self._broken is not None

    async def record(self, change: journal.Change) -> None:
        """Commit a phase change, a saving or an ending; LeaseLostError when the trial is no longer ours."""
        await self._submit(_Call(self._loop.create_future(), change=change))

    async def call(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in a transaction, after the changes that were queued with it.

        When something else in the transaction is refused, `work` is run again: it may change nothing but
        the database.
        """
        result: T = await self._submit(_Call(self._loop.create_future(), work=work))
        return result

    async def close(self) -> None:
        """Write what is queued, then end the thread."""
        self._closing = True
        self._ready.set()
        await asyncio.to_thread(self._thread.join)

    async def _submit(self, call: _Call) -> Any:
        if self._broken:
            raise self._broken
        if self._closing:
            raise StoreError("The store is closed.", cause="store_closed")
        self._queue.append(call)
        self._ready.set()
        if self._broken:
            # It broke between the two looks: nobody may be left to answer.
            raise self._broken
        return await call.future

    def _main(self) -> None:
        try:
            with self._engine.connect() as connection:
                while True:
                    self._ready.wait()
                    self._ready.clear()
                    while self._queue:
                        self._gather()
                        self._batch = [self._queue.popleft() for _ in range(min(len(self._queue), 2000))]
                        answers = self._write(connection, self._batch)
                        self._committed_at = time.monotonic()
                        self._loop.call_soon_threadsafe(_resolve, answers)
                    if self._closing:
                        return
        except Exception as error:  # noqa: BLE001 - whatever ends this thread must reach everyone who waits
            self._fail(error)

    def _gather(self) -> None:
        """Under load, wait a moment so that a few more changes share the commit: each one costs a sync."""
        small = len(self._batch) < FEW and len(self._queue) < FEW
        if small and time.monotonic() - self._committed_at < BUSY_WITHIN_S:
            time.sleep(GATHER_S)

    def _write(self, connection: Connection, batch: list[_Call]) -> list[tuple[_Call, Any]]:
        """One transaction for all; if one of them is refused, each gets its own.

        What a caller wrote may be refused for any reason (a plugin's grade that is no JSON, a text that is
        no UTF-8); only the store's own failure ends the writer.
        """
        try:
            with connection.begin():
                return _apply(connection, batch)
        except Exception as error:
            if _is_of_the_store(error):
                raise
            if len(batch) > 1:
                return [answer for call in batch for answer in self._write(connection, [call])]
            if isinstance(error, StaleLeaseError):
                return [(batch[0], LeaseLostError("Another lease is in force for this trial."))]
            return [(batch[0], error)]

    def _fail(self, error: Exception) -> None:
        path = Path(self._engine.url.database or "?")
        self._broken = explain(error, path) if isinstance(error, DatabaseError | OSError) else None
        self._broken = self._broken or StoreError(f"Writing to {path} failed: {error!r}")
        self._broken.__cause__ = error
        waiting = [*self._batch, *self._queue]
        self._loop.call_soon_threadsafe(_resolve, [(call, self._broken) for call in waiting])


def _is_of_the_store(error: Exception) -> bool:
    """Whether database or disk failed; anything else is the trouble of one caller and what it wrote."""
    of_a_caller = (IntegrityError, DataError, ProgrammingError, NotSupportedError)
    return isinstance(error, DatabaseError | OSError) and not isinstance(error, of_a_caller)


def _apply(connection: Connection, batch: list[_Call]) -> list[tuple[_Call, Any]]:
    changes = [call.change for call in batch if call.change is not None]
    if changes:
        journal.record(connection, changes)
    return [(call, call.work(connection) if call.work else None) for call in batch]


def _resolve(answers: list[tuple[_Call, Any]]) -> None:
    for call, answer in answers:
        if call.future.done():
            continue
        if isinstance(answer, Exception):
            call.future.set_exception(answer)
        else:
            call.future.set_result(answer)
