"""Whose AWS it is: how a session is described, renewed, and kept quiet about its secrets."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

import pytest

from valkyrie.aws.session import AwsAccess, AwsKeys, AwsSession
from valkyrie.errors import InfrastructureError, UsageError, UserError

ROLE = "arn:aws:iam::123456789012:role/path/valkyrie"
ANSWER = """<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult>
<AssumedRoleUser><AssumedRoleId>AROA:x</AssumedRoleId><Arn>arn:aws:sts::123456789012:x</Arn></AssumedRoleUser>
<Credentials><AccessKeyId>ASIA{number}</AccessKeyId><SecretAccessKey>role-secret-{number}</SecretAccessKey>
<SessionToken>role-token-{number}</SessionToken><Expiration>{expires}</Expiration></Credentials>
</AssumeRoleResult></AssumeRoleResponse>"""


@pytest.fixture(autouse=True)
def no_aws_around(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent/config")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent/credentials")


class Sts(ThreadingHTTPServer):
    """Gives credentials that last as long as it is told, and remembers who asked for them."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _StsRequest)
        self.asked: list[dict[str, str]] = []
        self.signed_by: list[str] = []
        self.lasting = timedelta(hours=1)
        self.status = 200


class _StsRequest(BaseHTTPRequestHandler):
    server: Sts

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.server.asked.append({key: values[0] for key, values in parse_qs(body).items()})
        self.server.signed_by.append(self.headers["Authorization"])
        expires = (datetime.now(UTC) + self.server.lasting).strftime("%Y-%m-%dT%H:%M:%SZ")
        answer = ANSWER.format(number=len(self.server.asked), expires=expires).encode()
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def sts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sts]:
    server = Sts()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    "wrong",
    [
        {"region": "Frankfurt"},
        {"region": "eu-west-1/../x"},
        {"role_arn": "valkyrie"},
        {"role_arn": "arn:aws:iam::123456789012:user/me"},
        {"role_arn": ROLE, "external_id": "a b"},
        {"external_id": "without-a-role"},
        {"role_arn": ROLE, "session_name": "x y"},
        {"role_arn": ROLE, "keys": AwsKeys("AKIA", "s")},
    ],
)
def test_an_access_that_cannot_be_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        AwsAccess(**wrong)  # type: ignore[arg-type]


def test_nothing_secret_is_shown() -> None:
    keys = AwsKeys("AKIA-hush", "secret-hush", "token-hush")
    shown = f"{keys} {AwsAccess(keys=keys)!r} {AwsSession(AwsAccess(keys=keys))!r}"
    shown += repr(AwsSession(AwsAccess(role_arn=ROLE, external_id="external-hush")))
    assert "hush" not in shown
    assert ROLE in shown


def test_where_the_region_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="AWS_DEFAULT_REGION"):
        _ = AwsSession().region
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    assert AwsSession().region == "eu-west-1"
    monkeypatch.setenv("AWS_REGION", "eu-west-2")
    assert AwsSession().region == "eu-west-2"
    assert AwsSession(AwsAccess(region="eu-west-3")).region == "eu-west-3"


def test_an_endpoint_that_is_no_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "localhost:4566")
    with pytest.raises(UserError, match="AWS_ENDPOINT_URL"):
        AwsSession(AwsAccess(region="eu-west-1")).client("s3")


def test_given_keys_are_the_only_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of-the-process")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of-the-process")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of-the-process")
    given = AwsSession(AwsAccess(keys=AwsKeys("mine", "my-secret"))).credential()
    assert (given["access_key_id"], given["secret_access_key"], given["token"]) == ("mine", "my-secret", None)
    assert AwsSession().credential()["access_key_id"] == "of-the-process"


def test_no_credentials_at_all_is_said_with_the_way_out() -> None:
    with pytest.raises(UserError, match="valk config init"):
        AwsSession().credential()


def test_clients_are_made_once_for_all_threads() -> None:
    session = AwsSession(AwsAccess(region="eu-west-1", keys=AwsKeys("mine", "secret")))
    made: list[object] = []
    threads = [threading.Thread(target=lambda: made.append(session.client("sts"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 8 and len({id(client) for client in made}) == 1


def test_a_role_is_assumed_with_the_process_own_credentials(
    sts: Sts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIASERVER")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "server-secret")
    session = AwsSession(AwsAccess(region="eu-west-1", role_arn=ROLE, external_id="org-1"))
    given = session.credential()
    assert (given["access_key_id"], given["token"]) == ("ASIA1", "role-token-1")
    assert given["expires_at"] is not None
    assert session.credential()["access_key_id"] == "ASIA1"
    (asked,) = sts.asked
    assert (asked["RoleArn"], asked["ExternalId"]) == (ROLE, "org-1")
    assert (asked["RoleSessionName"], asked["DurationSeconds"]) == ("valkyrie", "3600")
    assert "Credential=AKIASERVER/" in sts.signed_by[0]


def test_a_role_is_assumed_again_before_it_expires(sts: Sts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIASERVER")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "server-secret")
    session = AwsSession(AwsAccess(region="eu-west-1", role_arn=ROLE))
    sts.lasting = timedelta(minutes=9)
    assert session.credential()["access_key_id"] == "ASIA1"
    sts.lasting = timedelta(hours=1)
    assert session.credential()["access_key_id"] == "ASIA2"
    assert session.credential()["access_key_id"] == "ASIA2"


def test_a_role_that_cannot_be_assumed(sts: Sts, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="credentials"):
        AwsSession(AwsAccess(region="eu-west-1", role_arn=ROLE)).credential()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIASERVER")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "server-secret")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("valkyrie.aws.session._STS_ATTEMPTS", 1)
    with pytest.raises(InfrastructureError, match="assume the role") as caught:
        AwsSession(AwsAccess(region="eu-west-1", role_arn=ROLE, external_id="hush")).credential()
    assert "hush" not in str(caught.value) and caught.value.__cause__ is None


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(UserError, match=r"pip install 'boto3") as caught:
        AwsSession(AwsAccess(region="eu-west-1")).client("s3")
    assert caught.value.cause == "missing_extra"


def test_importing_loads_no_vendor() -> None:
    modules = "s3 services session"
    script = f"""
import importlib, sys
for name in {modules.split()!r}: importlib.import_module("valkyrie.aws." + name)
print([name for name in ("boto3", "botocore", "obstore") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
