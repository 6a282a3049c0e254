"""A database that goes away for a while: nothing that was written is lost, or counted twice."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, text, update

from tests.postgres import TEMPLATE, Postgres
from tests.stored_runs import add_executor, add_run, assert_counters_true, ended, tick
from valkyrie.domain import TrialState
from valkyrie.errors import LeaseLostError, StoreError
from valkyrie.store import Store, executors, leases, runs, sqlite
from valkyrie.store import journal as writers
from valkyrie.store.journal import Advance, Save
from valkyrie.store.schema import executor


@pytest.fixture(scope="module")
def own_postgres() -> Iterator[Postgres]:
    """A server that may be stopped: nobody else's tests are on it."""
    server = Postgres()
    yield server
    server.close()


@pytest.fixture
def store(own_postgres: Postgres) -> Iterator[Store]:
    url = own_postgres.create(template=TEMPLATE)
    opened = Store(url)
    yield opened
    opened.close()
    own_postgres.drop(url)


def outage(server: Postgres, how: signal.Signals, seconds: float) -> None:
    server.stop(how)
    time.sleep(seconds)
    server.start()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT], ids=["restart", "crash"])
async def test_a_writer_outlives_a_restart(store: Store, own_postgres: Postgres, how: signal.Signals) -> None:
    run_id = add_run(store, tasks=200, concurrency=200)
    writer = store.writer()
    leased = tick(store, run_id).leased

    async def work(one: leases.Leased) -> None:
        await writer.record(Advance(one, TrialState.BUILDING, TrialState.IN_PROGRESS))
        await writer.record(Save(one, {"n": one.trial_id}))
        await writer.record(Advance(one, TrialState.IN_PROGRESS, TrialState.EVALUATING))
        await writer.record(Advance(one, TrialState.EVALUATING, TrialState.BUILDING))
        await writer.record(ended(one, score=1.0, passed=True, cost=0.5))

    async with asyncio.TaskGroup() as group:
        for one in leased:
            group.create_task(work(one))
        await asyncio.sleep(0.02)
        await asyncio.to_thread(outage, own_postgres, how, 0.3)
    await writer.close()
    assert_counters_true(store)
    with store.reading() as connection:
        row = runs.get(connection, run_id)
    assert (row.n_finished, row.n_passed, row.n_costed) == (200, 200, 200)


class LostAnswer:
    """Cuts the connection just after a commit has reached the server: nobody hears that it was done."""

    def __init__(self, store: Store) -> None:
        self.engine = store._database.writer
        self.armed = False
        self.cut = 0
        event.listen(self.engine, "commit", self._commit)

    def _commit(self, connection: Any) -> None:
        if self.armed:
            self.armed = False
            self.cut += 1
            driver = connection.connection.driver_connection
            driver.commit()
            driver.pgconn.finish()


async def test_what_was_committed_unheard_is_not_written_twice(store: Store) -> None:
    run_id = add_run(store, tasks=3, concurrency=3)
    one, two, three = tick(store, run_id).leased
    writer = store.writer()
    lost = LostAnswer(store)
    for changes in (
        [Advance(each, TrialState.BUILDING, TrialState.IN_PROGRESS) for each in (one, two)],
        [Save(one, {"a": 1})],
        [Advance(each, TrialState.IN_PROGRESS, TrialState.BUILDING) for each in (one, two)],
        [ended(one, score=1.0, passed=True, cost=1.0), ended(two, TrialState.PENDING, cost=1.0)],
    ):
        lost.armed = True
        await asyncio.gather(*(writer.record(change) for change in changes))
    assert lost.cut == 4
    # Meanwhile someone else may even have taken it up again.
    (again,) = tick(store, run_id, executor="other").leased
    assert (again.trial_id, again.number) == (two.trial_id, 2)
    lost.armed = True
    with pytest.raises(LeaseLostError):
        await writer.record(ended(two, score=0.0))
    await writer.close()
    assert_counters_true(store)
    with store.reading() as connection:
        row = runs.get(connection, run_id)
        assert (row.n_finished, row.n_costed, row.cost_sum) == (1, 2, 2.0)
        assert leases.state_of(connection, three) is TrialState.BUILDING


