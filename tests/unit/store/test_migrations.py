"""Every released schema is brought to this program's, with what is in it, on both databases."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, inspect, text

from tests.postgres import Postgres
from tests.stored_runs import run_values
from valkyrie.domain import Role
from valkyrie.store import REVISION, Store, executors, migrations, runs, tenants, trials
from valkyrie.store.database import parse

RUN = (
    "INSERT INTO run (id, state, agent, benchmark, dataset, provider, concurrency, fraction, created_at,"
    " arguments, agent_frozen, benchmark_source, enforcement, n_finished, n_in_progress, version)"
    " VALUES (:id, :state, 'ä', 'b', 'default', 'local', 5, :fraction, 1.0,"
    " '{\"n\": 1}', '{}', '{}', '{}', 1, 1, 9)"
)
TRIAL = (
    "INSERT INTO trial"
    " (run_id, position, task_id, k, digest, state, executor_id, score, result, attempts)"
    " VALUES ('aa', 0, :task, 0, 'd', :state, :executor, :score, '{\"ok\": true}', 1)"
)
ATTEMPT = (
    "INSERT INTO attempt (trial_id, number, executor_id, epoch, phase, outcome, started_at)"
    " VALUES (:id, 1, 'e', 1, 'BUILDING', :outcome, 1.0)"
)
EXECUTOR = (
    "INSERT INTO executor (id, host, pid, version, started_at, heartbeat_at, expires_at)"
    " VALUES ('e', 'h', 1, '0.1', 1.0, 1.0, 31.0)"
)


@pytest.fixture(params=["sqlite", "postgresql"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Path | str:
    if request.param == "sqlite":
        return tmp_path / "v.db"
    url: str = request.getfixturevalue("empty_postgres_url")
    return url


@pytest.fixture
def engine(address: Path | str) -> Iterator[Engine]:
    made = create_engine(parse(address).url)
    yield made
    made.dispose()


def fill(engine: Engine, revision: str) -> None:
    """What a program of that revision may have left behind, killed in the middle of a run."""
    with engine.begin() as connection:
        migrations.upgrade(connection, revision)
        for run_id, state in (("aa", "IN_PROGRESS"), ("bb", "FINISHED"), ("cc", "STOPPED")):
            connection.execute(text(RUN), {"id": run_id, "state": state, "fraction": True})
        done = {"task": "t", "state": "FINISHED", "executor": None, "score": 0.5}
        held = {"task": "ü", "state": "IN_PROGRESS", "executor": "e", "score": None}
        connection.execute(text(TRIAL), [done, held])
        connection.execute(text(ATTEMPT), [{"id": 1, "outcome": "graded"}, {"id": 2, "outcome": None}])
        connection.execute(text(EXECUTOR))
        if revision > "0001":
            connection.execute(text("UPDATE trial SET saved = '{\"at\": 7}' WHERE id = 2"))
        if revision > "0002":
            connection.execute(text("UPDATE run SET endings = 1 WHERE state != 'IN_PROGRESS'"))


@pytest.mark.parametrize("revision", ["0001", "0002", "0003"])
def test_what_is_in_an_older_database_is_kept(address: Path | str, engine: Engine, revision: str) -> None:
    fill(engine, revision)
    store = Store(address)
    with store.reading() as connection:
        page, total, _ = runs.page(connection, runs.RunQuery({"org_id": "default"}))
        assert {row.id: (row.state, row.endings, row.version) for row in page} == {
            "aa": ("IN_PROGRESS", 0, 9),
            "bb": ("FINISHED", 1, 9),
            "cc": ("STOPPED", 1, 9),
        }
        assert (total, page[0].agent, page[0].arguments, page[0].priority) == (3, "ä", {"n": 1}, 3)
        trial = trials.one_trial(connection, "aa", "ü", 0)
        assert (trial.saved, trial.cost, trial.version) == ({"at": 7} if revision > "0001" else None, None, 0)
    with store.writing() as connection:
        assert executors.recover(connection, "me", home="h") == 1
        runs.create(connection, run_values(id="dd"), [runs.NewTrial("t", 0, "d", None, None)])
    store.close()
    copies = list(Path(parse(address).path).parent.glob(f"v.db.{revision}.*.bak"))
    assert len(copies) == (1 if isinstance(address, Path) else 0)


def test_keys_from_before_roles_may_do_what_they_could(address: Path | str, engine: Engine) -> None:
    columns = "(id, org_id, name, person, hash, created_at)"
    key = f"INSERT INTO api_key {columns} VALUES ('k', 'default', 'n', 'p', 'h', 1)"
    with engine.begin() as connection:
        migrations.upgrade(connection, "0009")
        connection.execute(text(key))
    store = Store(address)
    with store.reading() as connection:
        assert [found.role for found in tenants.list_keys(connection)] == [Role.ADMIN]
    store.close()


def test_a_migrated_database_is_a_new_one(address: Path | str, engine: Engine) -> None:
    fill(engine, "0001")
    Store(address).close()
    migrated = shape(engine)
    with engine.begin() as connection:
        assert migrations.differences(connection) == []
        migrations.downgrade(connection, "base")
        connection.execute(text("DROP TABLE alembic_version"))
    Store(address).close()
    assert shape(engine) == migrated
    assert REVISION == max(migrations.known_revisions())


def test_the_way_back_keeps_what_was_there(address: Path | str, engine: Engine) -> None:
    fill(engine, "0002")
    before = shape(engine, collations=False)
    Store(address).close()
    with engine.begin() as connection:
        migrations.downgrade(connection, "0002")
        assert connection.execute(text("SELECT id, state FROM trial ORDER BY id")).all() == [
            (1, "FINISHED"),
            (2, "IN_PROGRESS"),
        ]
    assert shape(engine, collations=False) == before
    Store(address).close()


def test_text_is_in_the_order_of_its_characters(empty_postgres_url: str, postgres: Postgres) -> None:
    Store(empty_postgres_url).close()
    database = empty_postgres_url.rsplit("/", 1)[1]
    postgres.execute('ALTER TABLE trial ALTER COLUMN run_id TYPE text COLLATE "default"', database=database)
    postgres.execute('ALTER TABLE run ALTER COLUMN label TYPE text COLLATE "default"', database=database)
    engine = create_engine(parse(empty_postgres_url).url)
    with engine.connect() as connection:
        assert migrations.differences(connection) == ["collate run.label", "collate trial.run_id"]
    engine.dispose()


def test_a_difference_is_found(address: Path | str, engine: Engine) -> None:
    Store(address).close()
    with engine.begin() as connection:
        connection.execute(text("DROP INDEX trial_held"))
        connection.execute(text("ALTER TABLE attempt DROP COLUMN cost"))
        connection.execute(text("CREATE TABLE extra (id INTEGER)"))
        found = migrations.differences(connection)
    assert sorted(found) == ["add_column attempt.cost", "add_index trial.trial_held", "remove_table extra"]


def test_steps_are_told_in_order() -> None:
    numbers = [f"{number:04d}" for number in range(1, int(REVISION) + 1)]
    assert [revision for revision, _ in migrations.steps("0001")] == numbers[1:]
    assert [revision for revision, _ in migrations.steps(None)] == numbers
    assert migrations.steps(REVISION) == []


def shape(engine: Engine, *, collations: bool = True) -> dict[str, object]:
    with engine.connect() as connection:
        look = inspect(connection)
        return {
            table: (
                sorted(
                    (
                        one["name"],
                        str(one["type"]) if collations else type(one["type"]).__name__,
                        one["nullable"],
                        str(one["default"]),
                    )
                    for one in look.get_columns(table)
                ),
                sorted((str(one["name"]), tuple(one["column_names"])) for one in look.get_indexes(table)),
                sorted(tuple(one["column_names"]) for one in look.get_unique_constraints(table)),
                sorted(
                    (tuple(one["constrained_columns"]), one["referred_table"], str(one["options"]))
                    for one in look.get_foreign_keys(table)
                ),
            )
            for table in look.get_table_names()
            if table != "alembic_version"
        }
