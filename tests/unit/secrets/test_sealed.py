"""Values encrypted at rest."""

from __future__ import annotations

import stat
import threading
from pathlib import Path

import pytest

from valkyrie.errors import StoreError, UserError
from valkyrie.secrets.delivery import VARIABLE, Sealer, find_sealer, new_key, parse_keys

VALUES = {"A": "hunter2-hunter2", "B": "schlüssel ☃\n\ud800"}


def sealer(*keys: str) -> Sealer:
    return Sealer(parse_keys(",".join(keys)))


def test_what_is_sealed_comes_back_and_shows_nothing() -> None:
    one = sealer(new_key())
    sealed = one.seal(VALUES, "run:1")
    assert one.open(sealed, "run:1") == VALUES
    assert b"hunter2" not in sealed and "hunter2" not in repr(one)
    assert one.seal(VALUES, "run:1") != sealed


@pytest.mark.parametrize("spoil", [b"", b"x", b"x" * 11, b"x" * 40])
def test_what_is_not_ours_is_refused_without_showing_it(spoil: bytes) -> None:
    with pytest.raises(StoreError, match=VARIABLE) as caught:
        sealer(new_key()).open(spoil, "run:1")
    assert caught.value.cause == "sealed"


def test_it_is_bound_to_what_it_is_about_and_to_every_byte() -> None:
    one = sealer(new_key())
    sealed = one.seal(VALUES, "secret:a:x")
    changed = sealed[:-1] + bytes([sealed[-1] ^ 1])
    for wrong, about in ((sealed, "secret:b:x"), (changed, "secret:a:x"), (sealed[:-1], "secret:a:x")):
        with pytest.raises(StoreError):
            one.open(wrong, about)


def test_keys_are_replaced_one_after_another() -> None:
    old, new = new_key(), new_key()
    sealed = sealer(old).seal(VALUES, "x")
    both = sealer(new, old)
    assert both.open(sealed, "x") == VALUES
    again = both.seal(VALUES, "x")
    assert sealer(new).open(again, "x") == VALUES
    with pytest.raises(StoreError):
        sealer(old).open(again, "x")


@pytest.mark.parametrize("text", ["", " , ", "short", "x" * 44, "ü" * 44, "QUJD" * 9])
def test_what_is_no_key_is_said_without_showing_it(text: str) -> None:
    with pytest.raises(UserError, match="valkyrie admin secret-key") as caught:
        parse_keys(text)
    assert not text.strip(" ,") or text not in str(caught.value)


def test_the_environments_key_comes_before_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = new_key()
    monkeypatch.setenv(VARIABLE, key)
    found = find_sealer(tmp_path / "server.key")
    assert found and sealer(key).open(found.seal(VALUES, "x"), "x") == VALUES
    assert not (tmp_path / "server.key").exists()
    monkeypatch.delenv(VARIABLE)
    assert find_sealer(None) is None


def test_servers_that_start_at_once_agree_on_one_private_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    file = tmp_path / "data" / "server.key"
    found: list[Sealer | None] = []
    threads = [threading.Thread(target=lambda: found.append(find_sealer(file))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sealers = [one for one in found if one]
    assert len(sealers) == 8
    sealed = sealers[0].seal(VALUES, "x")
    assert all(one.open(sealed, "x") == VALUES for one in sealers)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [one.name for one in file.parent.iterdir()] == ["server.key"]


def test_a_key_file_others_can_read_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    find_sealer(tmp_path / "server.key")
    (tmp_path / "server.key").chmod(0o640)
    with pytest.raises(UserError, match="chmod 600"):
        find_sealer(tmp_path / "server.key")
