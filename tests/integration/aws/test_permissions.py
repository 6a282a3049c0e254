"""AWS as people really have it: keys that may do this and not that, roles, keys that are wrong."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.aws_server import REGION, Ministack
from valkyrie.artifact_store.protocol import LogName
from valkyrie.aws import services
from valkyrie.aws.s3 import S3Artifacts
from valkyrie.aws.services import CloudWatchLogs, SecretsManagerSource
from valkyrie.aws.session import AwsAccess, AwsKeys, AwsSession
from valkyrie.errors import UserError

pytestmark = pytest.mark.slow

pytest_plugins = ["tests.aws_server"]

ALL_OF_S3 = ("s3:PutObject", "s3:GetObject", "s3:ListBucket", "s3:DeleteObject")
ALL_OF_LOGS = ("logs:CreateLogGroup", "logs:CreateLogStream", "logs:PutLogEvents", "logs:PutRetentionPolicy")


@pytest.mark.parametrize("lacking", ALL_OF_S3)
def test_the_check_of_a_bucket_names_what_must_be_granted(ministack: Ministack, lacking: str) -> None:
    bucket = ministack.bucket()
    keys = ministack.user(*(action for action in ALL_OF_S3 if action != lacking))
    with pytest.raises(UserError, match=f"grant {lacking} on .*{bucket}") as caught:
        S3Artifacts(ministack.session(keys), bucket, "team").check()
    assert caught.value.cause == "artifacts_config"
    assert keys.access_key_id not in str(caught.value)


def test_the_rights_of_the_documentation_are_enough(ministack: Ministack, tmp_path: Path) -> None:
    bucket, file = ministack.bucket(), tmp_path / "file"
    file.write_bytes(b"x" * 6_000_000)
    keys = ministack.user(*ALL_OF_S3, *ALL_OF_LOGS, "secretsmanager:GetSecretValue", "lambda:InvokeFunction")
    session = ministack.session(keys)
    store = S3Artifacts(session, bucket)
    store.check()
    store.put("a/b", file)
    store.copy("a/b", "a/c")
    store.delete("a/")
    logs = CloudWatchLogs(session, "benchmarks", 30)
    logs.check()
    name = LogName(bucket, "task", 0, 1, time.time())
    logs.follow(name, file)
    logs.ended(name)
    logs.close(20)
    assert "".join(CloudWatchLogs(ministack.session(), "benchmarks", 30).read(name)) == "x" * 6_000_000
    ministack.secret("allowed", "value-1")
    assert SecretsManagerSource(session).get("allowed") == "value-1"
    services.check_function(session, ministack.function("def handler(event, context): return {}"))


@pytest.mark.parametrize("lacking", ALL_OF_LOGS)
def test_the_check_of_logs_names_what_must_be_granted(ministack: Ministack, lacking: str) -> None:
    keys = ministack.user(*(action for action in ALL_OF_LOGS if action != lacking))
    with pytest.raises(UserError, match=f"grant {lacking} on log-group:benchmarks/") as caught:
        CloudWatchLogs(ministack.session(keys), "benchmarks", 365).check()
    assert caught.value.cause == "logs_config"


def test_a_number_of_days_that_cloudwatch_does_not_know(ministack: Ministack) -> None:
    with pytest.raises(UserError, match="10 days; the next it can is 14"):
        CloudWatchLogs(ministack.session(), "benchmarks", 10).check()


def test_a_secret_one_may_not_read_is_a_problem_and_not_an_error(ministack: Ministack) -> None:
    ministack.secret("forbidden", "hush-hush")
    source = SecretsManagerSource(ministack.session(ministack.user("s3:PutObject")))
    assert source.get("forbidden") is None
    assert "grant secretsmanager:GetSecretValue on the secret forbidden" in source.problems[0]


def test_a_binary_secret_is_refused(ministack: Ministack) -> None:
    ministack.secret("binary", b"\x00\x01hush")
    source = SecretsManagerSource(ministack.session())
    assert source.get("binary") is None and source.get("binary#key") is None
    assert "binary" in source.problems[0] and "hush" not in source.problems[0]


def test_a_secret_is_fetched_once(ministack: Ministack) -> None:
    ministack.secret("changing", '{"a": "1"}')
    source = SecretsManagerSource(ministack.session())
    assert source.get("changing#a") == "1"
    ministack.secret("changing", '{"a": "2"}')
    assert source.get("changing#a") == "1"
    assert source.get("changing#b") is None
    assert "it has a." in source.problems[0]
    assert SecretsManagerSource(ministack.session()).get("changing#a") == "2"


def test_keys_that_are_wrong(ministack: Ministack) -> None:
    real = ministack.user(*ALL_OF_S3)
    for keys in (AwsKeys("AKIANOBODY", "hush-1"), AwsKeys(real.access_key_id, "hush-2")):
        session = ministack.session(keys)
        for act in (S3Artifacts(session, "any-bucket").check, session.identity):
            with pytest.raises(UserError, match="access keys are wrong") as caught:
                act()
            assert "hush" not in str(caught.value) and keys.access_key_id not in str(caught.value)


def test_a_bucket_that_is_not_there(ministack: Ministack) -> None:
    with pytest.raises(UserError, match="no such bucket"):
        S3Artifacts(ministack.session(), "nowhere-at-all").check()


@pytest.fixture
def server(ministack: Ministack, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is a server with keys of its own."""
    for name, value in ministack.environment.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("server")
