"""Hosted mode against a stand-in of the identity provider: the vendor's own SDK, signed tokens, a server."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest

from tests.integration.benchmark_service.conftest import serving
from tests.integration.tenants.identity import KEY, MANAGEMENT_KEY, OTHER_KEY, PROJECT, Descope
from valkyrie.domain import Role
from valkyrie.errors import AccessError, InfrastructureError, UnknownError
from valkyrie.store import Store, tenants
from valkyrie.tenants import hosted
from valkyrie.tenants.hosted import HostedAuthenticator, HostedSettings


@pytest.fixture
def descope() -> Descope:
    return Descope({KEY: {"T1": {}}, OTHER_KEY: {"T2": {}}, "K-both": {"T1": {}, "T2": {}}, "K-none": {}})


@pytest.fixture
def address(descope: Descope) -> Iterator[str]:
    with serving(descope.app()) as url:
        yield url


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path / "valkyrie.db")
    yield opened
    opened.close()


@pytest.fixture
def door(here: Store, address: str, monkeypatch: pytest.MonkeyPatch) -> HostedAuthenticator:
    monkeypatch.delenv("DESCOPE_MANAGEMENT_KEY", raising=False)
    return HostedAuthenticator(here, HostedSettings(PROJECT, address))


def test_an_organisation_is_made_once_by_init_and_never_by_asking(
    door: HostedAuthenticator, here: Store
) -> None:
    with pytest.raises(UnknownError, match="valk config init --mode hosted"):
        door.identify(KEY, None)
    first, second = door.init(KEY, None), door.init(None, KEY)
    assert (first.org_name, first.created, second.created) == ("T1", True, False)
    me = door.identify(KEY, None)
    with here.reading() as connection:
        made = tenants.org_by_tenant(connection, "T1")
    assert made and (me.org_id, me.org) == (made.id, "T1") and me.key_id == "id-acme"
    with pytest.raises(UnknownError):
        door.identify(OTHER_KEY, None)


def test_the_highest_role_of_the_tenant_counts(door: HostedAuthenticator, descope: Descope) -> None:
    door.init(KEY, None)
    for roles, wanted in (
        (["Reader"], Role.READER),
        (["reader", "member", "Tenant Admin"], Role.MEMBER),
        (["reader", "admin"], Role.ADMIN),
        (["Tenant Admin"], Role.ADMIN),
        ([], Role.ADMIN),
    ):
        token = descope.token({"T1": {"roles": roles}})
        assert door.identify(None, token).role is wanted, roles


@pytest.mark.parametrize("key", ["K-unknown-1234567890", "K-both", "K-none", "x" * 9000])
def test_keys_of_no_or_two_tenants_are_refused(
    door: HostedAuthenticator, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for ask in (door.identify, door.init):
        with pytest.raises(AccessError) as caught:
            ask(key, None)
        assert key not in str(caught.value)
    assert "K-unknown-1234567890" not in caplog.text


def test_a_key_that_many_show_at_once_is_exchanged_once(door: HostedAuthenticator, descope: Descope) -> None:
    door.init(KEY, None)
    fresh = HostedAuthenticator(door._store, door._settings)
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(fresh.identify(KEY, None))) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1 and len(found) == 10
    assert descope.asked.count("exchange") == 2


def test_an_answer_is_remembered_until_it_expires(here: Store, address: str, descope: Descope) -> None:
    now = time.time()
    door = HostedAuthenticator(here, HostedSettings(PROJECT, address), clock=lambda: now)
    door.init(KEY, None)
    del descope.keys[KEY]
    now += 299
    assert door.identify(KEY, None)
    now += 2
    with pytest.raises(AccessError):
        door.identify(KEY, None)
    descope.keys[OTHER_KEY], descope.lifetime = {"T2": {}}, 100
    door.init(OTHER_KEY, None)
    assert door.identify(OTHER_KEY, None)
    now = time.time() + 101  # the token's own end comes first
    del descope.keys[OTHER_KEY]
    with pytest.raises(AccessError):
        door.identify(OTHER_KEY, None)


def test_sessions_of_people(door: HostedAuthenticator, descope: Descope) -> None:
    token = descope.token({"T1": {"name": "Acme"}}, email="ada@example.com")
    joined = door.init(None, token)
    assert (joined.org_name, joined.person) == ("Acme", "ada@example.com")
    me = door.identify(None, token)
    assert me.person == "ada@example.com" and me.key_id is None
    chosen = descope.token({"T1": {}, "T2": {}}, dct="T1", name="Ada")
    assert door.identify(None, chosen).person == "Ada"
    assert descope.asked == []


def test_tokens_that_are_none_are_refused(door: HostedAuthenticator, descope: Descope) -> None:
    descope.lifetime = -3600
    expired = descope.token({"T1": {}})
    descope.lifetime = 3600
    none = jwt.encode({"tenants": {"T1": {}}}, None, algorithm="none", headers={"kid": "k1"})  # type: ignore[arg-type]
    shared = jwt.encode({"tenants": {"T1": {}}}, "k1" * 20, algorithm="HS256", headers={"kid": "k1"})
    for token in (
        descope.token({"T1": {}}, forged=True),
        descope.token({"T1": {}, "T2": {}}),
        descope.token({"T1": {}, "T2": {}}, dct="T3"),
        descope.token({"T1": {}}, drn="DSR"),
        expired,
        none,
        shared,
        "a.b.c",
        "..",
    ):
        with pytest.raises(AccessError) as caught:
            door.init(None, token)
        assert token not in str(caught.value)


def test_a_key_and_a_session_together_are_refused(door: HostedAuthenticator, descope: Descope) -> None:
    with pytest.raises(AccessError, match="not both"):
        door.identify(KEY, descope.token({"T1": {}}))
    with pytest.raises(AccessError, match="No key was sent"):
        door.identify(None, None)
    assert descope.asked == []


def test_an_identity_provider_that_is_down_is_not_a_wrong_key(
    door: HostedAuthenticator, descope: Descope, here: Store, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "valkyrie")
    for status in (500, 429):
        descope.status = status
        with pytest.raises(InfrastructureError, match="try again") as caught:
            door.identify(KEY, None)
        assert caught.value.retry_after
    gone = HostedAuthenticator(here, HostedSettings(PROJECT, "http://127.0.0.1:1"))
    with pytest.raises(InfrastructureError):
        gone.identify(KEY, None)
    assert KEY not in caplog.text
    descope.status = 200
    assert door.init(KEY, None).created


def test_while_the_identity_provider_hangs_the_remembered_are_let_in(
    door: HostedAuthenticator, descope: Descope, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosted, "_TURN_S", 0.1)
    door.init(KEY, None)
    descope.hangs = asyncio.Event()
    refused: list[Exception] = []

    def ask(number: int) -> None:
        try:
            door.identify(f"K-stranger-{number}", None)
        except (AccessError, InfrastructureError) as error:
            refused.append(error)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    while len(refused) < 4:
        time.sleep(0.01)
    assert all(isinstance(error, InfrastructureError) for error in refused)
    assert door.identify(KEY, None).org == "T1"
    assert descope.loop
    descope.loop.call_soon_threadsafe(descope.hangs.set)
    for thread in threads:
        thread.join()
    assert len(refused) == 8


def test_with_a_management_key_people_and_tenants_have_names(
    here: Store, address: str, descope: Descope
) -> None:
    descope.users["U7"] = "ada@example.com"
    door = HostedAuthenticator(here, HostedSettings(PROJECT, address, MANAGEMENT_KEY))
    joined = door.init(KEY, None)
    assert (joined.org_name, joined.person) == ("Acme Inc.", "ada@example.com")
    joined = door.init(OTHER_KEY, None)
    assert joined.org_name == "Acme Inc. (T2)" and joined.created
    assert MANAGEMENT_KEY not in repr(door._settings)


def test_a_management_key_that_is_no_good_keeps_nobody_out(
    here: Store, address: str, caplog: pytest.LogCaptureFixture
) -> None:
    door = HostedAuthenticator(here, HostedSettings(PROJECT, address, "wrong-management-key"))
    assert door.init(KEY, None).person == "key id-acme"
    assert "wrong-management-key" not in caplog.text
