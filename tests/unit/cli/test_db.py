"""`db`: what it says of databases that are not this program's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from tests.unit.cli.command_result import CommandResult
from valkyrie.store import REVISION, migrations

Valk = Callable[..., CommandResult]


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    url = f"sqlite:///{tmp_path / 'v.db'}"
    monkeypatch.setenv("VALKYRIE_DATABASE_URL", url)
    return url


def at(url: str, revision: str) -> None:
    """A database of an earlier program."""
    engine = create_engine(url)
    with engine.begin() as connection:
        migrations.upgrade(connection, revision)
    engine.dispose()


def test_an_older_one_is_upgraded_step_by_step(valk: Valk, database: str) -> None:
    at(database, "0001")
    said = valk("db", "current")
    assert said.code == 0 and "Schema  0001" in said.out and "valkyrie db upgrade" in said.out
    assert "`valkyrie db upgrade`" in valk("db", "check").out
    planned = valk("db", "upgrade", "--dry-run").out.splitlines()
    assert len(planned) == int(REVISION) and not any(line.endswith("..") for line in planned)
    assert valk("db", "current", "--json").json["revision"] == "0001"
    done = valk("db", "upgrade", "--json").json
    assert (done["revision"], len(done["steps"])) == (REVISION, 2)
    assert valk("db", "check").code == 0


def test_a_newer_one_is_left_to_a_newer_program(valk: Valk, database: str) -> None:
    at(database, "head")
    engine = create_engine(database)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    engine.dispose()
    said = valk("db", "current")
    assert said.code == 0 and "newer Valkyrie" in said.err and "db upgrade" not in said.out
    for verb in ("check", "upgrade"):
        said = valk("db", verb)
        assert said.code == 1 and "newer Valkyrie" in said.err


def test_doctor_looks_at_the_database_that_is_configured(
    valk: Valk, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found() -> dict[str, str]:
        checks = valk("doctor", "--json").json["checks"]
        return next(one for one in checks if one["name"] == "database")

    assert found()["mark"] == "ok" and str(tmp_path / "v.db") in found()["found"]
    at(database, "0001")
    assert (found()["mark"], found()["way_out"]) == ("warn", "valkyrie db upgrade")
    assert valk("db", "current", "--json").json["revision"] == "0001", "a look changes nothing"
    monkeypatch.setenv("VALKYRIE_DATABASE_URL", "postgresql://me:planted-password@127.0.0.1:1/none")
    assert found()["mark"] == "fail" and "planted-password" not in str(found())
