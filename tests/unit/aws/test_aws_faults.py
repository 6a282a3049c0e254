"""Every way AWS says no, as both SDKs hear it, becomes an error of ours that says who must act."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from valkyrie.aws.s3 import S3Artifacts
from valkyrie.aws.services import SecretsManagerSource
from valkyrie.aws.session import AwsAccess, AwsKeys, AwsSession
from valkyrie.errors import InfrastructureError, MissingSecretError, UnknownError, UserError
from valkyrie.secrets import resolve

HUSH = ("hush-key", "hush-secret", "hush-token")


class Aws(ThreadingHTTPServer):
    """Gives one answer to everything."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.status, self.code = 200, ""
        self.session = session_at(self.server_port)


class _Request(BaseHTTPRequestHandler):
    server: Aws

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        xml = self.headers.get("X-Amz-Target") is None
        body = f'{{"__type": "{self.server.code}", "message": "{" ".join(HUSH)}"}}'
        if xml:
            body = f"<Error><Code>{self.server.code}</Code><Message>{' '.join(HUSH)}</Message></Error>"
        if not self.server.code:
            body = ""
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body.encode())

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _answer

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture(scope="module")
def aws() -> Iterator[Aws]:
    server = Aws()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def session_at(port: int) -> AwsSession:
    return AwsSession(AwsAccess(region="eu-west-1", endpoint=f"http://127.0.0.1:{port}", keys=AwsKeys(*HUSH)))


@pytest.mark.parametrize(
    ("status", "code", "kind", "says"),
    [
        (403, "AccessDenied", UserError, r"grant s3:PutObject on arn:aws:s3:::bucket/team/\*"),
        (403, "AllAccessDisabled", UserError, "grant s3:PutObject"),
        (403, "SignatureDoesNotMatch", UserError, "keys are wrong"),
        (403, "InvalidAccessKeyId", UserError, "keys are wrong"),
        (400, "ExpiredToken", UserError, "expired"),
        (403, "RequestTimeTooSkewed", UserError, "clock"),
        (400, "AuthorizationHeaderMalformed", UserError, "another region"),
        (301, "PermanentRedirect", UserError, "another region"),
        (404, "NoSuchBucket", UserError, "no such bucket"),
        (400, "EntityTooLarge", UserError, "EntityTooLarge"),
        (503, "SlowDown", InfrastructureError, "too busy"),
        (500, "InternalError", InfrastructureError, "too busy or down"),
        (503, "", InfrastructureError, "503"),
    ],
)
def test_objects(aws: Aws, status: int, code: str, kind: type[Exception], says: str) -> None:
    aws.status, aws.code = status, code
    store = S3Artifacts(aws.session, "bucket", "team", patience=0)
    with pytest.raises(kind, match=says) as caught:
        store.put_text("key", "text")
    error = caught.value
    assert isinstance(error, UserError | InfrastructureError) and not isinstance(error, UnknownError)
    assert error.cause == ("artifacts" if kind is InfrastructureError else "artifacts_config")
    assert "hush" not in str(error) and error.__cause__ is None and error.__suppress_context__
    if code not in ("PermanentRedirect", ""):
        assert code in str(error)


@pytest.mark.parametrize(
    ("status", "code", "says"),
    [
        (400, "AccessDeniedException", "grant secretsmanager:GetSecretValue on the secret openai"),
        (400, "UnrecognizedClientException", "keys are wrong"),
        (400, "ExpiredTokenException", "expired"),
        (400, "InvalidRequestException", "InvalidRequestException"),
        (400, "DecryptionFailure", "DecryptionFailure"),
        (400, "ThrottlingException", "too busy"),
        (500, "InternalServiceError", "too busy or down"),
    ],
)
def test_secrets(aws: Aws, status: int, code: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("botocore.retries.standard.time.sleep", lambda _seconds: None)
    aws.status, aws.code = status, code
    source = SecretsManagerSource(aws.session)
    assert source.get("openai") is None
    (problem,) = source.problems
    assert says in problem and "hush" not in problem
    with pytest.raises(MissingSecretError, match=f"note: AWS .*{says.split()[0]}"):
        resolve({"KEY": "openai"}, [source])


def test_a_secret_that_is_not_there_is_no_problem(aws: Aws) -> None:
    aws.status, aws.code = 400, "ResourceNotFoundException"
    source = SecretsManagerSource(aws.session)
    assert source.get("openai") is None and source.problems == []


def test_silence_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("botocore.retries.standard.time.sleep", lambda _seconds: None)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        source = SecretsManagerSource(session_at(taken.getsockname()[1]))
        assert [source.get(name) for name in ("a", "b", "c")] == [None, None, None]
    assert len(source.problems) == 1
    assert "cannot be reached" in source.problems[0]


def test_nobody_listens_where_objects_should_be() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        store = S3Artifacts(session_at(taken.getsockname()[1]), "bucket", patience=0)
        with pytest.raises(InfrastructureError, match="cannot be reached") as caught:
            store.check()
    assert caught.value.cause == "artifacts"


@pytest.mark.parametrize("bucket", ["", "A", "a/b", "has space", "-x-", "x" * 64, "..", "a?b"])
def test_what_cannot_be_a_bucket(bucket: str) -> None:
    with pytest.raises(UserError, match="bucket"):
        S3Artifacts(session_at(9), bucket)
