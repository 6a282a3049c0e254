"""What deleted runs leave in a database is given back to the disk."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import insert

from tests.stored_runs import add_run
from valkyrie.errors import UserError
from valkyrie.store import Store, runs, upkeep
from valkyrie.store.schema import executor, run

BIG = "x" * 20_000


def fill(store: Store) -> str:
    run_id = add_run(store, tasks=200)
    with store.writing() as connection:
        connection.exec_driver_sql("UPDATE trial SET message = ?", (BIG,))
        connection.execute(run.update().values(state="FINISHED"))
    return run_id


def forget(store: Store, run_id: str) -> None:
    with store.writing() as connection:
        runs.forget(connection, run_id)


def test_a_file_shrinks_when_a_run_is_deleted(tmp_path: Path) -> None:
    file = tmp_path / "valkyrie.db"
    store = Store(file)
    run_id = fill(store)
    store.close()
    before = file.stat().st_size
    store = Store(file)
    forget(store, run_id)
    assert store.reclaimable() > 200 * len(BIG) * 0.9
    store.give_back()
    assert store.reclaimable() == 0
    store.close()
    assert file.stat().st_size < before / 5


def test_a_file_of_an_earlier_version_does_so_once_it_was_compacted(tmp_path: Path) -> None:
    file = tmp_path / "valkyrie.db"
    Store(file).close()
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA auto_vacuum=NONE")
        connection.execute("VACUUM")
    store = Store(file)
    forget(store, fill(store))
    store.give_back()
    left = store.reclaimable()
    assert left > 200 * len(BIG) * 0.9
    done = upkeep.compact(file)
    assert (done.before, done.after, done.given_back) == (left, 0, left)
    forget(store, fill(store))
    store.give_back()
    assert store.reclaimable() == 0
    store.close()
    assert file.stat().st_size < left / 5


def test_a_file_is_not_written_anew_while_an_executor_is_at_work(tmp_path: Path) -> None:
    file = tmp_path / "valkyrie.db"
    with pytest.raises(UserError, match="db upgrade"):
        upkeep.compact(file)
    store = Store(file)
    with store.writing() as connection:
        living = {"id": "e", "host": "h", "pid": 4711, "version": "1", "expires_at": 1e12}
        connection.execute(insert(executor).values(**living, started_at=0.0, heartbeat_at=0.0))
    with pytest.raises(UserError, match="pid 4711"):
        upkeep.compact(file)
    store.close()


def test_either_database_is_compacted(store: Store, store_address: Path | str) -> None:
    forget(store, add_finished(store))
    assert upkeep.compact(store_address).after == 0
    with store.reading() as connection:
        assert runs.page(connection, runs.RunQuery({}))[1] == 0


def add_finished(store: Store) -> str:
    run_id = add_run(store, tasks=2)
    with store.writing() as connection:
        connection.execute(run.update().values(state="FINISHED"))
    return run_id
