"""`config init` in mode local, with a bucket: checked on a whole AWS on loopback."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest

from tests.aws_server import ROOT_KEYS, Ministack
from valkyrie.cli.main import main
from valkyrie.config import values
from valkyrie.store.layout import DataFolder
from valkyrie.tenants.organisation import EmbeddedOrganisation, kept_keys_path

pytestmark = pytest.mark.slow

pytest_plugins = ["tests.aws_server"]


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*os.environ]:
        if name.startswith(("AWS_", "VALKYRIE_")) or name in (
            "S3_BUCKET",
            "LOG_GROUP",
            "TRACKER_SERVICE_URL",
        ):
            monkeypatch.delenv(name)
    monkeypatch.setenv("VALKYRIE_CONFIG_PATH", str(tmp_path / "config" / "valkyrie.yaml"))
    monkeypatch.setenv("VALKYRIE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.chdir(tmp_path)


def test_nobody_to_ask(
    ministack: Ministack, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket = ministack.bucket()
    for name, value in {**ministack.environment, "S3_BUCKET": bucket}.items():
        monkeypatch.setenv(name, value)
    assert main(["config", "init", "--mode", "local", "--yes"]) == 0
    said = capsys.readouterr().out
    assert f"s3://{bucket} can be written" in said and "they are not kept" in said
    assert values.load() == {"mode": "local", "S3_BUCKET": bucket, "AWS_DEFAULT_REGION": "us-east-1"}
    assert not kept_keys_path().exists()
    monkeypatch.setenv("S3_BUCKET", "not-there")
    values.change(dict.fromkeys(("S3_BUCKET", "mode", "AWS_DEFAULT_REGION")))
    assert main(["config", "init", "--mode", "local", "--yes"]) == 1
    assert "not-there" in capsys.readouterr().err and values.load() == {}
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    assert main(["config", "init", "--mode", "local", "--yes"]) == 2
    assert "AWS_DEFAULT_REGION" in capsys.readouterr().err


@pytest.fixture
def child(ministack: Ministack) -> Iterator[pexpect.spawn[str]]:
    inherited = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    started: pexpect.spawn[str] = pexpect.spawn(
        sys.executable,
        ["-m", "valkyrie", "config", "init", "--mode", "local"],
        env={**inherited, "AWS_ENDPOINT_URL": ministack.endpoint, "TERM": "dumb"},
        encoding="utf-8",
        timeout=30,
        dimensions=(40, 200),
    )
    yield started
    started.close(force=True)


def test_keys_that_are_typed_are_kept_apart_from_the_config(
    ministack: Ministack, child: pexpect.spawn[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = ministack.bucket()
    ministack.secret(f"slack/{bucket}", "https://hooks.example/planted")
    for answers in (("not-there", "AKIDNOBODY", "planted-wrong-half"), (bucket, *_root())):
        child.expect("S3 bucket for agents and artifacts .*: ")
        child.sendline(answers[0])
        child.expect("AWS region: ")
        child.sendline("us-east-1")
        child.expect("AWS access key id.*: ")
        child.sendline(answers[1])
        child.expect("AWS secret access key: ")
        child.sendline(answers[2])
        child.expect("AWS session token .*: ")
        child.sendline("")
        assert child.expect(["wrong or were revoked", "can be written"]) == (answers[0] == bucket)
    child.expect("Slack webhook URL .*: ")
    child.sendline("not-a-secret")
    child.expect("valk secret set not-a-secret")
    child.expect("Slack webhook URL .*: ")
    child.sendline(f"slack/{bucket}")
    child.expect("is there")
    child.expect("Written to")
    child.expect(pexpect.EOF)
    assert "planted" not in (child.before or "")
    monkeypatch.setenv("AWS_ENDPOINT_URL", ministack.endpoint)
    assert values.load() == {
        "mode": "local",
        "S3_BUCKET": bucket,
        "AWS_DEFAULT_REGION": "us-east-1",
        "webhook": f"slack/{bucket}",
    }
    assert stat.S_IMODE(kept_keys_path().stat().st_mode) == 0o600
    store = EmbeddedOrganisation(DataFolder(tmp_path / "home")).artifacts()
    assert store
    store.check()


def _root() -> tuple[str, str]:
    return ROOT_KEYS.access_key_id, ROOT_KEYS.secret_access_key
