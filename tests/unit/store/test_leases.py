"""Leases, phases, endings: counters always equal the trials, stale writes are refused."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from random import Random

import pytest
from sqlalchemy import insert, select, update
from sqlalchemy.exc import OperationalError

from tests.stored_runs import add_executor, add_run, assert_counters_true, ended, tick
from valkyrie.domain import Category, Outcome, TrialState
from valkyrie.errors import LeaseLostError, StoreError, UserError
from valkyrie.store import Store, executors, leases, runs, tenants, trials
from valkyrie.store.journal import Advance, Finish, Save, Writer
from valkyrie.store.leases import Room, TickResult
from valkyrie.store.schema import attempt, executor, regrade, trial


@pytest.fixture
async def writer(store: Store) -> AsyncIterator[Writer]:
    made = store.writer()
    yield made
    await made.close()


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


OWNERS = ["ada", "ada", "ada", "ada", "ada", "ben", "ben", "ben", "ben", "cy"]


@pytest.mark.parametrize("seed", range(2))
async def test_whoever_has_the_fewest_trials_in_hand_is_next(store: Store, writer: Writer, seed: int) -> None:
    """Ten runs of three people, room for eight: one slot after another is freed, in any order."""
    random = Random(seed)
    owner = {add_run(store, tasks=20, concurrency=20, cpus=1.0, started_by=name): name for name in OWNERS}
    held = list(tick(store, *owner, room=Room(8.0, 1e9, idle=False)).leased)
    for _ in range(40):
        people = Counter(owner[one.run_id] for one in held)
        assert sorted(people.values()) == [2, 3, 3], people
        for person in people:
            of_runs = Counter({run_id: 0 for run_id, name in owner.items() if name == person})
            of_runs.update(one.run_id for one in held if owner[one.run_id] == person)
            assert max(of_runs.values()) - min(of_runs.values()) <= 1
        left = held.pop(random.randrange(len(held)))
        await writer.record(ended(left, score=1.0, passed=True))
        held += tick(store, *owner, room=Room(1.0, 1e9, idle=False)).leased
    assert_counters_true(store)


async def test_a_run_that_comes_later_gets_every_slot_until_it_has_its_share(
    store: Store, writer: Writer
) -> None:
    first = add_run(store, tasks=100, concurrency=8, cpus=1.0)
    held = list(tick(store, first, room=Room(8.0, 1e9, idle=False)).leased)
    second = add_run(store, tasks=100, concurrency=8, cpus=1.0)
    for share in (1, 2, 3, 4, 4, 4):
        oldest = min(held, key=lambda one: (one.run_id == second, one.trial_id))
        held.remove(oldest)
        await writer.record(ended(oldest, score=1.0, passed=True))
        held += tick(store, first, second, room=Room(1.0, 1e9, idle=False)).leased
        assert Counter(one.run_id for one in held) == {first: 8 - share, second: share}


def test_what_a_person_has_in_hand_counts_whatever_its_priority(store: Store) -> None:
    urgent = add_run(store, cpus=1.0, concurrency=3, priority=0, started_by="ada")
    tick(store, urgent)
    patient, other = (add_run(store, cpus=1.0, started_by=name) for name in ("ada", "ben"))
    found = tick(store, urgent, patient, other, room=Room(3.0, 1e9, idle=False))
    assert Counter(one.run_id for one in found.leased) == {other: 3}


def test_an_idle_host_takes_one_trial_however_large(store: Store) -> None:
    run_id = add_run(store, cpus=64.0)
    assert len(tick(store, run_id, room=Room(2.0, 1e9, idle=True)).leased) == 1


def test_no_more_trials_begin_than_have_files_to_open(store: Store) -> None:
    run_id = add_run(store)
    assert len(tick(store, run_id, room=Room(1e9, 1e9, idle=False, trials=3)).leased) == 3
    assert tick(store, run_id, room=Room(1e9, 1e9, idle=False, trials=0)).leased == []
    assert len(tick(store, run_id, room=Room(1e9, 1e9, idle=True, trials=0)).leased) == 1


async def test_every_waiter_gets_its_own_answer(store: Store, writer: Writer) -> None:
    run_id = add_run(store, tasks=100, concurrency=100)
    leased = tick(store, run_id).leased
    with store.writing() as connection:  # someone force-stops five of them
        held = connection.execute(
            select(trial).where(trial.c.id.in_([one.trial_id for one in leased[:5]]))
        ).all()
        executors.give_back(connection, held, time.time(), Outcome.STOPPED, TrialState.STOPPED)
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
        {"score": float("nan")},
        {"cost": float("inf")},
        {"exit_code": 2**70},
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
        assert executors.recover(connection, "next", home="") == 1
    assert tick(store, run_id, executor="next").ended == [run_id]
    assert_counters_true(store)
    with store.reading() as connection:
        assert runs.get(connection, run_id).n_stopped == 3


async def test_a_stale_ending_never_counts(store: Store, writer: Writer) -> None:
    run_id = add_run(store, tasks=1)
    (old,) = tick(store, run_id, executor="old").leased
    with store.writing() as connection:
        assert executors.recover(connection, "new", home="") == 1
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


def test_leases_of_a_living_executor_are_kept(store: Store) -> None:
    first, second, third = (add_run(store) for _ in range(3))
    add_executor(store, "alive")
    add_executor(store, "late")
    add_executor(store, "before me", home="mine")
    tick(store, first, executor="alive")
    tick(store, second, executor="late")
    tick(store, third, executor="before me")
    with store.writing() as connection:  # longer ago than anybody waits for a database
        connection.execute(
            update(executor).where(executor.c.id == "late").values(expires_at=time.time() - 3600)
        )
    with store.writing() as connection:
        assert executors.recover(connection, "me", home="mine") == 8
        assert executors.recover(connection, "me", home="mine") == 0
        assert {row.id: row.active for row in executors.living(connection)} == {"alive": 4, "before me": 0}
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
        assert runs.reopen(connection, run_id, errors_too=True) == 0, "an end by the agent's doing counts"
        assert runs.reopen(connection, run_id, errors_too=True, category="agent", concurrency=7) == 1
        assert runs.get(connection, run_id).concurrency == 7
    assert_counters_true(store)
    assert len(tick(store, run_id).leased) == 4


async def test_the_time_between_two_passes_is_no_work(store: Store, writer: Writer) -> None:
    run_id = add_run(store, tasks=2, concurrency=1)
    for began in (1000.0, 90_000.0):
        (leased,) = tick(store, run_id, now=began).leased
        await writer.record(ended(leased, score=1.0))
        with store.writing() as connection:
            if began < 2000:
                runs.stop(connection, run_id, began + 5, force=False, task_ids=None)
            runs.conclude(connection, run_id, began + 10, final=None, graded=None, error=None)
            assert runs.get(connection, run_id).working_since is None
            if began < 2000:
                assert runs.reopen(connection, run_id, errors_too=False) == 1
    with store.reading() as connection:
        assert runs.get(connection, run_id).worked_s == pytest.approx(20.0)


async def test_a_night_without_an_executor_is_no_work(store: Store, writer: Writer) -> None:
    run_id = add_run(store, tasks=2, concurrency=1)
    (leased,) = tick(store, run_id, now=1000.0).leased
    await writer.record(replace(ended(leased, score=1.0), at=1030.0))
    with store.writing() as connection:
        runs.reopen(connection, run_id, errors_too=False)
        row = runs.get(connection, run_id)
    assert (row.worked_s, row.working_since) == (30.0, None)


def test_force_stop_takes_active_trials_away(store: Store) -> None:
    run_id = add_run(store, tasks=6, concurrency=3)
    tick(store, run_id)
    with store.writing() as connection:
        runs.stop(connection, run_id, time.time(), force=True, task_ids=None)
        assert executors.still_ours(connection, "me") == set()
    assert_counters_true(store)
    with store.writing() as connection:
        runs.conclude(connection, run_id, time.time(), final=None, graded=None, error=None)
    with store.writing() as connection, pytest.raises(UserError, match="STOPPED already"):
        runs.stop(connection, run_id, time.time(), force=True, task_ids=None)


def test_urgent_runs_have_a_larger_share_and_come_first(store: Store) -> None:
    late = add_run(store, cpus=1.0, concurrency=10, priority=4)
    middle = [add_run(store, cpus=1.0, concurrency=10) for _ in range(2)]
    urgent = add_run(store, cpus=1.0, concurrency=10, priority=1)
    found = tick(store, late, *middle, urgent, room=Room(13.0, 1e9, idle=False))
    assert Counter(one.run_id for one in found.leased) == {urgent: 8, middle[0]: 2, middle[1]: 2, late: 1}
    assert found.leased[0].run_id == urgent
    assert found.open_runs == [urgent, *middle, late]
    with store.reading() as connection:
        assert [row.id for row in runs.queue(connection, "default")] == [urgent, *middle, late]
        assert runs.queue(connection, "other") == []


def test_runs_of_one_key_have_no_more_in_hand_than_it_allows(store: Store) -> None:
    with store.writing() as connection:
        few, _ = tenants.create_key(connection, "default", "ci", "ci", max_concurrency=3)
        many, _ = tenants.create_key(connection, "default", "ada", "ada")
    own = [add_run(store, concurrency=4, key_id=few, started_by="ci") for _ in range(2)]
    other = add_run(store, concurrency=4, key_id=many, started_by="ada")
    found = Counter(one.run_id for one in tick(store, *own, other).leased)
    assert found == {own[0]: 2, own[1]: 1, other: 4}
    assert tick(store, *own, other).leased == []
    assert_counters_true(store)


async def test_a_run_that_cost_what_it_may_goes_no_further(store: Store, writer: Writer) -> None:
    run_id = add_run(store, tasks=6, concurrency=2, max_cost=1.0)
    one, two = tick(store, run_id).leased
    await writer.record(ended(one, score=1.0, passed=True, cost=0.4))
    (three,) = tick(store, run_id).leased
    again = Finish(
        two, TrialState.BUILDING, TrialState.PENDING, Outcome.FAILED, 1.0, category=Category.AGENT, cost=0.7
    )
    await writer.record(again)
    assert tick(store, run_id).leased == []
    await writer.record(ended(three, score=0.0))
    assert tick(store, run_id).ended == [run_id]
    assert_counters_true(store)
    with store.reading() as connection:
        row = runs.get(connection, run_id)
    assert (row.n_stopped, row.n_finished, row.n_costed) == (4, 2, 2)
    assert row.cost_sum == pytest.approx(1.1)


async def fail(writer: Writer, found: TickResult, category: Category = Category.BENCHMARK) -> None:
    """End what was leased in errors."""
    for one in found.leased:
        failed = {"category": category, "cause": "grader_no_verdict", "message": "no reward"}
        now = time.time()
        await writer.record(Finish(one, TrialState.BUILDING, TrialState.ERROR, Outcome.FAILED, now, **failed))


async def test_a_run_all_of_whose_trials_fail_stops_by_itself(store: Store, writer: Writer) -> None:
    run_id = add_run(store, tasks=100, concurrency=10, abort_after=20)
    for _ in range(2):
        await fail(writer, tick(store, run_id))
    assert tick(store, run_id).ended == [run_id]
    assert_counters_true(store)
    with store.writing() as connection:
        row = runs.get(connection, run_id)
        assert (row.state, row.n_error, row.n_stopped) == ("STOPPING", 20, 80)
        runs.conclude(connection, run_id, time.time(), final=None, graded=None, error=None)
    with store.writing() as connection:
        row = runs.get(connection, run_id)
        assert row.state == "STOPPED"
        assert row.note == (
            "stopped by itself: the first 20 trials that ended all failed, all with benchmark/"
            f"grader_no_verdict; `valk run errors {run_id[:8]}` says why, `valk run resume {run_id[:8]}` "
            "goes on"
        )
        assert runs.reopen(connection, run_id, errors_too=False) == 80
    found = tick(store, run_id)
    assert len(found.leased) == 10, "whoever resumes it is believed"
    await fail(writer, found)
    with store.writing() as connection:  # its executor died; that is no new beginning
        runs.reopen(connection, run_id, errors_too=False)
    await fail(writer, tick(store, run_id))
    assert tick(store, run_id).ended == [run_id], "the next twenty count again"


@pytest.mark.parametrize("harmless", ["graded", "infrastructure", "never", "few", "regraded"])
async def test_a_run_that_may_come_right_goes_on(store: Store, writer: Writer, harmless: str) -> None:
    tasks = 1000 if harmless == "few" else 100
    after = 0 if harmless == "never" else 20
    run_id = add_run(store, tasks=tasks, concurrency=7, abort_after=after)
    found = tick(store, run_id)
    if harmless == "graded":
        await writer.record(ended(found.leased[0], score=0.0))
        found = replace(found, leased=found.leased[1:])
    for _ in range(3):
        category = Category.INFRASTRUCTURE if harmless == "infrastructure" else Category.BENCHMARK
        await fail(writer, found, category)
        if harmless == "regraded":
            with store.writing() as connection:
                values = {"run_id": run_id, "number": 1, "created_at": 1.0, "arguments": {}}
                connection.execute(insert(regrade).values(**values))
            harmless = "regraded already"
        found = tick(store, run_id)
    assert len(found.leased) == 7


async def test_each_change_is_found_under_a_later_version(store: Store, writer: Writer) -> None:
    run_id = add_run(store, tasks=3, concurrency=2)
    with store.reading() as connection:
        at_first = runs.version(connection, run_id) or 0
    one, two = tick(store, run_id).leased
    with store.reading() as connection:
        leased_at = runs.version(connection, run_id) or 0
        assert [row.task_id for row in trials.trials_since(connection, run_id, at_first)] == ["t0", "t1"]
        assert trials.trials_since(connection, run_id, leased_at) == []
    await writer.record(Advance(two, TrialState.BUILDING, TrialState.IN_PROGRESS))
    await writer.record(ended(one, score=1.0))
    with store.reading() as connection:
        changed = trials.trials_since(connection, run_id, leased_at)
        assert [(row.task_id, row.state) for row in changed] == [("t1", "IN_PROGRESS"), ("t0", "FINISHED")]
        assert leased_at < changed[0].version < changed[1].version == runs.version(connection, run_id)
        assert trials.trials_since(connection, run_id, 10**15) == []


async def test_what_is_saved_is_handed_to_the_next_attempt(store: Store, writer: Writer) -> None:
    run_id = add_run(store, tasks=1)
    (one,) = tick(store, run_id).leased
    await writer.record(Save(one, {"sandbox": "s1"}))
    with store.writing() as connection:
        executors.abandon(connection, "me", time.time())
    with pytest.raises(LeaseLostError):
        await writer.record(Save(one, {"sandbox": "late"}))
    (again,) = tick(store, run_id).leased
    assert again.saved == {"sandbox": "s1"}
    failed = Finish(again, TrialState.BUILDING, TrialState.PENDING, Outcome.FAILED, 1.0, usage={"steps": 3})
    await writer.record(failed)
    (last,) = tick(store, run_id).leased
    await writer.record(ended(last, score=1.0))
    with store.reading() as connection:
        row = trials.one_trial(connection, run_id, "t0", 0)
        assert (row.saved, row.usage) == (None, {"steps": 3})


async def test_what_an_agent_used_is_counted_once_although_its_grading_was_lost(
    store: Store, writer: Writer
) -> None:
    run_id = add_run(store, tasks=1)
    used = {"input_tokens": 30, "output_tokens": 4}
    for usage, cost in ((used, 0.5), (None, None)):
        (one,) = tick(store, run_id).leased
        await writer.record(Save(one, {"attempt": one.number, "usage": usage, "cost": cost}))
        with store.writing() as connection:
            executors.abandon(connection, "me", time.time())
    (last,) = tick(store, run_id).leased
    await writer.record(ended(last, score=1.0))
    with store.reading() as connection:
        row, whole = trials.one_trial(connection, run_id, "t0", 0), runs.get(connection, run_id)
        assert (row.usage, row.cost) == (used, 0.5)
        assert (whole.input_tokens, whole.output_tokens, whole.cost_sum, whole.n_costed) == (30, 4, 0.5, 1)


async def test_a_late_write_is_refused_and_said(
    store: Store, writer: Writer, capsys: pytest.CaptureFixture[str]
) -> None:
    run_id = add_run(store, tasks=1)
    (old,) = tick(store, run_id).leased
    with store.writing() as connection:
        executors.abandon(connection, "me", time.time())
    with pytest.raises(LeaseLostError, match="late write of trial t0/0"):
        await writer.record(ended(old, score=1.0))
    said = capsys.readouterr().err
    assert f"a late write of trial t0/0 (run {run_id[:8]}, attempt 1) was refused" in said


def test_leases_nobody_knows_of_are_given_back(store: Store) -> None:
    run_id = add_run(store, tasks=4, concurrency=4)
    known, *_unknown = tick(store, run_id).leased
    with store.writing() as connection:
        assert len(executors.give_back_unknown(connection, "me", {known.trial_id}, time.time())) == 3
        assert executors.give_back_unknown(connection, "me", {known.trial_id}, time.time()) == []
        assert executors.still_ours(connection, "me") == {known.trial_id}
    assert_counters_true(store)
    assert [one.number for one in tick(store, run_id).leased] == [2, 2, 2]


def test_an_executor_registers_once(store: Store) -> None:
    add_executor(store, "e")
    add_executor(store, "e")  # the answer to the first was lost
    with store.writing() as connection:
        (row,) = executors.living(connection)
        executors.heartbeat(connection, "e", 60.0)
    assert row.expires_at - row.started_at == pytest.approx(30.0)
    with store.writing() as connection:
        (row,) = executors.living(connection)
        assert row.expires_at - store.now(connection) > 55
        executors.end_executor(connection, "e")
        assert executors.living(connection) == []
