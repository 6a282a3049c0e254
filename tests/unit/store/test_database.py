"""Opening a database: new, foreign, newer, damaged, not there."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from tests.postgres import Postgres
from tests.stored_runs import add_executor, add_run
from valkyrie.errors import StoreError
from valkyrie.store import REVISION, Store, migrations
from valkyrie.store.database import parse


def say(address: Path | str, *statements: str) -> None:
    """Change a database behind the store's back."""
    engine = create_engine(parse(address).url)
    with engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)
    engine.dispose()


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_address(request: pytest.FixtureRequest, tmp_path: Path) -> Path | str:
    if request.param == "sqlite":
        return tmp_path / "v.db"
    url: str = request.getfixturevalue("empty_postgres_url")
    return url


def test_many_openers_of_a_new_database_agree(empty_address: Path | str) -> None:
    def open_it(_number: int) -> None:
        store = Store(empty_address)
        with store.reading() as connection:
            assert connection.execute(text("SELECT version_num FROM alembic_version")).scalars().all() == [
                REVISION
            ]
            assert connection.execute(text("SELECT id FROM org")).scalars().all() == ["default"]
        store.close()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(open_it, range(12)))


def test_a_newer_database_is_refused_untouched(store_address: Path | str) -> None:
    Store(store_address).close()
    say(store_address, "UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(StoreError, match=r"newer Valkyrie.*9999"):
        Store(store_address)
    engine = create_engine(parse(store_address).url)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT version_num FROM alembic_version")).scalar() == "9999"
    engine.dispose()


def test_a_foreign_database_is_refused(empty_address: Path | str) -> None:
    say(empty_address, "CREATE TABLE recipes (id INTEGER)")
    with pytest.raises(StoreError, match=r"not .*Valkyrie's"):
        Store(empty_address)


def test_a_look_is_one_moment(store: Store) -> None:
    with store.reading() as connection:
        assert connection.execute(text("SELECT count(*) FROM run")).scalar() == 0
        add_run(store)
        assert connection.execute(text("SELECT count(*) FROM run")).scalar() == 0
    with store.reading() as connection:
        assert connection.execute(text("SELECT count(*) FROM run")).scalar() == 1


def test_a_new_file_is_private(tmp_path: Path) -> None:
    Store(tmp_path / "deep" / "v.db").close()
    assert (tmp_path / "deep" / "v.db").stat().st_mode & 0o777 == 0o600


def test_a_file_is_written_ahead_and_in_full(tmp_path: Path) -> None:
    store = Store(tmp_path / "v.db")
    with store.reading() as connection:
        assert connection.execute(text("PRAGMA journal_mode")).scalar() == "wal"
        assert connection.execute(text("PRAGMA synchronous")).scalar() == 2
    store.close()


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "v.db"
    path.write_bytes(b"this is not a database at all" * 100)
    with pytest.raises(StoreError, match=r"v\.db is damaged"):
        Store(path)


def test_a_file_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"file/v\.db"):
        Store(tmp_path / "file" / "v.db")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgresql://guarded:hush@127.0.0.1:{port}/postgres", "does not let us in: .*password"),
        ("postgresql://postgres:hush@127.0.0.1:{port}/nowhere", '"nowhere" does not exist'),
        ("postgresql://postgres:hush@127.0.0.1:1/v", "does not answer: .*refused"),
        ("postgresql://postgres:hush@127.0.0.1:{port}/postgres?colour=hush", "colour"),
    ],
)
def test_a_server_that_does_not_let_us_in_is_named(postgres: Postgres, url: str, said: str) -> None:
    with pytest.raises(StoreError, match=said) as caught:
        Store(url.format(port=postgres.port))
    assert "hush" not in f"{caught.value} {caught.value.__cause__}"
    assert "VALKYRIE_DATABASE_URL" in str(caught.value) or "colour" in said


def test_an_older_schema_in_use_is_left_alone(empty_postgres_url: str, postgres: Postgres) -> None:
    engine = create_engine(parse(empty_postgres_url).url)
    with engine.begin() as connection:
        migrations.upgrade(connection, "0002")
    engine.dispose()
    insert = (
        "INSERT INTO executor (id, host, pid, version, started_at, heartbeat_at, expires_at)"
        " VALUES ('e', 'far', 7, '0', 1, 1, extract(epoch FROM now()) + 60)"
    )
    name = empty_postgres_url.rsplit("/", 1)[1]
    postgres.execute(insert, database=name)
    with pytest.raises(StoreError, match=r"executors .* at work: process 7 on far.*`valkyrie db upgrade`"):
        Store(empty_postgres_url)
    assert postgres.execute("SELECT version_num FROM alembic_version", database=name) == [("0002",)]
    postgres.execute("UPDATE executor SET ended_at = 2", database=name)
    Store(empty_postgres_url).close()
    assert postgres.execute("SELECT version_num FROM alembic_version", database=name) == [(REVISION,)]


def test_the_same_schema_in_use_is_opened(store: Store, store_address: Path | str) -> None:
    add_executor(store, "e")
    Store(store_address).close()


def test_a_locked_file_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("valkyrie.store.sqlite.BUSY_TIMEOUT_S", 0.05)
    monkeypatch.setattr("valkyrie.store.database.PATIENCE_S", 0.0)
    store = Store(tmp_path / "v.db")
    other = sqlite3.connect(tmp_path / "v.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match=r"v\.db stays locked") as caught:
        with store.writing():
            pass
    assert caught.value.cause == "store_away"
    other.close()
    store.close()
