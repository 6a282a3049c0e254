"""`valkyrie db`: where the database is, bringing it up, and finding what is wrong with it."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from tests.stored_runs import add_executor, add_run, ended, tick
from valkyrie.cli.main import main
from valkyrie.domain import Category, TrialState
from valkyrie.store import REVISION, Store, journal, leases, migrations, upkeep
from valkyrie.store.database import parse
from valkyrie.store.journal import Finish

Valk = Callable[..., tuple[int, str]]


@pytest.fixture(params=["sqlite", "postgresql"])
def address(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path | str:
    """Where `valkyrie db` finds a database that has nothing yet."""
    monkeypatch.setenv("VALKYRIE_HOME", str(tmp_path))
    monkeypatch.delenv("VALKYRIE_DATABASE_URL", raising=False)
    if request.param == "sqlite":
        return tmp_path / "valkyrie.db"
    url: str = request.getfixturevalue("empty_postgres_url").replace("postgres@", "postgres:hush@")
    monkeypatch.setenv("VALKYRIE_DATABASE_URL", url)
    return url


@pytest.fixture
def db(address: Path | str, capsys: pytest.CaptureFixture[str]) -> Valk:
    def call(*words: str) -> tuple[int, str]:
        capsys.readouterr()
        code = main(["db", *words])
        said = "".join(capsys.readouterr())
        assert "hush" not in said
        return code, said

    return call


def say(address: Path | str, statement: str, **values: Any) -> None:
    engine = create_engine(parse(address).url)
    with engine.begin() as connection:
        connection.execute(text(statement), values)
    engine.dispose()


def old(address: Path | str) -> None:
    engine = create_engine(parse(address).url)
    with engine.begin() as connection:
        migrations.upgrade(connection, "0001")
    engine.dispose()


def test_a_database_is_made_once(address: Path | str, db: Valk) -> None:
    code, said = db("current")
    assert code == 0
    assert "none yet" in said
    assert db("check")[0] == 1
    code, said = db("upgrade", "--dry-run")
    assert code == 0
    assert f"Would make schema {REVISION}" in said
    assert "none yet" in db("current")[1], "a dry run changes nothing"
    assert db("upgrade")[0] == 0
    assert "already" in db("upgrade")[1]
    assert "in order" in db("check")[1]


def test_an_older_database_is_upgraded_by_steps(address: Path | str, db: Valk, tmp_path: Path) -> None:
    old(address)
    code, said = db("check")
    assert (code, "`valkyrie db upgrade`" in said) == (1, True)
    steps = db("upgrade", "--dry-run")[1]
    numbers = [f"{number:04d}" for number in range(2, int(REVISION) + 1)]
    assert re.findall(r"to schema (\d+): ", steps) == numbers
    assert "0001" in db("current")[1]
    said = db("upgrade")[1]
    assert f"schema 0001 to {REVISION}" in said
    copies = list(tmp_path.glob("*.bak"))
    assert [str(copy) in said for copy in copies] == [True] * (1 if isinstance(address, Path) else 0)
    assert db("check")[0] == 0


def test_what_is_in_use_is_not_upgraded(empty_postgres_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    old(empty_postgres_url)
    say(
        empty_postgres_url,
        "INSERT INTO executor (id, host, pid, version, started_at, heartbeat_at, expires_at)"
        " VALUES ('e', 'far', 7, '0', 1, 1, :later)",
        later=time.time() + 60,
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("VALKYRIE_DATABASE_URL", empty_postgres_url)
        assert main(["db", "upgrade"]) == 1
    assert "7 on far" in capsys.readouterr().err


def test_a_newer_database_is_refused(address: Path | str, db: Valk) -> None:
    db("upgrade")
    say(address, "UPDATE alembic_version SET version_num = '9999'")
    for words in (["upgrade"], ["upgrade", "--dry-run"], ["check"]):
        code, said = db(*words)
        assert (code, "newer Valkyrie" in said) == (1, True)
    assert db("current")[0] == 0


def test_json_says_the_same(address: Path | str, db: Valk) -> None:
    upgraded = json.loads(db("upgrade", "--json")[1])
    assert (upgraded["kind"], upgraded["revision"], len(upgraded["steps"])) == (
        "db_upgrade",
        REVISION,
        1,
    )
    current = json.loads(db("current", "--json")[1])
    assert (current["database"], current["revision"]) == (parse(address).kind, REVISION)
    assert json.loads(db("check", "--json")[1])["ok"] is True
    say(address, "DROP INDEX trial_held")
    code, said = db("check", "--json")
    checked = json.loads(said)
    assert (code, checked["ok"]) == (1, False)
    assert checked["problems"] == ["the schema differs: add_index trial.trial_held"]


def busy(address: Path | str) -> tuple[Store, str]:
    """A store with a bit of everything, in order."""
    store = Store(address)
    run_id = add_run(store, tasks=6, concurrency=5)
    add_executor(store, "e")
    one, two, three, _four, _five = tick(store, run_id, executor="e").leased
    failed = Finish(
        two,
        TrialState.BUILDING,
        TrialState.ERROR,
        leases.Outcome.FAILED,
        1.0,
        category=Category.AGENT,
        cause="x",
        cost=0.1,
    )
    with store.writing() as connection:
        journal.record(connection, [ended(one, score=0.3, passed=True, cost=0.2), failed])
        journal.record(connection, [ended(three, score=1.0)])
    return store, run_id


def test_books_in_order_are_said_to_be(address: Path | str) -> None:
    store, _ = busy(address)
    assert upkeep.problems(address) == []
    store.close()


WRONG = {
    "UPDATE run SET n_pending = n_pending + 1": "n_pending is 2, but 1 are there",
    "UPDATE run SET e_agent = 0": "e_agent is 0, but 1",
    "UPDATE run SET score_sum = 9": "score_sum is 9, but 1.3",
    "UPDATE run SET n_partial = 2": "n_partial is 2, but 1",
    "UPDATE run SET cost_sum = 0.5": "cost_sum is 0.5, but 0.3",
    "UPDATE run SET n_costed = 0": "n_costed is 0, but 2",
    "UPDATE trial SET executor_id = NULL WHERE task_id = 't3'": "t3/0 .* no executor holds it",
    "UPDATE trial SET executor_id = 'e' WHERE task_id = 't5'": "t5/0 .* PENDING, but executor e holds it",
    "UPDATE executor SET ended_at = 1": "t4/0 .* executor e, which is gone",
    "UPDATE attempt SET outcome = NULL": "t0/0 .* FINISHED, with 1 attempts under way",
    "DELETE FROM attempt WHERE trial_id = (SELECT id FROM trial WHERE task_id = 't4')": (
        "t4/0 .* BUILDING, with 0 attempts under way"
    ),
}


@pytest.mark.parametrize(
    "address", ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)], indirect=True
)
def test_what_is_wrong_is_found(address: Path | str) -> None:
    store, run_id = busy(address)
    known: set[str] = set()
    for statement, said in WRONG.items():
        say(address, statement)
        found = set(upkeep.problems(address))
        new, known = found - known, found
        assert any(re.search(said, one) and run_id in one for one in new), (statement, new)
    store.close()


def test_of_many_alike_a_few_are_told(address: Path | str) -> None:
    store = Store(address)
    add_run(store, tasks=30)
    say(address, "UPDATE trial SET executor_id = 'nobody'")
    found = upkeep.problems(address)
    assert len(found) == upkeep.MOST_TOLD + 1
    assert found[-1] == "… and 10 more of these"
    store.close()
