"""`config init`: where each value comes from, what is checked, and that it is written whole or not at all."""

from __future__ import annotations

import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pexpect
import pytest

from tests.unit.cli.command_result import CommandResult
from tests.unit.cli.tracker_server import KEY, ME, TrackerServer
from valkyrie.config import values

Valk = Callable[..., CommandResult]


@pytest.fixture(autouse=True)
def no_cloud(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "AWS_PROFILE",
        "AWS_REGION",
        "AWS_ENDPOINT_URL",
        "VALKYRIE_ROLE_ARN",
        "VALKYRIE_DATABASE_URL",
    ):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    return tmp_path / "config" / "valkyrie.yaml"


@pytest.fixture
def door() -> Iterator[TrackerServer]:
    with TrackerServer().running() as running:
        yield running


@pytest.fixture
def at_door(door: TrackerServer, monkeypatch: pytest.MonkeyPatch) -> TrackerServer:
    monkeypatch.setenv("TRACKER_SERVICE_URL", door.url)
    monkeypatch.setenv("VALKYRIE_API_KEY", KEY)
    return door


def test_local_needs_nothing(valk: Valk, config_file: Path) -> None:
    said = valk("config", "init", "--yes")
    assert said.code == 0 and "valk demo" in said.out and "the mode is local" in said.err
    assert config_file.read_text() == "mode: local\n"
    assert stat.S_IMODE(config_file.stat().st_mode) == 0o600


def test_a_tracker_in_the_environment_is_not_passed_over_for_local(
    valk: Valk, at_door: TrackerServer, config_file: Path
) -> None:
    """A script's answers are not read: without a mode nobody knows who runs that tracker."""
    _ = at_door
    said = valk("config", "init")
    assert said.code == 2 and "--mode self-hosted" in said.err and not config_file.exists()
    said = valk("config", "init", "--mode", "local")
    assert said.code == 0 and "still names a tracker" in said.err


def test_all_that_is_missing_is_said_at_once(valk: Valk, config_file: Path) -> None:
    said = valk("config", "init", "--mode", "self-hosted")
    assert said.code == 2 and not config_file.exists()
    assert "TRACKER_SERVICE_URL" in said.err and "VALKYRIE_API_KEY" in said.err
    assert "valk config set tracker_url" in said.err


def test_self_hosted_from_the_environment(valk: Valk, at_door: TrackerServer, config_file: Path) -> None:
    said = valk("config", "init", "--mode", "self-hosted")
    assert said.code == 0 and KEY not in said.out + said.err
    assert "(environment: TRACKER_SERVICE_URL)" in said.out and "api_key = vk_0***" in said.out
    assert "version 9.9" in said.out and "ada@example.com of organisation research" in said.out
    assert values.load() == {"mode": "self-hosted", "tracker_url": at_door.url, "api_key": KEY}
    assert stat.S_IMODE(config_file.stat().st_mode) == 0o600


