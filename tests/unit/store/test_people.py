"""Organisations and API keys, on both databases."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from valkyrie.domain import DEFAULT_ORG, Identity, Role
from valkyrie.errors import UnknownError, UsageError
from valkyrie.store import Store, tenants

NOW = 1_800_000_000.0


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Store]:
    """For what does not depend on the database."""
    opened = Store(tmp_path / "valkyrie.db")
    yield opened
    opened.close()


def make_key(store: Store, org_id: str = DEFAULT_ORG, expires_at: float | None = None) -> tuple[str, str]:
    with store.writing() as connection:
        return tenants.create_key(connection, org_id, "laptop", "ada@example.com", expires_at)


def find(store: Store, key: str, now: float = NOW) -> Identity | None:
    with store.reading() as connection:
        return tenants.find_key(connection, key, now)


def test_organisations_have_names_and_ids_of_their_own(store: Store) -> None:
    with store.writing() as connection:
        made = tenants.create_org(connection, "research")
        hosted = tenants.create_org(connection, "Acme", tenant="T1")
    with store.reading() as connection:
        assert [one.name for one in tenants.orgs(connection)] == [DEFAULT_ORG, "research", "Acme"]
        assert tenants.org_by_id(connection, made.id) == made == tenants.org_by_name(connection, "research")
        assert tenants.org_by_tenant(connection, "T1") == hosted
        assert tenants.org_by_id(connection, "x") is None and tenants.org_by_tenant(connection, "x") is None
        with pytest.raises(UnknownError, match="Did you mean 'research'"):
            tenants.org_by_name(connection, "reserach")


@pytest.mark.parametrize("name", ["", " ", "a\nb", "x" * 129])
def test_what_cannot_be_a_name_is_refused(small: Store, name: str) -> None:
    with small.writing() as connection, pytest.raises(UsageError, match="organisation's name"):
        tenants.create_org(connection, name)


def test_a_taken_name_or_tenant_leaves_the_transaction_whole(store: Store) -> None:
    with store.writing() as connection:
        tenants.create_org(connection, "a", tenant="T1")
        for name, tenant in (("a", None), ("b", "T1")):
            with pytest.raises(UsageError, match="already"):
                tenants.create_org(connection, name, tenant=tenant)
        tenants.create_org(connection, "c")
    with store.reading() as connection:
        assert [one.name for one in tenants.orgs(connection)] == [DEFAULT_ORG, "a", "c"]


def test_settings_and_credentials_change_apart(store: Store) -> None:
    with store.writing() as connection:
        made = tenants.create_org(connection, "a")
        tenants.set_org(connection, made.id, settings={"s3_bucket": "mine"})
        tenants.set_org(connection, made.id, sealed=b"\x00sealed")
        found = tenants.org_by_id(connection, made.id)
        assert found and found.settings == {"s3_bucket": "mine"} and found.sealed == b"\x00sealed"
        assert "sealed" not in repr(found)
        tenants.set_org(connection, made.id, sealed=None)
        found = tenants.org_by_id(connection, made.id)
        assert found and found.settings == {"s3_bucket": "mine"} and found.sealed is None


def test_a_key_opens_its_own_organisation(store: Store) -> None:
    with store.writing() as connection:
        other = tenants.create_org(connection, "research")
    key_id, clear = make_key(store, other.id)
    assert find(store, clear) == Identity(other.id, "research", "ada@example.com", key_id, role=Role.MEMBER)
    assert len(clear) == 3 + 12 + 1 + 43 and clear.startswith(f"vk_{key_id}_")


def test_what_is_not_exactly_a_key_opens_nothing(small: Store) -> None:
    key_id, clear = make_key(small)
    _, second = make_key(small)
    swapped = clear[:16] + second[16:]
    last = "A" if clear[-1] != "A" else "B"
    for wrong in (
        "",
        "vk_",
        key_id,
        clear[:-1],
        clear + "x",
        clear[:-1] + last,
        swapped,
        f" {clear}",
        clear.upper(),
    ):
        assert find(small, wrong) is None, wrong


def test_revoked_and_expired_keys_open_nothing(store: Store) -> None:
    _, brief = make_key(store, expires_at=NOW)
    assert find(store, brief, NOW - 0.1) and find(store, brief, NOW) is None
    key_id, clear = make_key(store)
    with store.writing() as connection:
        assert tenants.revoke_key(connection, key_id, NOW) is True
        assert tenants.revoke_key(connection, key_id, NOW + 1) is False
        with pytest.raises(UnknownError, match="No key has the id"):
            tenants.revoke_key(connection, "nothing", NOW)
    assert find(store, clear) is None
    with store.reading() as connection:
        states = {key.id: key.state(NOW) for key in tenants.list_keys(connection)}
        revoked_at = {key.id: key.revoked_at for key in tenants.list_keys(connection)}
    assert states[key_id] == "revoked" and revoked_at[key_id] == NOW
    assert sorted(states.values()) == ["expired", "revoked"]


def test_last_use_is_written_at_most_once_a_minute(store: Store) -> None:
    key_id, _ = make_key(store)

    def last_used() -> float | None:
        with store.reading() as connection:
            return tenants.list_keys(connection)[0].last_used_at

    assert last_used() is None
    for at, seen in ((NOW, NOW), (NOW + 59, NOW), (NOW + 61, NOW + 61)):
        with store.writing() as connection:
            tenants.touch_key(connection, key_id, at)
        assert last_used() == seen


def test_keys_are_listed_by_organisation(store: Store) -> None:
    with store.writing() as connection:
        other = tenants.create_org(connection, "research")
    mine, theirs = make_key(store)[0], make_key(store, other.id)[0]
    with store.reading() as connection:
        assert [(key.id, key.org) for key in tenants.list_keys(connection)] == [
            (mine, DEFAULT_ORG),
            (theirs, "research"),
        ]
        assert [key.id for key in tenants.list_keys(connection, other.id)] == [theirs]


def test_the_clear_key_is_nowhere_in_the_database(tmp_path: Path) -> None:
    store = Store(tmp_path / "valkyrie.db")
    clear = [make_key(store)[1] for _ in range(3)]
    store.close()
    files = b"".join(file.read_bytes() for file in tmp_path.iterdir() if file.is_file())
    assert b"ada@example.com" in files
    assert not any(key[16:].encode() in files for key in clear)


def test_two_who_make_the_same_organisation_at_once_make_one(store: Store) -> None:
    outcome: list[str] = []

    def make() -> None:
        try:
            with store.writing() as connection:
                tenants.create_org(connection, "same", tenant="T")
                time.sleep(0.05)
            outcome.append("made")
        except UsageError:
            outcome.append("taken")

    threads = [threading.Thread(target=make) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcome) == ["made", "taken", "taken"]