def test_a_role_with_its_external_id(ministack: Ministack) -> None:
    """It may do what the role may, not what the server may."""
    role, bucket = ministack.role("org-7", *ALL_OF_S3), ministack.bucket()
    ministack.secret("of-the-server", "hush")
    session = AwsSession(AwsAccess(region=REGION, role_arn=role, external_id="org-7"))
    assert role.rpartition("/")[2] in session.identity()
    store = S3Artifacts(session, bucket)
    store.check()
    store.put_text("a", "x")
    assert b"".join(store.read("a")) == b"x"
    source = SecretsManagerSource(session)
    assert source.get("of-the-server") is None and "grant" in source.problems[0]


@pytest.mark.usefixtures("server")
def test_a_role_is_not_had_without_its_external_id(ministack: Ministack) -> None:
    role = ministack.role("org-7", *ALL_OF_S3)
    for wrong in ("org-8", None):
        session = AwsSession(AwsAccess(region=REGION, role_arn=role, external_id=wrong))
        for act in (session.identity, S3Artifacts(session, "any-bucket").check):
            with pytest.raises(UserError, match=r"assume the role .* grant sts:AssumeRole") as caught:
                act()
            assert "org-" not in str(caught.value)


def test_the_process_own_chain(ministack: Ministack, server: None) -> None:
    store = S3Artifacts(AwsSession(), ministack.bucket())
    store.check()
    assert store.place["region"] == REGION
    assert store.console_url("benchmarks/") is None


def test_addresses_in_the_console(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    session = AwsSession(AwsAccess(region="eu-west-1", keys=AwsKeys("a", "b")))
    store = S3Artifacts(session, "bucket", "team a")
    assert store.url("benchmarks/r1/x") == "s3://bucket/team a/benchmarks/r1/x"
    assert store.console_url("benchmarks/r1/") == (
        "https://eu-west-1.console.aws.amazon.com/s3/buckets/bucket?region=eu-west-1"
        "&prefix=team%20a%2Fbenchmarks%2Fr1%2F"
    )
    assert CloudWatchLogs(session, "benchmarks", 365).url("r1") == (
        "https://eu-west-1.console.aws.amazon.com/cloudwatch/home?region=eu-west-1"
        "#logsV2:log-groups/log-group/benchmarks$252Fr1"
    )
    link = store.link("a b", 60)
    assert link and link.startswith("https://bucket.s3.eu-west-1.amazonaws.com/team%20a/a%20b?")
    dotted = S3Artifacts(session, "my.bucket").link("k")
    assert dotted and dotted.startswith("https://s3.eu-west-1.amazonaws.com/my.bucket/k?")
