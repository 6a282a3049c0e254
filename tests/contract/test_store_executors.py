"""Several executors' writers on one PostgreSQL at the same time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import psycopg
import pytest
from sqlalchemy import func, select

from tests.postgres import Postgres
from tests.stored_runs import ROOM, add_executor, add_run, assert_counters_true, ended, run_values, tick
from valkyrie.domain import TrialState
from valkyrie.errors import LeaseLostError
from valkyrie.store import Store, executors, leases, runs
from valkyrie.store.counters import lock_runs
from valkyrie.store.journal import Advance, Save, Writer
from valkyrie.store.leases import Leased, Room, Tick, TickResult
from valkyrie.store.schema import attempt, trial


@pytest.fixture
def store(postgres_url: str) -> Iterator[Store]:
    opened = Store(postgres_url)
    yield opened
    opened.close()


class Worker:
    """An executor without sandboxes: it leases, and writes how things went."""

    def __init__(self, store: Store, name: str, run_ids: list[str], begun: asyncio.Barrier) -> None:
        self.name = add_executor(store, name)
        self._runs = run_ids
        self._begun = begun
        self._writer: Writer = store.writer()
        self.taken: list[tuple[int, int]] = []

    async def work(self) -> None:
        """Until nothing is left: it looks for more while attempts are under way, as executors do."""
        async with asyncio.TaskGroup() as group:
            await self._look(group)

    async def _look(self, group: asyncio.TaskGroup) -> None:
        while True:
            tick = Tick(self.name, time.time(), Room(7.0, 1e9, idle=True), {}, self._runs)
            found = await self._writer.call(lambda connection, tick=tick: leases.lease(connection, tick))  # type: ignore[misc]
            assert isinstance(found, TickResult)
            if not self.taken:
                await self._begun.wait()  # nobody does everything before another has looked
            self.taken += [(one.trial_id, one.number) for one in found.leased]
            if set(found.ended) == set(found.open_runs):
                return
            for one in found.leased:
                group.create_task(self._attempt(one))

    async def _attempt(self, one: Leased) -> None:
        await self._writer.record(Advance(one, TrialState.BUILDING, TrialState.IN_PROGRESS))
        await self._writer.record(Advance(one, TrialState.IN_PROGRESS, TrialState.BUILDING))
        await self._writer.record(ended(one, score=1.0, passed=True))

    async def close(self) -> None:
        await self._writer.close()


async def test_no_trial_is_leased_twice(store: Store, postgres_url: str, postgres: Postgres) -> None:
    run_ids = [add_run(store, tasks=40, cpus=1.0, concurrency=5, priority=n % 3) for n in range(6)]
    begun = asyncio.Barrier(3)
    workers = [Worker(store, f"executor {n}", run_ids, begun) for n in range(3)]
    over = asyncio.Event()

    async def watch() -> None:
        while not over.is_set():
            with store.reading() as connection:
                for run_id in run_ids:
                    row = runs.get(connection, run_id)
                    assert row.n_building + row.n_in_progress + row.n_evaluating <= row.concurrency
            await asyncio.sleep(0.01)

    watching = asyncio.create_task(watch())
    async with asyncio.TaskGroup() as group:
        for worker in workers:
            group.create_task(worker.work())
    over.set()
    await watching
    for worker in workers:
        await worker.close()
    taken = [one for worker in workers for one in worker.taken]
    assert len(taken) == len(set(taken)) == 240
    assert all(worker.taken for worker in workers)
    assert_counters_true(store)
    store.close()  # with its connections go the numbers they kept back
    name = postgres_url.rsplit("/", 1)[1]
    assert postgres.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = %s", name) == [(0,)]


async def test_the_other_takes_over_and_the_first_is_too_late(store: Store) -> None:
    run_id = add_run(store, tasks=2, concurrency=2)
    add_executor(store, "first")
    add_executor(store, "second")
    late = tick(store, run_id, executor="first").leased
    with store.writing() as connection:
        executors.heartbeat(connection, "first", 0.0)
        assert executors.recover(connection, "second", home="second's") == 2
    assert tick(store, run_id, executor="first").leased == [], "its own lease has run out"
    again = tick(store, run_id, executor="second").leased
    assert [one.number for one in again] == [2, 2]
    writer = store.writer()
    for one in again:
        await writer.record(ended(one, score=1.0, passed=True))
    for one in late:
        with pytest.raises(LeaseLostError):
            await writer.record(ended(one, score=0.0, passed=False))
    await writer.close()
    assert_counters_true(store)
    with store.reading() as connection:
        row = runs.get(connection, run_id)
        assert (row.n_finished, row.score_sum) == (2, 2.0)
        ended_as = select(attempt.c.outcome, func.count()).group_by(attempt.c.outcome)
        assert dict(connection.execute(ended_as).all()) == {"lost": 2, "graded": 2}  # type: ignore[arg-type]
    with store.writing() as connection:
        executors.heartbeat(connection, "first", 30.0)
        runs.create(connection, run_values(id="ff"), [runs.NewTrial("t", 0, "d", None, None)])
    assert len(tick(store, "ff", executor="first").leased) == 1, "it lives again"


async def test_no_lock_is_held_over_a_chain_of_statements(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No timeout of the server's ends that, when this process is suspended before the chain's end."""
    run_ids = [add_run(store, tasks=4) for _ in range(2)]

    def chained(*_arguments: object, **_more: object) -> None:
        raise AssertionError("a chain of statements")

    monkeypatch.setattr(psycopg.Cursor, "executemany", chained)
    leased = tick(store, *run_ids).leased
    assert len(leased) == 8
    writer = store.writer()
    async with asyncio.TaskGroup() as group:
        for one in leased[:3]:
            group.create_task(writer.record(Save(one, {})))
        for one in leased[3:6]:
            group.create_task(writer.record(ended(one, score=1.0)))
    await writer.close()
    with store.writing() as connection:
        executors.abandon(connection, "me", time.time())
        for run_id in run_ids:
            runs.stop(connection, run_id, time.time(), force=True, task_ids=None)
            assert runs.reopen(connection, run_id, errors_too=True)
    assert_counters_true(store)


