"""Runs of one job: one pool, shared evenly; trials that are added; jobs found again."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest

from tests.stored_runs import add_run, assert_counters_true, ended, run_values, tick
from valkyrie.errors import UnknownError, UsageError, UserError
from valkyrie.store import Store, jobs, journal, runs
from valkyrie.store.leases import Leased, Room
from valkyrie.trial.outputs import MOST_TOKENS


def add_job(store: Store, *, concurrency: int = 4, **more: Any) -> str:
    values = {
        "id": str(uuid.uuid4()),
        "name": "j",
        "created_at": time.time(),
        "concurrency": concurrency,
        "about": {},
        "arguments": {},
        **more,
    }
    with store.writing() as connection:
        jobs.create(connection, values)
    return str(values["id"])


def add_runs(store: Store, job_id: str, count: int, **more: Any) -> list[str]:
    return [add_run(store, job_id=job_id, job_position=n, **more) for n in range(count)]


def test_runs_of_a_job_share_its_pool_evenly(store: Store) -> None:
    job_id = add_job(store, concurrency=6)
    ids = add_runs(store, job_id, 3, concurrency=6)
    found = tick(store, *ids).leased
    assert Counter(one.run_id for one in found) == dict.fromkeys(ids, 2)
    assert tick(store, *ids).leased == []
    assert_counters_true(store)


def test_a_place_that_is_free_goes_to_the_run_with_the_fewest(store: Store) -> None:
    job_id = add_job(store, concurrency=4)
    ids = add_runs(store, job_id, 2, concurrency=4)
    found = tick(store, *ids).leased
    mine = [one for one in found if one.run_id == ids[1]]
    with store.writing() as connection:
        journal.record(connection, [ended(one, score=1.0, passed=True) for one in mine])
    assert [one.run_id for one in tick(store, *ids).leased] == [ids[1], ids[1]]


def test_other_runs_have_their_own_place(store: Store) -> None:
    job_id = add_job(store, concurrency=1)
    ids = add_runs(store, job_id, 2, concurrency=1)
    alone = add_run(store, concurrency=3)
    found = Counter(one.run_id for one in tick(store, alone, *ids).leased)
    assert found[alone] == 3
    assert found[ids[0]] + found[ids[1]] == 1


def test_a_small_host_is_shared_too(store: Store) -> None:
    job_id = add_job(store, concurrency=10)
    ids = add_runs(store, job_id, 2, concurrency=10, cpus=1.0)
    found = tick(store, *ids, room=Room(4.0, 1e9, idle=False)).leased
    assert Counter(one.run_id for one in found) == {ids[0]: 2, ids[1]: 2}


def test_a_pool_that_shrinks_takes_nothing_new_until_it_fits(store: Store) -> None:
    job_id = add_job(store, concurrency=4)
    ids = add_runs(store, job_id, 2, concurrency=4)
    held = list(tick(store, *ids).leased)
    with store.writing() as connection:
        jobs.share(connection, job_id, 2)
    assert tick(store, *ids).leased == []
    with store.writing() as connection:
        journal.record(connection, [ended(one, score=1.0, passed=True) for one in held[:3]])
    assert len(tick(store, *ids).leased) == 1


def test_nothing_begins_when_a_jobs_time_is_over(store: Store) -> None:
    job_id = add_job(store, ends_at=time.time() - 1)
    ids = add_runs(store, job_id, 2, tasks=3)
    found = tick(store, *ids)
    assert (found.leased, set(found.ended)) == ([], set(ids))
    with store.reading() as connection:
        assert [runs.get(connection, run_id).n_stopped for run_id in ids] == [3, 3]
    assert_counters_true(store)


def test_trials_are_added_once(store: Store) -> None:
    run_id = add_run(store, tasks=2)
    more = [runs.NewTrial(f"t{n}", k, "d", None, None) for k in (0, 1) for n in range(3)]
    with store.writing() as connection:
        assert runs.extend(connection, run_id, more) == 4
        assert runs.extend(connection, run_id, more) == 0
        assert len(runs.planned(connection, run_id)) == 6
    assert_counters_true(store)
    assert [f"{one.task_id}{one.k}" for one in tick(store, run_id).leased] == ["t00", "t10", "t20", "t01"]


def test_jobs_are_found_by_id_beginning_and_name(store: Store) -> None:
    older = add_job(store, name="night", created_at=1.0)
    newer = add_job(store, name="night", created_at=2.0)
    other = add_job(store, name="other", org_id="theirs")
    with store.reading() as connection:
        assert jobs.resolve(connection, "night", "default") == newer
        assert jobs.resolve(connection, older[:13], "default") == older
        for ref in (other, "other", "", "zz", "nigth"):
            with pytest.raises(UnknownError):
                jobs.resolve(connection, ref, "default")
        with pytest.raises(UnknownError, match="Did you mean 'night'"):
            jobs.resolve(connection, "nigth", "default")
        page, cursor = jobs.page(connection, "default", limit=1)
        assert ([row.id for row in page], bool(cursor)) == ([newer], True)
        page, cursor = jobs.page(connection, "default", limit=1, cursor=cursor)
        assert ([row.id for row in page], cursor) == ([older], None)
        assert jobs.page(connection, "default", since=1.5)[0][0].id == newer
        with pytest.raises(UsageError, match="not a cursor"):
            jobs.page(connection, "default", cursor="?")


def test_a_jobs_version_grows_with_its_runs(store: Store) -> None:
    job_id = add_job(store)
    run_id = add_run(store, job_id=job_id, job_position=0)
    with store.reading() as connection:
        before = jobs.version(connection, job_id) or 0
    tick(store, run_id)
    with store.reading() as connection:
        assert (jobs.version(connection, job_id) or 0) > before
        assert jobs.version(connection, "none") is None


def test_executors_at_once_never_overfill_a_pool(store: Store) -> None:
    """While the job grows, too: a run that was just added shares the pool."""
    job_id = add_job(store, concurrency=5)
    ids = add_runs(store, job_id, 2, concurrency=5, tasks=40)
    begin = Barrier(4)

    def work(name: str) -> list[Leased]:
        begin.wait()
        return [one for _ in range(10) for one in tick(store, *ids, executor=name).leased]

    def grow() -> list[Leased]:
        begin.wait()
        for position in range(2, 6):
            with store.writing() as connection:
                jobs.locked(connection, job_id)
                values = run_values(job_id=job_id, job_position=position, concurrency=5)
                runs.create(connection, values, [runs.NewTrial("t", 0, "d", None, None)])
                ids.append(values["id"])
        return []

    with ThreadPoolExecutor(4) as pool:
        taken = [pool.submit(work, name) for name in ("me", "you", "they")]
        taken.append(pool.submit(grow))
        assert len([one for found in taken for one in found.result()]) == 5
    assert_counters_true(store)


def test_a_job_is_forgotten_only_without_runs(store: Store) -> None:
    job_id = add_job(store)
    add_runs(store, job_id, 1)
    with pytest.raises(UserError, match="grew meanwhile"), store.writing() as connection:
        jobs.forget(connection, job_id)
    with store.reading() as connection:
        assert jobs.exists(connection, job_id)


def test_the_most_an_attempt_can_say_it_used_can_be_added_up(store: Store) -> None:
    run_id = add_run(store, tasks=4)
    said = dict.fromkeys(("input_tokens", "cached_tokens", "output_tokens"), MOST_TOKENS)
    held = tick(store, run_id).leased
    with store.writing() as connection:
        journal.record(connection, [ended(one, usage=said, cost=1e6) for one in held])
    with store.reading() as connection:
        assert runs.get(connection, run_id).input_tokens == 4 * MOST_TOKENS