async def test_a_lease_whose_answer_was_lost_is_given_back(store: Store) -> None:
    run_id = add_run(store, tasks=3, concurrency=3)
    writer = store.writer()
    lost = LostAnswer(store)
    lost.armed = True
    now = time.time()
    look = leases.Tick("me", now, leases.Room(1e9, 1e9, idle=False), {}, {run_id})
    assert (await writer.call(lambda connection: leases.lease(connection, look))).leased == []
    known: set[int] = set()
    given = await writer.call(lambda connection: executors.give_back_unknown(connection, "me", known, now))
    assert len(given) == 3
    found = await writer.call(lambda connection: leases.lease(connection, look))
    assert [one.number for one in found.leased] == [2, 2, 2]
    await writer.close()
    assert_counters_true(store)


async def test_a_server_that_stays_away_ends_the_writer(store: Store, own_postgres: Postgres) -> None:
    writer = store.writer(patience=0.3)
    own_postgres.stop()
    try:
        with pytest.raises(StoreError, match="does not answer") as caught:
            await writer.call(lambda connection: connection.execute(text("SELECT 1")).scalar())
        assert caught.value.cause == "store_away"
        assert writer.broken
        with pytest.raises(StoreError, match="does not answer"):
            with store.reading(patience=0.1):
                pass
    finally:
        own_postgres.start()
    await writer.close()


def test_readers_and_writers_wait_for_a_server_that_restarts(store: Store, own_postgres: Postgres) -> None:
    add_run(store)
    own_postgres.stop()
    starting = threading.Timer(0.3, own_postgres.start)
    starting.start()
    with store.reading(patience=60) as connection:
        assert connection.execute(text("SELECT count(*) FROM trial")).scalar() == 10
    starting.join()
    own_postgres.stop()
    own_postgres.start()  # the pool has connections that are dead by now
    add_run(store)


def test_nobody_is_dead_just_because_the_database_was_away(store: Store, own_postgres: Postgres) -> None:
    run_ids = [add_run(store) for _ in range(2)]
    add_executor(store, "waiting")
    add_executor(store, "long dead")
    tick(store, run_ids[0], executor="waiting")
    tick(store, run_ids[1], executor="long dead")
    now = time.time()
    last_heard = {"waiting": now - 60.0, "long dead": now - 3600.0}  # leases of half a minute, both run out
    with store.writing() as connection:
        for name, at in last_heard.items():
            values = {"heartbeat_at": at, "expires_at": at + 30.0}
            connection.execute(update(executor).where(executor.c.id == name).values(**values))
    own_postgres.stop()
    own_postgres.start()
    with store.writing() as connection:
        assert executors.recover(connection, "me", home="mine") == 4
        assert len(executors.still_ours(connection, "waiting")) == 4


def test_whoever_listens_goes_on_after_a_restart(store: Store, own_postgres: Postgres) -> None:
    heard = threading.Semaphore(0)
    over = threading.Event()

    def listen() -> None:
        for _ in store.changes(interval=0.01, at_least_every=60.0):
            if over.is_set():
                return
            heard.release()

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    assert heard.acquire(timeout=60), "nothing at the beginning"
    add_run(store)
    assert heard.acquire(timeout=60), "a change was not heard"
    own_postgres.stop(signal.SIGQUIT)
    own_postgres.start()
    assert heard.acquire(timeout=60), "what happened meanwhile is nobody's to know"
    while heard.acquire(blocking=False):
        pass
    over.set()
    add_run(store)
    listener.join(60)
    assert not listener.is_alive()


async def test_a_locked_file_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_S", 0.05)
    monkeypatch.setattr(writers, "SAID_AFTER_S", 0.1)
    store = Store(tmp_path / "v.db")
    run_id = add_run(store, tasks=1)
    (leased,) = tick(store, run_id).leased
    writer = store.writer()
    other = sqlite3.connect(tmp_path / "v.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    writing = asyncio.create_task(writer.record(ended(leased, score=1.0)))
    said = ""
    while "database is locked); trying again" not in said:
        assert not writing.done()
        await asyncio.sleep(0.05)
        said += capsys.readouterr().err
    other.execute("ROLLBACK")
    await writing
    other.close()
    await writer.close()
    store.close()
    assert "can be written again after" in capsys.readouterr().err