@pytest.mark.slow
async def test_who_stops_in_the_middle_holds_up_the_others_for_a_moment(store: Store) -> None:
    run_id = add_run(store, tasks=1)
    (leased,) = tick(store, run_id).leased
    writer = store.writer()
    with store._database.writer.connect() as suspended:
        suspended.begin()
        lock_runs(suspended, [run_id])
        await writer.record(ended(leased, score=1.0))
        suspended.invalidate()
    await writer.close()
    assert_counters_true(store)


def test_a_hosts_clock_that_is_wrong_changes_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = add_run(store, tasks=3, concurrency=1)
    monkeypatch.setattr(time, "time", lambda: 1.0)  # half a century slow
    add_executor(store, "slow")
    with store.writing() as connection:
        assert [row.id for row in executors.living(connection)] == ["slow"]
        assert executors.recover(connection, "other", home="other's") == 0
    (one,) = tick(store, run_id, executor="slow", now=1.0).leased
    again = ended(one, TrialState.PENDING, not_before=1.0 + 60.0)
    with store.writing() as connection:
        from valkyrie.store import journal

        journal.record(connection, [again])
        not_before = connection.execute(select(trial.c.not_before).where(trial.c.id == one.trial_id)).scalar()
        assert not_before - store.now(connection) == pytest.approx(60.0, abs=5.0)
    with store.writing() as connection:
        connection.execute(trial.delete().where(trial.c.id != one.trial_id))
        found = leases.lease(connection, Tick("slow", 1.0, ROOM, {}, {run_id}))
    assert found.leased == []
    assert found.wake_at == pytest.approx(61.0, abs=5.0), "by its own clock"
