"""The user's own things: secrets, agents, places, and when AWS is used at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from valkyrie.config import values
from valkyrie.domain import Identity
from valkyrie.errors import MissingSecretError, StoreError, UserError
from valkyrie.secrets import resolve
from valkyrie.store.layout import DataFolder
from valkyrie.tenants.organisation import (
    EmbeddedOrganisation,
    any_session,
    configured_keys,
    keep_keys,
    kept_keys_path,
    open_organisation,
    own_session,
)

KEYS = {"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE1234", "AWS_SECRET_ACCESS_KEY": "planted-secret-half"}


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*os.environ]:
        if name.startswith(("AWS_", "VALKYRIE_")) or name in (
            "S3_BUCKET",
            "LOG_GROUP",
            "LOG_RETENTION_POLICY",
        ):
            monkeypatch.delenv(name)
    monkeypatch.setenv("VALKYRIE_CONFIG_PATH", str(tmp_path / "config" / "valkyrie.yaml"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def mine(tmp_path: Path) -> EmbeddedOrganisation:
    return EmbeddedOrganisation(DataFolder(tmp_path / "home"))


def test_without_aws_it_is_environment_dotenv_and_store(
    mine: EmbeddedOrganisation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FROM_ENV", "one")
    (tmp_path / ".env").write_text("FROM_DOTENV=two\n")
    mine.set_secret("from-store", "three")
    wanted = {"FROM_ENV": "FROM_ENV", "FROM_DOTENV": "FROM_DOTENV", "X": "from-store"}
    assert dict(resolve(wanted, mine.secret_sources()).secrets) == {
        "FROM_ENV": "one", "FROM_DOTENV": "two", "X": "three",
    }  # fmt: skip
    assert len(mine.secret_sources()) == 3 and mine.aws() is None
    assert mine.artifacts() is None and mine.logs() is None
    assert [one.name for one in mine.secrets()] == ["from-store"] and mine.variables()["FROM_ENV"] == "one"
    mine.remove_secret("from-store")
    assert mine.secrets() == [] and mine.trusted


def test_whoever_has_aws_in_the_environment_is_told_that_it_is_not_asked(
    mine: EmbeddedOrganisation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "work")
    with pytest.raises(MissingSecretError, match="not asked, although AWS_PROFILE is set"):
        resolve({"KEY": "in-aws"}, mine.secret_sources())
    assert mine.aws() is None


def test_agents_and_uploads_are_in_the_data_folder(mine: EmbeddedOrganisation, tmp_path: Path) -> None:
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / "contract.yaml").write_text(
        "name: agent\ninstall_cmd: 'true'\nrun_cmd: cat {problem_statement_path}\n"
    )
    mine.library().push(tmp_path / "agent")
    assert (tmp_path / "home" / "agents" / "agent.zip").is_file()
    assert mine.uploads() == tmp_path / "home" / "uploads"


def test_a_shared_folder_takes_agents_and_artifacts(
    mine: EmbeddedOrganisation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VALKYRIE_ARTIFACTS_FOLDER", str(tmp_path / "share"))
    store = mine.artifacts()
    logs = mine.logs()
    assert store and logs and logs.place == {"kind": "files", "folder": str(tmp_path / "share" / "logs")}
    store.put_text("benchmarks/r1/x.json", "{}")
    monkeypatch.delenv("VALKYRIE_ARTIFACTS_FOLDER")
    later = EmbeddedOrganisation(DataFolder(tmp_path / "home"))
    assert later.artifacts() is None
    again = later.artifacts(store.place)
    assert again and b"".join(again.read("benchmarks/r1/x.json")) == b"{}"


def test_places_nobody_knows_are_said(mine: EmbeddedOrganisation) -> None:
    for ask in (mine.artifacts, mine.logs):
        with pytest.raises(StoreError, match="does not know: 'tape'"):
            ask({"kind": "tape"})


def test_logs_go_to_cloudwatch_with_the_bucket_unless_off(tmp_path: Path) -> None:
    values.change({"S3_BUCKET": "mine", "AWS_DEFAULT_REGION": "eu-west-1", "LOG_GROUP": "team/runs"})
    one = EmbeddedOrganisation(DataFolder(tmp_path))
    artifacts, logs = one.artifacts(), one.logs()
    assert artifacts and artifacts.place == {
        "kind": "s3", "bucket": "mine", "prefix": "", "region": "eu-west-1",
    }  # fmt: skip
    assert logs and (logs.place["group"], logs.place["retention_days"]) == ("team/runs", 365)
    logs.close()
    values.change({"LOG_GROUP": "off"})
    assert EmbeddedOrganisation(DataFolder(tmp_path)).logs() is None


@pytest.mark.parametrize(
    ("file", "env", "here", "on_a_server"),
    [
        ({}, {}, False, False),
        ({}, {"AWS_DEFAULT_REGION": "eu-west-1"}, False, True),
        ({}, {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y"}, False, False),
        ({}, {"S3_BUCKET": "mine"}, True, True),
        ({"S3_BUCKET": "mine"}, {}, True, True),
        ({"AWS_DEFAULT_REGION": "eu-west-1"}, {}, True, True),
        (KEYS, {}, True, True),
    ],
)
def test_aws_is_used_only_where_it_is_configured(
    monkeypatch: pytest.MonkeyPatch, file: dict[str, str], env: dict[str, str], here: bool, on_a_server: bool
) -> None:
    values.change(file)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert (own_session() is not None) is here
    assert (own_session(server=True) is not None) is on_a_server


def test_kept_keys_are_private_and_no_secrets_of_agents(mine: EmbeddedOrganisation) -> None:
    undo = keep_keys({**KEYS, "AWS_SESSION_TOKEN": "first"})
    assert stat.S_IMODE(kept_keys_path().stat().st_mode) == 0o600
    session = own_session()
    assert session and session.access.keys and session.access.keys.session_token == "first"
    assert "planted" not in repr(session)
    keep_keys(KEYS)
    assert configured_keys() == KEYS
    undo()
    assert configured_keys() == {}
    keep_keys(KEYS)
    with pytest.raises(UserError, match="without a value"):
        resolve({"X": "AWS_SECRET_ACCESS_KEY"}, mine.secret_sources()[:3])
    assert mine.secrets() == []


def test_whose_keys_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    keep_keys({**KEYS, "AWS_ACCESS_KEY_ID": "AKIDKEPT"})
    values.change({**KEYS, "AWS_DEFAULT_REGION": "eu-west-1"})

    def used() -> str | None:
        keys = any_session().access.keys
        return keys.access_key_id if keys else None

    assert used() == KEYS["AWS_ACCESS_KEY_ID"]
    values.change(dict.fromkeys(KEYS))
    assert used() == "AKIDKEPT"
    monkeypatch.setenv("AWS_PROFILE", "work")
    assert used() is None
    monkeypatch.delenv("AWS_PROFILE")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDENV")
    assert used() is None


def test_half_a_key_is_said_without_showing_it() -> None:
    values.change({"AWS_SECRET_ACCESS_KEY": "planted-secret-half"})
    with pytest.raises(UserError, match="belong together") as caught:
        own_session()
    assert "planted" not in str(caught.value)


def test_an_executor_uses_what_it_was_handed(tmp_path: Path) -> None:
    handed = {**KEYS, "AWS_DEFAULT_REGION": "eu-west-1", "AWS_ENDPOINT_URL": "http://127.0.0.1:1"}
    one = open_organisation(Identity(), DataFolder(tmp_path), credentials=handed)
    session = one.aws()
    assert session and session.access.keys and session.access.keys.access_key_id == KEYS["AWS_ACCESS_KEY_ID"]
    assert (session.region, session.endpoint) == ("eu-west-1", "http://127.0.0.1:1")
    assert open_organisation(Identity(), DataFolder(tmp_path), credentials={}).aws() is not None
    assert one.artifacts() is None
