"""A whole AWS on loopback: S3, Secrets Manager, CloudWatch Logs, STS, IAM that denies, Lambda that runs.

A test module asks for it with `pytest_plugins = ["tests.aws_server"]`. There is one process for a test
run; it remembers everything over `stop()` and `start()`. (PYTEST_DONT_REWRITE: names are imported from here
before it is a plugin.)
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from tests.ports import free_port
from valkyrie.aws.session import AwsAccess, AwsKeys, AwsSession

REGION = "us-east-1"
ROOT_KEYS = AwsKeys("test", "test")
ROLE = "arn:aws:iam::000000000000:role/"


class Ministack:
    """One ministack process with a folder and a port of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None
        self._sessions: dict[AwsKeys, AwsSession] = {}

    def start(self) -> None:
        """Start it on its port, with what it held when it was stopped."""
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "TMPDIR": str(self.folder),
            "BIND_HOST": "127.0.0.1",
            "GATEWAY_PORT": str(self.port),
            "IOT_MTLS_ENABLED": "0",
            "LAMBDA_EXECUTOR": "local",
            "AUTH": "true",
            "PERSIST_STATE": "1",
            "STATE_DIR": str(self.folder / "state"),
            "S3_PERSIST": "1",
            "S3_DATA_DIR": str(self.folder / "s3"),
        }
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*_mortal(), sys.executable, "-m", "ministack"],
                env=environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + 60
        while not self._answers():
            assert self._process.poll() is None and time.monotonic() < deadline, self._log()
            time.sleep(0.03)

    def stop(self) -> None:
        """End it; what it holds is kept for the next start."""
        if self._process:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(60)
            self._process = None

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Connections are taken and nothing is answered."""
        assert self._process
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def _answers(self) -> bool:
        try:
            with urlopen(f"{self.endpoint}/_ministack/health", timeout=10) as answer:
                return bool(answer.status == 200)
        except (URLError, OSError):
            return False

    def _log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-2000:]

    @property
    def environment(self) -> dict[str, str]:
        """What makes a program use it, as root of the account."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": ROOT_KEYS.access_key_id,
            "AWS_SECRET_ACCESS_KEY": ROOT_KEYS.secret_access_key,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def session(self, keys: AwsKeys = ROOT_KEYS) -> AwsSession:
        """A session with these keys; without, as root of the account."""
        if keys not in self._sessions:
            access = AwsAccess(region=REGION, endpoint=self.endpoint, keys=keys)
            self._sessions[keys] = AwsSession(access)
        return self._sessions[keys]

    def client(self, service: str) -> Any:
        """A boto3 client as root."""
        return self.session().client(service)

    def bucket(self) -> str:
        """A new bucket's name."""
        name = f"bucket-{uuid.uuid4().hex}"
        self.client("s3").create_bucket(Bucket=name)
        return name

    def secret(self, name: str, value: str | bytes) -> None:
        """Keep a secret, over an earlier one."""
        client, field = (
            self.client("secretsmanager"),
            "SecretString" if isinstance(value, str) else "SecretBinary",
        )
        try:
            client.create_secret(Name=name, **{field: value})
        except client.exceptions.ResourceExistsException:
            client.put_secret_value(SecretId=name, **{field: value})

    def forget_secrets(self) -> None:
        """Remove every secret."""
        client = self.client("secretsmanager")
        for page in client.get_paginator("list_secrets").paginate():
            for secret in page["SecretList"]:
                client.delete_secret(SecretId=secret["ARN"], ForceDeleteWithoutRecovery=True)

    def user(self, *actions: str) -> AwsKeys:
        """Keys of a new user who may do this (`s3:PutObject`) to everything, and nothing else."""
        iam, name = self.client("iam"), f"user-{uuid.uuid4().hex}"
        iam.create_user(UserName=name)
        if actions:
            iam.put_user_policy(UserName=name, PolicyName="given", PolicyDocument=_policy(actions))
        made = iam.create_access_key(UserName=name)["AccessKey"]
        return AwsKeys(made["AccessKeyId"], made["SecretAccessKey"])

    def role(self, external_id: str, *actions: str) -> str:
        """The ARN of a new role that whoever knows the external id may assume."""
        iam, name = self.client("iam"), f"role-{uuid.uuid4().hex}"
        trust = {
            "Effect": "Allow",
            "Principal": {"AWS": "*"},
            "Action": "sts:AssumeRole",
            "Condition": {"StringEquals": {"sts:ExternalId": external_id}},
        }
        iam.create_role(
            RoleName=name,
            AssumeRolePolicyDocument=json.dumps({"Version": "2012-10-17", "Statement": [trust]}),
        )
        iam.put_role_policy(RoleName=name, PolicyName="given", PolicyDocument=_policy(actions))
        return f"{ROLE}{name}"

    def function(self, code: str, timeout: int = 30) -> str:
        """The name of a new Lambda function with this `handler(event, context)`."""
        name, archive = f"function-{uuid.uuid4().hex}", io.BytesIO()
        with zipfile.ZipFile(archive, "w") as file:
            file.writestr("function.py", code)
        self.client("lambda").create_function(
            FunctionName=name,
            Runtime="python3.11",
            Handler="function.handler",
            Role=self._execution_role(),
            Timeout=timeout,
            Code={"ZipFile": archive.getvalue()},
        )
        return name

    def _execution_role(self) -> str:
        iam = self.client("iam")
        trust = {
            "Effect": "Allow",
            "Principal": {"Service": "lambda.amazonaws.com"},
            "Action": "sts:AssumeRole",
        }
        document = json.dumps({"Version": "2012-10-17", "Statement": [trust]})
        with contextlib.suppress(iam.exceptions.EntityAlreadyExistsException):
            iam.create_role(RoleName="functions", AssumeRolePolicyDocument=document)
        return f"{ROLE}functions"


def _mortal() -> list[str]:
    """It ends with this process, also when that is killed."""
    return ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []


def _policy(actions: tuple[str, ...]) -> str:
    statement = {"Effect": "Allow", "Action": list(actions), "Resource": "*"}
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})


@contextmanager
def running_ministack(folder: Path) -> Iterator[Ministack]:
    """One of a test's own, which it may stop."""
    folder.mkdir(parents=True, exist_ok=True)
    server = Ministack(folder)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def ministack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ministack]:
    """The one all tests of this process share; what a test makes in it has a name of its own."""
    with running_ministack(tmp_path_factory.mktemp("ministack")) as server:
        yield server
