"""Secrets of organisations and what is handed with runs, encrypted, on both databases."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from valkyrie.domain import DEFAULT_ORG
from valkyrie.errors import StoreError, UnknownError, UsageError
from valkyrie.secrets.delivery import Sealer, new_key, parse_keys
from valkyrie.store import Store, runs, tenants


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Store]:
    """For what does not depend on the database."""
    opened = Store(tmp_path / "valkyrie.db")
    yield opened
    opened.close()


@pytest.fixture
def sealer() -> Sealer:
    return Sealer(parse_keys(new_key()))


def new_run(store: Store, run_id: str) -> None:
    values = {
        "id": run_id, "agent": "a", "benchmark": "b", "dataset": "default", "provider": "null",
        "concurrency": 1, "fraction": True, "created_at": 1.0, "arguments": {}, "agent_frozen": {},
        "benchmark_source": {}, "enforcement": {},
    }  # fmt: skip
    with store.writing() as connection:
        runs.create(connection, values, [runs.NewTrial("t", 0, "d", None, None)])


def test_a_secrets_life(store: Store, sealer: Sealer) -> None:
    with store.writing() as connection:
        tenants.set_secret(connection, sealer, DEFAULT_ORG, "team/openai", "first", "ada")
        tenants.set_secret(connection, sealer, DEFAULT_ORG, "team/openai", "second\n", "bob")
        tenants.set_secret(connection, sealer, DEFAULT_ORG, "a", "ü" * 1000)
        assert tenants.get_secret(connection, sealer, DEFAULT_ORG, "team/openai") == "second\n"
        found = tenants.list_secrets(connection, DEFAULT_ORG)
        assert [(one.name, one.created_by) for one in found] == [("a", None), ("team/openai", "bob")]
        tenants.remove_secret(connection, DEFAULT_ORG, "a")
        assert tenants.get_secret(connection, sealer, DEFAULT_ORG, "a") is None
        with pytest.raises(UnknownError, match="Did you mean 'team/openai'"):
            tenants.remove_secret(connection, DEFAULT_ORG, "team/openia")


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("a b", "x", "cannot name a secret"),
        ("a", "", "empty"),
        ("a", "x\0y", "NUL"),
        ("a", "hunter2" * 20_000, "64 KiB"),
    ],
)
def test_what_cannot_be_kept_is_refused_without_showing_it(
    small: Store, sealer: Sealer, name: str, value: str, says: str
) -> None:
    with small.writing() as connection, pytest.raises(UsageError, match=says) as caught:
        tenants.set_secret(connection, sealer, DEFAULT_ORG, name, value)
    assert "hunter2" not in str(caught.value)


def test_organisations_do_not_see_each_others(store: Store, sealer: Sealer) -> None:
    with store.writing() as connection:
        other = tenants.create_org(connection, "other").id
        tenants.set_secret(connection, sealer, DEFAULT_ORG, "key", "mine")
        assert tenants.get_secret(connection, sealer, other, "key") is None
        assert tenants.list_secrets(connection, other) == []
        with pytest.raises(UnknownError):
            tenants.remove_secret(connection, other, "key")
        tenants.set_secret(connection, sealer, other, "key", "theirs")
        assert tenants.get_secret(connection, sealer, DEFAULT_ORG, "key") == "mine"


def test_a_value_moved_to_another_row_does_not_open(small: Store, sealer: Sealer) -> None:
    with small.writing() as connection:
        other = tenants.create_org(connection, "other").id
        tenants.set_secret(connection, sealer, DEFAULT_ORG, "key", "mine")
        move = text("UPDATE secret SET org_id = :other")
        connection.execute(move, {"other": other})
        with pytest.raises(StoreError, match="cannot be opened"):
            tenants.get_secret(connection, sealer, other, "key")


def test_there_is_an_end_to_how_many(small: Store, sealer: Sealer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenants, "MOST_SECRETS", 2)
    with small.writing() as connection:
        for name in ("a", "b", "b"):
            tenants.set_secret(connection, sealer, DEFAULT_ORG, name, "x")
        with pytest.raises(UsageError, match="2 secrets already"):
            tenants.set_secret(connection, sealer, DEFAULT_ORG, "c", "x")


def test_what_is_handed_with_a_run(store: Store) -> None:
    new_run(store, "r1")
    with store.writing() as connection:
        assert runs.handed(connection, "r1") is None
        runs.hand(connection, "r1", b"\x00one")
        runs.hand(connection, "r1", b"\x00two")
        assert runs.handed(connection, "r1") == b"\x00two"
        runs.forget_handed(connection, "r1")
        assert runs.handed(connection, "r1") is None
        runs.forget_handed(connection, "r1")
        runs.hand(connection, "r1", b"three")
        connection.execute(text("DELETE FROM run"))
        assert runs.handed(connection, "r1") is None


def test_no_value_is_in_the_database_in_clear(tmp_path: Path, sealer: Sealer) -> None:
    store = Store(tmp_path / "valkyrie.db")
    new_run(store, "r1")
    with store.writing() as connection:
        tenants.set_secret(connection, sealer, DEFAULT_ORG, "openai", "planted-value-1234567890")
        runs.hand(connection, "r1", sealer.seal({"KEY": "planted-value-1234567890"}, "run:r1"))
    store.close()
    files = b"".join(file.read_bytes() for file in tmp_path.iterdir() if file.is_file())
    assert b"openai" in files and b"planted" not in files