def test_again_from_the_file(
    valk: Valk, door: TrackerServer, config_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values.change({"tracker_url": door.url, "api_key": KEY})
    said = valk("config", "init", "--mode", "self-hosted", "--json")
    assert said.code == 0 and KEY not in said.out
    assert {one["key"]: one["source"] for one in said.json["values"]} == {
        "tracker_url": "config file", "api_key": "config file",
    }  # fmt: skip
    monkeypatch.setenv("TRACKER_SERVICE_URL", "http://127.0.0.1:1")
    said = valk("config", "init", "--mode", "self-hosted")
    assert said.err.count("TRACKER_SERVICE_URL in the environment differs") == 1
    assert values.load()["tracker_url"] == door.url


def test_a_key_that_is_no_longer_good_gives_way_to_the_environments(
    valk: Valk, at_door: TrackerServer, config_file: Path
) -> None:
    values.change({"mode": "self-hosted", "tracker_url": at_door.url, "api_key": "vk_old_revoked"})
    said = valk("config", "init")
    assert said.code == 0 and "api_key (config file): This key is unknown" in said.err
    assert "api_key = vk_0***  (environment: VALKYRIE_API_KEY)" in said.out
    assert values.load()["api_key"] == KEY and "vk_old_revoked" not in said.out + said.err
    at_door.key = "another"
    before = config_file.read_text()
    assert valk("config", "init").code == 1 and config_file.read_text() == before


def test_a_tracker_without_keys_needs_none(
    valk: Valk, door: TrackerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    door.key = None
    monkeypatch.setenv("TRACKER_SERVICE_URL", door.url)
    assert valk("config", "init", "--mode", "self-hosted").code == 0
    assert values.load() == {"mode": "self-hosted", "tracker_url": door.url}


def test_what_is_no_good_is_not_written(valk: Valk, at_door: TrackerServer, config_file: Path) -> None:
    at_door.key = "another"
    said = valk("config", "init", "--mode", "self-hosted")
    assert said.code == 1 and "This key is unknown" in said.err and KEY not in said.out + said.err
    at_door.key = KEY
    at_door.answers["GET /v1/me"] = (200, {**ME, "mode": "hosted"})
    said = valk("config", "init", "--mode", "self-hosted")
    assert said.code == 1 and "--mode hosted" in said.err
    for body in ({"status": "error"}, b"<html>", ["ok"]):
        at_door.answers["GET /health"] = (200, body)
        assert valk("config", "init", "--mode", "self-hosted").code == 1
    assert not config_file.exists()


def test_a_tracker_that_is_not_there(valk: Valk, config_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKER_SERVICE_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("VALKYRIE_API_KEY", KEY)
    said = valk("config", "init", "--mode", "hosted")
    assert said.code == 1 and "does not answer" in said.err and not config_file.exists()
    monkeypatch.setenv("TRACKER_SERVICE_URL", "nowhere")
    said = valk("config", "init", "--mode", "hosted")
    assert said.code == 2 and "TRACKER_SERVICE_URL" in said.err


def test_hosted_makes_the_organisation_known(valk: Valk, at_door: TrackerServer) -> None:
    said = valk("config", "init", "--mode", "hosted")
    assert said.code == 0 and "organisation Acme was made" in said.out
    assert len(at_door.said("POST /v1/init")) == 1 and at_door.said("PATCH /v1/organisation") == []
    assert values.load()["mode"] == "hosted"
    at_door.refuse("POST /v1/init", 405, "UsageError", "This tracker is self-hosted.")
    said = valk("config", "init", "--mode", "hosted")
    assert said.code == 1 and "--mode self-hosted" in said.err


def test_hosted_with_a_role(valk: Valk, at_door: TrackerServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    said = valk("config", "init", "--mode", "hosted", "--aws", "role")
    assert said.code == 2 and "VALKYRIE_ROLE_ARN" in said.err
    monkeypatch.setenv("VALKYRIE_ROLE_ARN", "arn:aws:iam::123456789012:role/x")
    monkeypatch.setenv("S3_BUCKET", "mine")
    said = valk("config", "init", "--mode", "hosted", "--aws", "role")
    assert said.code == 0 and "valkyrie-o1" in said.out
    assert at_door.said("PATCH /v1/organisation") == [
        {"role_arn": "arn:aws:iam::123456789012:role/x", "aws_region": "eu-west-1", "s3_bucket": "mine"}
    ]
    assert "S3_BUCKET" not in values.load()


def test_hosted_with_keys_that_are_sent_once_and_kept_nowhere(
    valk: Valk, at_door: TrackerServer, config_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    monkeypatch.setenv("S3_BUCKET", "mine")
    said = valk("config", "init", "--mode", "hosted", "--aws", "keys")
    assert said.code == 2 and "AWS_ACCESS_KEY_ID" in said.err and not config_file.exists()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "planted-secret-half")
    said = valk("config", "init", "--mode", "hosted", "--aws", "keys")
    assert said.code == 0 and "planted" not in said.out + said.err
    assert at_door.said("PUT /v1/organisation/credentials") == [
        {"aws_access_key_id": "AKIDEXAMPLE", "aws_secret_access_key": "planted-secret-half"}
    ]
    assert at_door.said("PATCH /v1/organisation") == [
        {"aws_region": "eu-west-1"}, {"aws_region": "eu-west-1", "s3_bucket": "mine"},
    ]  # fmt: skip
    assert [file.name for file in config_file.parent.iterdir()] == ["valkyrie.yaml"]
    assert "planted" not in config_file.read_text()
    at_door.refuse("PATCH /v1/organisation", 422, "UserError", "AWS refused to write s3://mine.")
    said = valk("config", "init", "--mode", "hosted", "--aws", "keys")
    assert said.code == 1 and "AWS refused to write s3://mine." in said.err


def test_another_mode_forgets_the_last_ones_tracker(
    valk: Valk, door: TrackerServer, config_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values.change(
        {"mode": "hosted", "tracker_url": "https://hosted.example", "api_key": "old", "webhook": "w"}
    )
    said = valk("config", "init", "--mode", "self-hosted")
    assert said.code == 2 and "tracker_url" in said.err and "api_key" in said.err
    monkeypatch.setenv("TRACKER_SERVICE_URL", door.url)
    monkeypatch.setenv("VALKYRIE_API_KEY", KEY)
    assert valk("config", "init", "--mode", "self-hosted").code == 0
    assert values.load()["api_key"] == KEY
    monkeypatch.setenv("W", "x")
    values.change({"webhook": "W"})
    assert valk("config", "init", "--mode", "local").code == 0
    assert values.load() == {"mode": "local", "webhook": "W"}


def test_the_secret_of_the_webhook_must_be_there(valk: Valk, config_file: Path) -> None:
    values.change({"webhook": "slack-url"})
    said = valk("config", "init", "--mode", "local")
    assert said.code == 1 and "valk secret set slack-url" in said.err and "mode" not in values.load()
    valk("secret", "set", "slack-url", "--stdin", stdin="https://hooks.example/x")
    said = valk("config", "init", "--mode", "local")
    assert said.code == 0 and "hooks.example" not in said.out


def test_modes_and_secret_keys_in_the_other_commands(valk: Valk, config_file: Path) -> None:
    said = valk("config", "set", "mode", "hosted")
    assert said.code == 2 and "valk config init --mode hosted" in said.err
    said = valk("config", "set", "api_key", "hunter22-hunter22")
    assert said.code == 0 and "hunter22" not in said.out and "history" in said.err
    said = valk("config", "set", "api_key", "-", stdin="hunter33-hunter33\n")
    assert said.code == 0 and said.err == "" and values.load()["api_key"] == "hunter33-hunter33"
    assert valk("config", "set", "api_key", stdin="\n").code == 2
    assert valk("config", "get", "api_key").out == "hunt***\n"
    assert valk("config", "get", "api_key", "--json").json["value"] == "hunt***"
    assert valk("config", "get", "api_key", "--show").out == "hunter33-hunter33\n"
    for said in (valk("config", "list"), valk("config", "list", "--json")):
        assert "hunt***" in said.out and "hunter33" not in said.out
    assert valk("config", "set", "webhook").code == 2
    values.change({"mode": "self-hosted", "tracker_url": "http://t"})
    said = valk("config", "remove", "api_key")
    assert said.code == 2 and "valk config init --mode local" in said.err
    values.change({"webhook": "s"})
    assert valk("config", "remove", "webhook").out == "Removed webhook.\n"


def test_names_of_earlier_files_are_said(valk: Valk, config_file: Path) -> None:
    config_file.parent.mkdir()
    config_file.write_text("DAYTONA_SECRET_NAME: my-daytona\n")
    assert "sandbox_providers.daytona" in valk("config", "list").err
    assert "my-daytona" in valk("config", "provider", "list").out


@pytest.fixture
def spawn(program_env: dict[str, str]) -> Iterator[Callable[..., pexpect.spawn[str]]]:
    children: list[pexpect.spawn[str]] = []

    def start(*words: str, **env: str) -> pexpect.spawn[str]:
        child = pexpect.spawn(
            sys.executable,
            ["-m", "valkyrie", "config", "init", *words],
            env={**program_env, **env},
            encoding="utf-8",
            timeout=30,
            dimensions=(40, 200),
        )
        children.append(child)
        return child

    yield start
    for child in children:
        child.close(force=True)


def test_a_person_is_asked_and_gets_another_chance(
    spawn: Callable[..., pexpect.spawn[str]], door: TrackerServer, config_file: Path
) -> None:
    child = spawn()
    child.expect("Mode .*local.*: ")
    child.sendline("self-hosted")
    child.expect("Address of the tracker: ")
    child.sendline("nowhere")
    child.expect("an http.s. URL with a host is wanted")
    child.expect("Address of the tracker: ")
    child.sendline("http://127.0.0.1:1")
    child.expect("does not answer")
    child.expect("Address of the tracker: ")
    child.sendline(door.url)
    child.expect("API key: ")
    child.sendline("wrong-key-1234")
    child.expect("This key is unknown")
    assert not config_file.exists()
    child.expect("API key: ")
    child.sendline(KEY)
    child.expect("Written to")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0
    assert values.load() == {"mode": "self-hosted", "tracker_url": door.url, "api_key": KEY}


@pytest.mark.parametrize("end", ["\r", "\x03"])
def test_an_empty_answer_or_an_interrupt_writes_nothing(
    spawn: Callable[..., pexpect.spawn[str]], door: TrackerServer, config_file: Path, end: str
) -> None:
    child = spawn("--mode", "hosted", TRACKER_SERVICE_URL=door.url)
    child.expect("API key: ")
    child.send(end)
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == (1 if end == "\r" else 130)
    assert not config_file.exists()
