"""Opening a database: new, migrated, foreign, newer, damaged."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import create_engine, inspect, text
from sqlalchemy.pool import NullPool

from valkyrie.errors import StoreError
from valkyrie.store import Store, migrations, schema


def shape(path: Path) -> dict[str, object]:
    engine = create_engine(f"sqlite:///{path}", poolclass=NullPool)
    with engine.connect() as connection:
        inspector = inspect(connection)
        return {
            table: (
                sorted(
                    (one["name"], str(one["type"]), one["nullable"]) for one in inspector.get_columns(table)
                ),
                sorted(one["name"] or "" for one in inspector.get_indexes(table)),
                sorted(tuple(one["column_names"]) for one in inspector.get_unique_constraints(table)),
            )
            for table in inspector.get_table_names()
            if table != "alembic_version"
        }


def test_a_new_database_equals_a_migrated_one(tmp_path: Path) -> None:
    Store(tmp_path / "new.db").close()
    engine = create_engine(f"sqlite:///{tmp_path / 'migrated.db'}")
    migrations.upgrade(engine)
    engine.dispose()
    assert shape(tmp_path / "new.db") == shape(tmp_path / "migrated.db")
    assert schema.REVISION == max(migrations.known_revisions())


def test_a_database_is_private(tmp_path: Path) -> None:
    Store(tmp_path / "deep" / "v.db").close()
    assert (tmp_path / "deep" / "v.db").stat().st_mode & 0o777 == 0o600


def test_a_database_is_written_ahead_and_in_full(tmp_path: Path) -> None:
    store = Store(tmp_path / "v.db")
    with store.reading() as connection:
        assert connection.execute(text("PRAGMA journal_mode")).scalar() == "wal"
        assert connection.execute(text("PRAGMA synchronous")).scalar() == 2
    store.close()


def test_a_newer_database_is_refused_untouched(tmp_path: Path) -> None:
    path = tmp_path / "v.db"
    Store(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match=r"newer Valkyrie.*9999"):
        Store(path)
    assert path.read_bytes() == before


def test_a_damaged_database_is_named(tmp_path: Path) -> None:
    path = tmp_path / "v.db"
    path.write_bytes(b"this is not a database at all" * 100)
    with pytest.raises(StoreError, match=r"v\.db is damaged"):
        Store(path)


def test_a_foreign_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "v.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE recipes (id)")
    connection.close()
    with pytest.raises(StoreError, match="not one of Valkyrie's"):
        Store(path)


def test_many_openers_of_a_new_folder_agree(tmp_path: Path) -> None:
    def open_it(_number: int) -> None:
        store = Store(tmp_path / "v.db")
        with store.reading() as connection:
            assert connection.execute(text("SELECT count(*) FROM alembic_version")).scalar() == 1
        store.close()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(open_it, range(16)))


def test_the_first_release_is_migrated_with_what_is_in_it(tmp_path: Path) -> None:
    path = tmp_path / "v.db"
    engine = create_engine(f"sqlite:///{path}")
    migrations.upgrade(engine, "0001")
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO run (id, state, agent, benchmark, dataset, provider, concurrency, fraction,"
            " created_at, arguments, agent_frozen, benchmark_source, enforcement)"
            " VALUES ('r1', 'FINISHED', 'a', 'b', 'default', 'local', 5, 1, 1.0, '{}', '{}', '{}', '{}')"
        )
        connection.exec_driver_sql(
            "INSERT INTO trial (id, run_id, position, task_id, k, digest, state)"
            " VALUES (1, 'r1', 0, 't', 0, 'd', 'FINISHED')"
        )
    engine.dispose()
    store = Store(path)
    with store.reading() as connection:
        assert connection.execute(text("SELECT id, saved FROM trial")).all() == [(1, None)]
        assert connection.execute(text("SELECT version_num FROM alembic_version")).scalar() == schema.REVISION
    store.close()
    assert len(list(tmp_path.glob("v.db.0001.*.bak"))) == 1
