"""One way into AWS: whose credentials, which region, which endpoint."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypedDict

from valkyrie.aws.faults import Act, explained, no_credentials
from valkyrie.aws.sdk import sdk
from valkyrie.errors import UsageError, UserError

_ROLE = re.compile(r"arn:aws[a-z-]*:iam::\d{12}:role/[\w+=,.@/-]{1,512}")
_EXTERNAL_ID = re.compile(r"[\w+=,.@:/-]{2,1224}")
_SESSION_NAME = re.compile(r"[\w+=,.@-]{2,64}")
_REGION = re.compile(r"[a-z]{2}(-[a-z]+)+-\d+")
_ROLE_SECONDS = 3600
_STS_ATTEMPTS = 4
_HANDED_FOR = timedelta(minutes=9)
"""Renewed credentials are good for ten minutes at least when they are handed out."""


@dataclass(frozen=True, slots=True)
class AwsKeys:
    """An access key."""

    access_key_id: str = field(repr=False)
    secret_access_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class AwsAccess:
    """Whose AWS it is: the process's own chain, or `keys`, or the role `role_arn`, never more than one."""

    region: str | None = None
    """Without one: AWS_REGION, AWS_DEFAULT_REGION, or the profile's."""
    keys: AwsKeys | None = None
    role_arn: str | None = None
    """Assumed with the process's own chain, and again before it expires."""
    external_id: str | None = field(default=None, repr=False)
    session_name: str = "valkyrie"
    """What the account's own records call us."""
    endpoint: str | None = None
    """Without one: AWS_ENDPOINT_URL, or AWS itself."""

    def __post_init__(self) -> None:
        if self.keys and self.role_arn:
            raise UsageError("AWS access is by keys or by a role, not both.")
        if self.external_id and not self.role_arn:
            raise UsageError("An external id belongs to a role: give its ARN too.")
        for value, form, what in (
            (self.region, _REGION, "an AWS region such as eu-west-1"),
            (self.role_arn, _ROLE, "a role's ARN such as arn:aws:iam::123456789012:role/valkyrie"),
            (self.external_id, _EXTERNAL_ID, "an external id: 2 to 1224 letters, digits and + = , . @ : / -"),
            (self.session_name, _SESSION_NAME, "a session name: 2 to 64 letters, digits and + = , . @ -"),
        ):
            if value is not None and not form.fullmatch(value):
                raise UsageError(f"This is not {what}.")


class Credential(TypedDict):
    """Credentials as the object store's client takes them."""

    access_key_id: str
    secret_access_key: str
    token: str | None
    expires_at: datetime | None


class AwsSession:
    """Clients of AWS services for one access, made once each; any thread may use any of them."""

    def __init__(self, access: AwsAccess | None = None) -> None:
        self.access = access or AwsAccess()
        self._lock = threading.RLock()
        self._clients: dict[tuple[str, float, int], Any] = {}
        self._boto: Any = None

    def __repr__(self) -> str:
        return f"AwsSession({self.access!r})"

    @property
    def endpoint(self) -> str | None:
        """Where AWS's services are instead of at AWS."""
        found = self.access.endpoint or os.environ.get("AWS_ENDPOINT_URL") or None
        if found and not found.startswith(("http://", "https://")):
            raise UserError("AWS_ENDPOINT_URL is not an http(s) URL.", cause="aws_config")
        return found

    @property
    def region(self) -> str:
        """The region, wherever it is set; UserError when it is nowhere."""
        named = (
            self.access.region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or None
        )
        with explained(Act("find the region", "nothing")):
            found = named or self._opened().region_name
        if not found and not self.endpoint:
            raise UserError(
                "No AWS region is set: `valk config set AWS_DEFAULT_REGION eu-west-1`.", cause="aws_config"
            )
        return str(found or "us-east-1")

    def client(self, service: str, *, read_timeout: float = 60, attempts: int = 4) -> Any:
        """A boto3 client; `attempts` 1 never repeats a request whose answer was lost."""
        with explained(Act(f"open {service}", "nothing")):
            return self._client(service, read_timeout, attempts)

    def credential(self) -> Credential:
        """Credentials that hold for a while, renewed when they no longer would."""
        with explained(self._assuming()):
            with self._lock:
                found = self._opened().get_credentials()
            if found is None:
                raise no_credentials("sign requests with")
            frozen = found.get_frozen_credentials()
        lasting = type(found).__name__ == "Credentials"
        return Credential(
            access_key_id=frozen.access_key,
            secret_access_key=frozen.secret_key,
            token=frozen.token,
            expires_at=None if lasting else datetime.now(UTC) + _HANDED_FOR,
        )

    def identity(self) -> str:
        """The ARN AWS knows us by: proof that the credentials are good."""
        act = Act("tell whose credentials these are", "sts:GetCallerIdentity")
        self.credential()
        with explained(act):
            return str(self.client("sts").get_caller_identity()["Arn"])

    def _client(self, service: str, read_timeout: float, attempts: int) -> Any:
        region = self.region
        key = (service, read_timeout, attempts)
        with self._lock:
            if key not in self._clients:
                config = sdk("botocore.config").Config(
                    connect_timeout=5,
                    read_timeout=read_timeout,
                    retries={"mode": "standard", "total_max_attempts": attempts},
                    # A function may take minutes to answer, longer than idle connections live on the way.
                    tcp_keepalive=True,
                    s3={"addressing_style": "path"} if self.endpoint else None,
                )
                self._clients[key] = self._opened().client(
                    service, region_name=region, endpoint_url=self.endpoint, config=config
                )
            return self._clients[key]

    def _opened(self) -> Any:
        with self._lock:
            if self._boto is None:
                keys = self.access.keys
                given = {
                    "botocore_session": _in_role(self._assume) if self.access.role_arn else None,
                    "aws_access_key_id": keys.access_key_id if keys else None,
                    "aws_secret_access_key": keys.secret_access_key if keys else None,
                    "aws_session_token": keys.session_token if keys else None,
                }
                self._boto = sdk("boto3").Session(**given)
            return self._boto

    def _assuming(self) -> Act:
        if role := self.access.role_arn:
            return Act(
                f"assume the role {role}", f"sts:AssumeRole on {role}, with this external id, to this server"
            )
        return Act("use the credentials", "nothing")

    def _assume(self) -> dict[str, str]:
        """Fresh credentials of the role, as botocore keeps them."""
        own = AwsSession(AwsAccess(region=self.access.region, endpoint=self.access.endpoint))
        extra = {"ExternalId": self.access.external_id} if self.access.external_id else {}
        with explained(self._assuming()):
            given = own.client("sts", read_timeout=15, attempts=_STS_ATTEMPTS).assume_role(
                RoleArn=self.access.role_arn,
                RoleSessionName=self.access.session_name,
                DurationSeconds=_ROLE_SECONDS,
                **extra,
            )["Credentials"]
        return {
            "access_key": given["AccessKeyId"],
            "secret_key": given["SecretAccessKey"],
            "token": given["SessionToken"],
            "expiry_time": given["Expiration"].isoformat(),
        }


def _in_role(assume: Callable[[], dict[str, str]]) -> Any:
    """A botocore session that knows no credentials but the role's."""
    credentials = sdk("botocore.credentials").DeferredRefreshableCredentials(
        refresh_using=assume, method="assume-role"
    )

    class RoleOnly:
        def load_credentials(self) -> Any:
            return credentials

    session = sdk("botocore.session").Session()
    session.register_component("credential_provider", RoleOnly())
    return session
