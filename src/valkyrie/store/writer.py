"""One thread writes; many trials' changes share a transaction, and each caller awaits its own commit."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import Connection

from sandboxes.retry import Backoff, Retries
from valkyrie.errors import LeaseLostError, StoreError
from valkyrie.store import journal, troubles
from valkyrie.store.database import LONGEST_OUTAGE_S, Database
from valkyrie.store.returning import StaleLeaseError

T = TypeVar("T")

GATHER_S = 0.002
"""How long a commit of few changes waits for more, while commits follow one another."""
BUSY_WITHIN_S = 0.01
FEW = 4
BACKOFF = Backoff(first_s=0.05, longest_s=5.0)
AT_THE_END_S = 15.0
"""How long a database is waited for when nothing but the last writes is left."""
SAID_AFTER_S = 1.0


@dataclass(slots=True)
class _Call:
    future: asyncio.Future[Any]
    change: journal.Change | None = None
    work: Callable[[Connection], Any] | None = None


_Answers = list[tuple[_Call, Any]]


class WriteOutage:
    """The waits of one write for a database that is away or locked; the log hears of long ones."""

    def __init__(self, seconds: float, place: str) -> None:
        self._seconds = seconds
        self._place = place
        self._retries = Retries(BACKOFF)
        self._said = False

    def wait(self, error: Exception, ending: threading.Event) -> bool:
        """Wait a while; return False when it has been long enough. `ending` shortens it."""
        limit = min(self._seconds, AT_THE_END_S) if ending.is_set() else self._seconds
        delay = self._retries.next_delay(within_s=limit)
        if delay is None:
            return False
        if not self._said and self._retries.lasted_s > SAID_AFTER_S:
            self._said = True
            _say(f"{self._place} cannot be written ({troubles.first_line(error)}); trying again")
        if troubles.clashed(error):
            delay = BACKOFF.delay(1)
        if ending.is_set():
            time.sleep(delay)
        else:
            ending.wait(delay)
        return True

    def end(self) -> None:
        """Say that it was written, where the log knows that it could not be."""
        if self._said:
            _say(f"{self._place} can be written again after {self._retries.lasted_s:.0f} s")


class Writer:
    """Owns the one connection that writes.

    A database that is away or locked is waited for, and what was being written is written again. When the
    writer dies, everyone who waits on it fails with its error, and so does every later call.
    """

    def __init__(self, database: Database, patience: float = LONGEST_OUTAGE_S) -> None:
        self._database = database
        self._patience = patience
        self._connection: Connection | None = None
        self._loop = asyncio.get_running_loop()
        self._queue: deque[_Call] = deque()
        self._ready = threading.Event()
        self._closing = threading.Event()
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

        It may be run again, also after it was committed (when the answer was lost with the connection): it
        may change nothing but the database, and must come to the same when it finds its own work done.
        """
        result: T = await self._submit(_Call(self._loop.create_future(), work=work))
        return result

    async def close(self) -> None:
        """Write what is queued, then end the thread."""
        self._closing.set()
        self._ready.set()
        await asyncio.to_thread(self._thread.join)

    async def _submit(self, call: _Call) -> Any:
        if self._broken:
            raise self._broken
        if self._closing.is_set():
            raise StoreError("The store is closed.", cause="store_closed")
        self._queue.append(call)
        self._ready.set()
        if self._broken:
            # It broke between the two looks: nobody may be left to answer.
            raise self._broken
        return await call.future

    def _main(self) -> None:
        try:
            while True:
                self._ready.wait()
                self._ready.clear()
                while self._queue:
                    self._gather()
                    self._batch = [self._queue.popleft() for _ in range(min(len(self._queue), 2000))]
                    for unit in self._units(self._batch):
                        answers = self._surely(unit)
                        self._committed_at = time.monotonic()
                        self._loop.call_soon_threadsafe(_resolve, answers)
                if self._closing.is_set():
                    return
        except Exception as error:  # noqa: BLE001 - whatever ends this thread must reach everyone who waits
            self._fail(error)
        finally:
            self._disconnect()

    def _gather(self) -> None:
        """Under load, wait a moment so that a few more changes share the commit: each one costs a sync."""
        small = len(self._batch) < FEW and len(self._queue) < FEW
        if small and time.monotonic() - self._committed_at < BUSY_WITHIN_S:
            time.sleep(GATHER_S)

    def _units(self, batch: list[_Call]) -> Iterator[list[_Call]]:
        """What shares a transaction. Where writers work side by side, each call locks its runs in order, and
        none may have locks already."""
        if not self._database.own_transactions:
            yield batch
            return
        if changes := [call for call in batch if call.change is not None]:
            yield changes
        yield from ([call] for call in batch if call.work is not None)

    def _surely(self, unit: list[_Call], *, again: bool = False) -> _Answers:
        """Write it, and while the database is away or locked, wait and write it again."""
        outage = WriteOutage(self._patience, self._database.address.place)
        while True:
            try:
                answers = self._write(unit, again=again)
            except Exception as error:
                self._disconnect()
                if not troubles.passing(error) or not outage.wait(error, self._closing):
                    raise
                # Unless it clashed, what it wrote may have been committed all the same.
                again = again or not troubles.clashed(error)
            else:
                outage.end()
                return answers

    def _write(self, unit: list[_Call], *, again: bool) -> _Answers:
        """One transaction for all; if one of them is refused, each gets its own.

        What a caller wrote may be refused for any reason (a plugin's grade that is no JSON, a number too
        large); only the store's own failure ends the writer.
        """
        self._database.check_there()
        connection = self._connected()
        try:
            with connection.begin():
                return _apply(connection, unit)
        except Exception as error:
            if troubles.of_the_store(error):
                raise
            if len(unit) > 1:
                return [answer for call in unit for answer in self._surely([call], again=again)]
            if isinstance(error, StaleLeaseError):
                return [(unit[0], self._late(unit[0], again=again))]
            return [(unit[0], error)]

    def _late(self, call: _Call, *, again: bool) -> LeaseLostError | None:
        """The answer to a change that another lease has overtaken; None if it had been written before."""
        if call.change is None:
            return LeaseLostError("Another lease is in force.")
        connection = self._connected()
        if again:
            with connection.begin():
                if journal.is_written(connection, call.change):
                    return None
        lost = call.change.leased
        refused = LeaseLostError(
            f"a late write of trial {lost.task_id}/{lost.k} (run {lost.run_id[:8]}, attempt {lost.number}) "
            "was refused: another lease is in force"
        )
        _say(str(refused))
        return refused

    def _connected(self) -> Connection:
        if self._connection is None:
            self._connection = self._database.writer.connect()
        return self._connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _fail(self, error: Exception) -> None:
        address = self._database.address
        explained = troubles.explain(error, address) if troubles.of_the_store(error) else error
        if not isinstance(explained, StoreError):
            explained = StoreError(f"Writing to {address.place} failed: {error!r}")
        self._broken = explained
        self._broken.__cause__ = error
        waiting = [*self._batch, *self._queue]
        self._loop.call_soon_threadsafe(_resolve, [(call, self._broken) for call in waiting])


def _apply(connection: Connection, unit: list[_Call]) -> _Answers:
    changes = [call.change for call in unit if call.change is not None]
    if changes:
        journal.record(connection, changes)
    return [(call, call.work(connection) if call.work else None) for call in unit]


def _resolve(answers: _Answers) -> None:
    for call, answer in answers:
        if call.future.done():
            continue
        if isinstance(answer, Exception):
            call.future.set_exception(answer)
        else:
            call.future.set_result(answer)


def _say(text: str) -> None:
    """Write one line to the executor's log."""
    sys.stderr.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
    sys.stderr.flush()
