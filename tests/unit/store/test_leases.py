"""Leases, phases, endings: counters always equal the trials, stale writes are refused."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import select
from sqlalchemy.exc import OperationalError

from valkyrie.errors import LeaseLostError, StoreError, UsageError, UserError
from valkyrie.nouns import Category, Outcome, TrialState
from valkyrie.store import Store, journal, leases, runs
from valkyrie.store.journal import Advance, Finish
from valkyrie.store.leases import Room, Tick
from valkyrie.store.schema import ERROR_COUNTERS, STATE_COUNTERS, attempt, run, trial
from valkyrie.store.writer import Writer

ROOM = Room(1e9, 1e9, idle=False)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path / "v.db")
    yield opened
    opened.close()


@pytest.fixture
async def writer(store: Store) -> AsyncIterator[Writer]:
    made = store.writer()
    yield made
    await made.close()


def add_run(store: Store, tasks: int = 10, concurrency: int = 4, cpus: float | None = None) -> str:
    run_id = str(uuid.uuid4())
    values = {
        "id": run_id,
        "agent": "a",
        "benchmark": "b",
        "dataset": "default",
        "provider": "null",
        "concurrency": concurrency,
        "fraction": True,
        "created_at": time.time(),
        "arguments": {},
        "agent_frozen": {},
        "benchmark_source": {},
        "enforcement": {},
    }
    with store.writing() as connection:
        runs.create(connection, values, [runs.NewTrial(f"t{n}", 0, "d", cpus, None) for n in range(tasks)])
    return run_id


def tick(
    store: Store, *ready: str, room: Room = ROOM, executor: str = "me", now: float | None = None
) -> leases.TickResult:
    with store.writing() as connection:
        return leases.lease(connection, Tick(executor, now or time.time(), room, {}, set(ready)))


def assert_counters_true(store: Store) -> None:
    with store.reading() as connection:
        for row in connection.execute(select(run)):
            trials = connection.execute(select(trial).where(trial.c.run_id == row.id)).all()
            states = Counter(one.state for one in trials)
            assert {s.value: getattr(row, c) for s, c in STATE_COUNTERS.items()} == {
                s.value: states[s] for s in TrialState
            }
            errors = Counter(one.category for one in trials if one.state == TrialState.ERROR)
            assert {c.value: getattr(row, n) for c, n in ERROR_COUNTERS.items()} == {
                c.value: errors[c.value] for c in Category
            }
            graded = [one for one in trials if one.state == TrialState.FINISHED]
            assert row.n_passed == sum(bool(one.passed) for one in graded)
            assert row.score_sum == pytest.approx(sum(one.score or 0 for one in graded))


def ended(leased: leases.Leased, after: TrialState = TrialState.FINISHED, **more: object) -> Finish:
    return Finish(leased, TrialState.BUILDING, after, Outcome.GRADED, time.time(), **more)  # type: ignore[arg-type]


def test_leases_respect_concurrency_and_order(store: Store) -> None:
    run_id = add_run(store, tasks=10, concurrency=4)
    assert [one.task_id for one in tick(store, run_id).leased] == ["t0", "t1", "t2", "t3"]
    assert tick(store, run_id).leased == []
    assert_counters_true(store)


def test_a_run_that_is_not_ready_is_left_alone(store: Store) -> None:
    run_id = add_run(store)
    found = tick(store)
    assert (found.leased, found.open_runs) == ([], [run_id])


def test_runs_share_a_small_host_fairly(store: Store) -> None:
    first, second = add_run(store, cpus=1.0), add_run(store, cpus=1.0)
    found = tick(store, first, second, room=Room(2.0, 1e9, idle=False))
    assert Counter(one.run_id for one in found.leased) == {first: 1, second: 1}


def test_an_idle_host_takes_one_trial_however_large(store: Store) -> None:
    run_id = add_run(store, cpus=64.0)
    assert len(tick(store, run_id, room=Room(2.0, 1e9, idle=True)).leased) == 1


async def test_every_waiter_gets_its_own_answer(store: Store, writer: Writer) -> None:
    run_id = add_run(store, tasks=100, concurrency=100)
    leased = tick(store, run_id).leased
    with store.writing() as connection:  # someone force-stops five of them
        held = connection.execute(
            select(trial).where(trial.c.id.in_([one.trial_id for one in leased[:5]]))
        ).all()
        leases.give_back(connection, held, time.time(), Outcome.STOPPED, TrialState.STOPPED)
    answers = await asyncio.gather(
        *(writer.record(Advance(one, TrialState.BUILDING, TrialState.IN_PROGRESS)) for one in leased),
        return_exceptions=True,
    )
    assert [isinstance(answer, LeaseLostError) for answer in answers] == [True] * 5 + [False] * 95
    assert_counters_true(store)


async def test_a_writer_that_dies_fails_everyone(store: Store, writer: Writer) -> None:
    def explode(_connection: object) -> None:
        raise OperationalError("INSERT", None, Exception("database or disk is full"))

    answers = await asyncio.gather(*(writer.call(explode) for _ in range(3)), return_exceptions=True)
    assert all(isinstance(answer, StoreError) for answer in answers)
    with pytest.raises(StoreError, match="is full"):
        await writer.call(lambda _connection: None)


@pytest.mark.parametrize(
    "bad",
    [
        {"result": {"odd": {1, 2}}},
        {"message": "half a character: \ud800"},
        {"score": float("nan")},
    ],
)
async def test_what_one_caller_cannot_write_harms_nobody_else(
    store: Store, writer: Writer, bad: dict[str, object]
) -> None:
    run_id = add_run(store, tasks=3, concurrency=3)
    one, two, three = tick(store, run_id).leased
    answers = await asyncio.gather(
        writer.record(ended(one, score=1.0, passed=True)),
        writer.record(ended(two, **bad)),
        writer.record(ended(three, score=1.0, passed=True)),
        return_exceptions=True,
    )
    assert [isinstance(answer, Exception) for answer in answers] == [False, True, False]
    assert "{1, 2}" not in str(answers[1]), "what was written is nobody else's business"
    with store.reading() as connection:
        assert runs.get(connection, run_id).n_finished == 2
        assert leases.state_of(connection, two) is TrialState.BUILDING
    assert_counters_true(store)


async def test_a_retry_of_a_stopped_run_is_stopped(store: Store, writer: Writer) -> None:
    run_id = add_run(store, tasks=3, concurrency=2)
    one, _two = tick(store, run_id).leased
    with store.writing() as connection:
        runs.stop(connection, run_id, time.time(), force=False, task_ids=None)
    again = Finish(one, TrialState.BUILDING, TrialState.PENDING, Outcome.FAILED, time.time(), not_before=1e12)
    await writer.record(again)
    assert tick(store, run_id).ended == [], "the other attempt is still at work"
    with store.writing() as connection:
        assert leases.recover(connection, "next", time.time(), alone=True) == 1
    assert tick(store, run_id, executor="next").ended == [run_id]
    assert_counters_true(store)
    with store.reading() as connection:
        assert runs.get(connection, run_id).n_stopped == 3


async def test_a_stale_ending_never_counts(store: Store, writer: Writer) -> None:
    run_id = add_run(store, tasks=1)
    (old,) = tick(store, run_id, executor="old").leased
    with store.writing() as connection:
        assert leases.recover(connection, "new", time.time(), alone=True) == 1
    (new,) = tick(store, run_id, executor="new").leased
    assert new.number == 2
    await writer.record(ended(new, score=1.0, passed=True))
    with pytest.raises(LeaseLostError):
        await writer.record(ended(old, score=0.0, passed=False))
    with store.reading() as connection:
        row = runs.get(connection, run_id)
        assert (row.n_finished, row.n_passed, row.score_sum) == (1, 1, 1.0)
        outcomes = connection.execute(select(attempt.c.outcome).order_by(attempt.c.number)).scalars().all()
    assert outcomes == ["lost", "graded"]


def test_leases_of_a_living_executor_are_kept_without_the_lock(store: Store) -> None:
    run_id, now = add_run(store), time.time()
    with store.writing() as connection:
        for name, expires in (("alive", now + 30), ("late", now - 1)):
            runs.register_executor(
                connection,
                {
                    "id": name,
                    "host": "h",
                    "pid": 1,
                    "version": "1",
                    "started_at": now,
                    "heartbeat_at": now,
                    "expires_at": expires,
                },
            )
    tick(store, run_id, executor="alive", room=Room(1e9, 1e9, idle=False))
    second = add_run(store)
    tick(store, second, executor="late")
    with store.writing() as connection:
        assert leases.recover(connection, "me", now, alone=False) == 4
    assert_counters_true(store)


async def test_a_retry_waits_for_its_time(store: Store, writer: Writer) -> None:
    run_id = add_run(store, tasks=1)
    (leased,) = tick(store, run_id).leased
    later = time.time() + 100
    await writer.record(
        Finish(
            leased,
            TrialState.BUILDING,
            TrialState.PENDING,
            Outcome.FAILED,
            time.time(),
            category=Category.INFRASTRUCTURE,
            cause="sandbox_failed",
            message="no",
            not_before=later,
        )
    )
    found = tick(store, run_id)
    assert (found.leased, found.wake_at) == ([], later)
    (again,) = tick(store, run_id, now=later + 1).leased
    assert (again.number, again.failures) == (2, 1)
    assert_counters_true(store)


async def test_a_retry_that_only_lacks_room_wakes_nobody(store: Store, writer: Writer) -> None:
    run_id = add_run(store, tasks=2, concurrency=2, cpus=1.0)
    for leased, at in zip(tick(store, run_id).leased, (50.0, 150.0), strict=True):
        again = Finish(leased, TrialState.BUILDING, TrialState.PENDING, Outcome.FAILED, 1.0, not_before=at)
        await writer.record(again)
    found = tick(store, run_id, room=Room(0.0, 0.0, idle=False), now=100.0)
    assert (found.leased, found.wake_at) == ([], 150.0)


async def test_stop_resume_retry_keep_the_books(store: Store, writer: Writer) -> None:
    run_id = add_run(store, tasks=6, concurrency=3)
    one, two, three = tick(store, run_id).leased
    await writer.record(ended(one, score=0.5))
    await writer.record(
        Finish(
            two,
            TrialState.BUILDING,
            TrialState.ERROR,
            Outcome.FAILED,
            time.time(),
            category=Category.AGENT,
            cause="agent_failed",
            message="x",
        )
    )
    with store.writing() as connection:
        runs.stop(connection, run_id, time.time(), force=False, task_ids=None)
    assert_counters_true(store)
    assert tick(store, run_id).leased == []
    await writer.record(ended(three, score=1.0, passed=True))
    assert tick(store, run_id).ended == [run_id]
    with store.writing() as connection:
        runs.conclude(connection, run_id, time.time(), final={"final_score": 0.2}, graded=0.5, error=None)
    with store.writing() as connection:
        assert runs.get(connection, run_id).state == "STOPPED"
        assert runs.reopen(connection, run_id, errors_too=False) == 3
    assert_counters_true(store)
    with store.writing() as connection:
        assert runs.reopen(connection, run_id, errors_too=True, category="benchmark") == 0
        assert runs.reopen(connection, run_id, errors_too=True, concurrency=7) == 1
        assert runs.get(connection, run_id).concurrency == 7
    assert_counters_true(store)
    assert len(tick(store, run_id).leased) == 4


def test_force_stop_takes_active_trials_away(store: Store) -> None:
    run_id = add_run(store, tasks=6, concurrency=3)
    tick(store, run_id)
    with store.writing() as connection:
        runs.stop(connection, run_id, time.time(), force=True, task_ids=None)
        assert leases.still_ours(connection, "me") == set()
    assert_counters_true(store)
    with store.writing() as connection:
        runs.conclude(connection, run_id, time.time(), final=None, graded=None, error=None)
    with store.writing() as connection, pytest.raises(UserError, match="STOPPED already"):
        runs.stop(connection, run_id, time.time(), force=True, task_ids=None)


def test_run_references(store: Store) -> None:
    run_id = add_run(store, tasks=1)
    with store.writing() as connection:
        for last in "12":
            values = {
                "id": f"aaaaaaaa-0000-4000-8000-00000000000{last}",
                "agent": "a",
                "benchmark": "b",
                "dataset": "default",
                "provider": "null",
                "concurrency": 1,
                "fraction": True,
                "created_at": 1.0,
                "arguments": {},
                "agent_frozen": {},
                "benchmark_source": {},
                "enforcement": {},
            }
            runs.create(connection, values, [runs.NewTrial("t", 0, "d", None, None)])
    with store.reading() as connection:
        assert runs.resolve(connection, run_id[:13].upper()) == run_id
        with pytest.raises(UsageError, match=r"several run ids.*\n.*0001|several run ids.*\n.*0002"):
            runs.resolve(connection, "aaaaaaaa")
        for nonsense in ("", "zzz", "%", "ffffffff-ffff"):
            with pytest.raises(UsageError):
                runs.resolve(connection, nonsense)


@given(
    st.lists(
        st.sampled_from(["tick", "finish", "error", "retry", "recover", "stop", "force", "resume", "again"]),
        max_size=30,
    )
)
@settings(max_examples=40, deadline=None)
def test_counters_stay_true_whatever_happens(
    tmp_path_factory: pytest.TempPathFactory, moves: list[str]
) -> None:
    store = Store(tmp_path_factory.mktemp("s") / "v.db")
    run_id = add_run(store, tasks=5, concurrency=2)
    held: list[leases.Leased] = []

    def end(after: TrialState, outcome: Outcome, category: Category | None = None) -> None:
        one = held.pop()
        try:
            with store.writing() as connection:
                journal.record(
                    connection,
                    [
                        Finish(
                            one,
                            TrialState.BUILDING,
                            after,
                            outcome,
                            1.0,
                            category=category,
                            cause="x",
                            score=0.5 if outcome is Outcome.GRADED else None,
                        )
                    ],
                )
        except leases.StaleLeaseError:
            pass

    for move in moves:
        if move == "tick":
            held += tick(store, run_id).leased
        elif move == "finish" and held:
            end(TrialState.FINISHED, Outcome.GRADED)
        elif move == "error" and held:
            end(TrialState.ERROR, Outcome.FAILED, Category.BENCHMARK)
        elif move == "retry" and held:
            end(TrialState.PENDING, Outcome.FAILED, Category.INFRASTRUCTURE)
        elif move in ("recover", "stop", "force", "resume", "again"):
            with store.writing() as connection:
                if move == "recover":
                    leases.recover(connection, "other", 1.0, alone=True)
                elif move in ("stop", "force"):
                    runs.stop(connection, run_id, 1.0, force=move == "force", task_ids=None)
                else:
                    runs.reopen(connection, run_id, errors_too=move == "again")
        assert_counters_true(store)
    store.close()
