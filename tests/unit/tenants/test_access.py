"""Keys of a self-hosted tracker, from the header to the person."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from valkyrie.domain import DEFAULT_ORG, Identity, Role
from valkyrie.errors import AccessError, StoreError, UsageError, UserError
from valkyrie.store import Store, tenants
from valkyrie.tenants.organisation import SelfHostedAuthenticator, open_authenticator


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path / "valkyrie.db")
    yield opened
    opened.close()


@pytest.fixture
def key(here: Store) -> tuple[str, str]:
    with here.writing() as connection:
        return tenants.create_key(connection, DEFAULT_ORG, "laptop", "ada@example.com")


def test_a_key_in_either_header_is_its_person(here: Store, key: tuple[str, str]) -> None:
    door, (key_id, clear) = SelfHostedAuthenticator(here), key
    whom = Identity(DEFAULT_ORG, DEFAULT_ORG, "ada@example.com", key_id, role=Role.MEMBER)
    assert door.identify(clear, None) == door.identify(None, clear) == door.identify(clear, clear) == whom
    assert door.mode == "self-hosted"


@pytest.mark.parametrize(
    ("shown", "error"),
    [
        ((None, None), AccessError),
        (("", ""), AccessError),
        (("vk_000000000000_" + "x" * 43, None), AccessError),
        ((None, "ü" * 20), AccessError),
        (("x" * 100_000, None), AccessError),
        (("first-key", "second-key"), UsageError),
    ],
)
def test_what_is_no_key_is_refused_without_showing_it(
    here: Store, shown: tuple[str | None, str | None], error: type[Exception]
) -> None:
    with pytest.raises(error) as caught:
        SelfHostedAuthenticator(here).identify(*shown)
    assert not any(part in str(caught.value) for part in shown if part)


def test_a_revoked_key_is_refused_at_once(here: Store, key: tuple[str, str]) -> None:
    door = SelfHostedAuthenticator(here)
    door.identify(key[1], None)
    with here.writing() as connection:
        tenants.revoke_key(connection, key[0], 1.0)
    with pytest.raises(AccessError):
        door.identify(key[1], None)


def test_use_is_written_down_once_a_minute(here: Store, key: tuple[str, str]) -> None:
    now = 1_800_000_000.0
    writes: list[float] = []

    class Counting:
        reading = here.reading

        @contextmanager
        def writing(self) -> Iterator[Any]:
            writes.append(now)
            with here.writing() as connection:
                yield connection

    door = SelfHostedAuthenticator(Counting(), clock=lambda: now)  # type: ignore[arg-type]
    for _ in range(50):
        door.identify(key[1], None)
    now += 61
    threads = [threading.Thread(target=door.identify, args=(key[1], None)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert writes == [1_800_000_000.0, 1_800_000_061.0]
    with here.reading() as connection:
        assert tenants.list_keys(connection)[0].last_used_at == now


def test_looking_goes_on_while_nothing_can_be_written(
    here: Store, key: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    class Full:
        reading = here.reading

        @contextmanager
        def writing(self) -> Iterator[Any]:
            raise StoreError("The disk is full.")
            yield

    assert SelfHostedAuthenticator(Full()).identify(key[1], None).person  # type: ignore[arg-type]
    assert "The disk is full" in caplog.text and key[1] not in caplog.text


def test_there_is_nothing_to_init(here: Store, key: tuple[str, str]) -> None:
    with pytest.raises(UsageError, match="valkyrie admin org create"):
        SelfHostedAuthenticator(here).init(key[1], None)
    with pytest.raises(AccessError):
        SelfHostedAuthenticator(here).init("nothing", None)


def test_the_environment_chooses_the_mode(here: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AUTH_REQUIRED", raising=False)
    monkeypatch.delenv("DESCOPE_PROJECT_ID", raising=False)
    assert open_authenticator(here).mode == "self-hosted"
    monkeypatch.setenv("AUTH_REQUIRED", "true")
    with pytest.raises(UserError, match="DESCOPE_PROJECT_ID"):
        open_authenticator(here)
    monkeypatch.setenv("DESCOPE_PROJECT_ID", "P1")
    assert open_authenticator(here).mode == "hosted"
