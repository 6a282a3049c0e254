"""`admin`: organisations, keys and the sealing key, on the database of this machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.cli.command_result import CommandResult
from valkyrie.errors import AccessError
from valkyrie.secrets.delivery import Sealer, parse_keys
from valkyrie.store import Store
from valkyrie.tenants.organisation import SelfHostedAuthenticator

Valk = Callable[..., CommandResult]


def identify(tmp_path: Path, key: str) -> str | None:
    store = Store(tmp_path / "home" / "valkyrie.db")
    try:
        return SelfHostedAuthenticator(store).identify(key, None).person
    finally:
        store.close()


def test_a_keys_life(valk: Valk, tmp_path: Path) -> None:
    assert "No keys yet" in valk("admin", "key", "list").err
    made = valk("admin", "key", "create", "--person", "ada@example.com")
    key = made.out.strip()
    assert made.code == 0 and made.out.count("\n") == 1 and key not in made.err
    assert "valk config init --mode self-hosted" in made.err and "shown this once" in made.err
    assert identify(tmp_path, key) == "ada@example.com"
    listed = valk("admin", "key", "list", "--json")
    (found,) = listed.json["keys"]
    assert (found["person"], found["org"], found["state"], found["name"]) == (
        "ada@example.com", "default", "active", "ada@example.com",
    )  # fmt: skip
    assert found["last_used_at"] is not None
    assert key not in listed.out and key not in valk("admin", "key", "list").out
    assert valk("admin", "key", "revoke", found["id"]).out == f"Revoked {found['id']}.\n"
    assert "before" in valk("admin", "key", "revoke", found["id"]).out
    with pytest.raises(AccessError):
        identify(tmp_path, key)
    said = valk("admin", "key", "revoke", "0" * 12)
    assert said.code == 2 and "No key has the id" in said.err
    files = b"".join(file.read_bytes() for file in (tmp_path / "home").iterdir() if file.is_file())
    assert key[16:].encode() not in files


def test_roles_and_who_did_what(valk: Valk) -> None:
    made = valk("admin", "key", "create", "--person", "ci", "--role", "reader", "--json").json
    assert made["role"] == "reader" and "reader" in valk("admin", "key", "list").out
    refused = valk("admin", "key", "create", "--person", "ci", "--role", "root")
    assert refused.code == 2 and "reader" in refused.err
    assert valk("admin", "key", "revoke", made["id"]).code == 0
    told = valk("admin", "audit", "--json").json["actions"]
    assert [(one["name"], one["outcome"], one["key_id"]) for one in told] == [
        ("admin_revoke_key", "done", None),
        ("admin_create_key", "done", None),
    ]
    assert all(one["person"] and one["subject"].startswith(made["id"]) for one in told)
    assert "admin_revoke_key" in valk("admin", "audit", "--about", made["id"], "--days", "1").out
    assert "Nothing was done" in valk("admin", "audit", "--person", "nobody").err
    assert valk("admin", "audit", "--org", "nope").code == 2


def test_a_key_with_a_limit(valk: Valk, tmp_path: Path) -> None:
    made = valk("admin", "key", "create", "--person", "ci", "--max-concurrency", "8")
    assert "at most 8 trials at once" in made.err
    store = Store(tmp_path / "home" / "valkyrie.db")
    assert SelfHostedAuthenticator(store).identify(made.out.strip(), None).max_concurrency == 8
    store.close()
    assert valk("admin", "key", "list", "--json").json["keys"][0]["max_concurrency"] == 8
    assert valk("admin", "key", "list").out.rstrip().endswith("8")
    assert valk("admin", "key", "create", "--max-concurrency", "0").code == 2


def test_organisations(valk: Valk, tmp_path: Path) -> None:
    said = valk("admin", "org", "create", "my team")
    assert said.code == 0 and "valkyrie admin key create --org 'my team'" in said.out
    again = valk("admin", "org", "create", "my team")
    assert again.code == 2 and "already" in again.err
    made = valk(
        "admin", "key", "create", "--org", "my team", "--expires", "30", "--name", "ci", "--json"
    ).json
    assert made["org"] == "my team" and made["key"].startswith(f"vk_{made['id']}_")
    assert 29.9 < (made["expires_at"] - time.time()) / 86_400 < 30.1
    wrong = valk("admin", "key", "create", "--org", "my taem")
    assert wrong.code == 2 and "Did you mean 'my team'?" in wrong.err
    orgs = valk("admin", "org", "list", "--json").json["orgs"]
    assert [(one["name"], one["active_keys"]) for one in orgs] == [("default", 0), ("my team", 1)]
    assert "my team" in valk("admin", "org", "list").out
    assert len(valk("admin", "key", "list", "--org", "default", "--json").json["keys"]) == 0
    assert "ci" in valk("admin", "key", "list", "--org", "my team").out


@pytest.mark.parametrize("words", [("--expires", "0"), ("--expires", "soon"), ("--person", "a\nb")])
def test_words_that_are_wrong_make_no_key(valk: Valk, words: tuple[str, str]) -> None:
    said = valk("admin", "key", "create", *words)
    assert said.code == 2 and said.out == ""
    assert valk("admin", "key", "list", "--json").json["keys"] == []


def test_the_database_can_be_elsewhere(valk: Valk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VALKYRIE_DATABASE_URL", f"sqlite:///{tmp_path / 'other' / 'tracker.db'}")
    assert valk("admin", "org", "create", "elsewhere").code == 0
    monkeypatch.delenv("VALKYRIE_DATABASE_URL")
    assert "elsewhere" not in valk("admin", "org", "list").out
    assert (tmp_path / "other" / "tracker.db").exists()


def test_the_sealing_key_is_one_line_that_works(valk: Valk) -> None:
    first, second = (valk("admin", "secret-key") for _ in range(2))
    assert first.out != second.out and first.err == "" and first.out.count("\n") == 1
    sealer = Sealer(parse_keys(first.out.strip()))
    assert sealer.open(sealer.seal({"a": "b"}, "x"), "x") == {"a": "b"}
    assert valk("admin", "secret-key", "--json").json["variable"] == "VALKYRIE_SECRET_KEY"
