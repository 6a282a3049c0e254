"""Sessions with AWS: credentials, region, endpoint, and what errors of the SDKs mean."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any, TypedDict

from sandboxes.registry import add_extra
from valkyrie.errors import InfrastructureError, UnknownError, UsageError, UserError, ValkyrieError


def sdk(module: str) -> Any:
    """The module; UserError naming the extra when it is not installed."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise UserError(f"AWS needs {error.name}: {add_extra('aws')}", cause="missing_extra") from None


# What an error of an AWS SDK means, in our words. Of the SDK's own text only the code is repeated.

_CODE = re.compile(r"<Code>(\w{1,64})</Code>")
_STATUS = re.compile(r"status code: (\d{3})")
_DENIED = {"AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "AllAccessDisabled", "Forbidden"}
_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired"}
_BAD_KEYS = {
    "AuthFailure",
    "IncompleteSignature",
    "InvalidAccessKeyId",
    "InvalidClientTokenId",
    "InvalidSecurity",
    "InvalidSignatureException",
    "InvalidToken",
    "MissingAuthenticationToken",
    "SignatureDoesNotMatch",
    "UnrecognizedClientException",
}
_WRONG_REGION = {
    "AuthorizationHeaderMalformed",
    "IllegalLocationConstraintException",
    "PermanentRedirect",
    "TemporaryRedirect",
}
_SKEWED = {"RequestTimeTooSkewed", "RequestInTheFuture"}
_BUSY = {
    "InternalError",
    "InternalFailure",
    "InternalServerError",
    "InternalServiceError",
    "LimitExceededException",
    "OperationAbortedException",
    "ProvisionedThroughputExceededException",
    "RequestLimitExceeded",
    "RequestThrottled",
    "RequestTimeout",
    "ServiceException",
    "ServiceUnavailable",
    "ServiceUnavailableException",
    "SlowDown",
    "TooManyRequestsException",
}
_NO_CREDENTIALS = {
    "ConfigNotFound",
    "CredentialRetrievalError",
    "LoginError",
    "MetadataRetrievalError",
    "NoAuthTokenError",
    "NoCredentialsError",
    "PartialCredentialsError",
    "ProfileNotFound",
    "SSOError",
    "TokenRetrievalError",
}


@dataclass(frozen=True, slots=True)
class Act:
    """What is asked of AWS, as messages say it."""

    what: str
    """`write s3://bucket/key`."""
    permission: str
    """What must be granted for it: `s3:PutObject on arn:aws:s3:::bucket/*`."""
    unreachable: str = "aws_unreachable"
    """Cause of the error when AWS does not answer."""
    refused: str = "aws_config"
    """Cause of the error when AWS answers and does not do it."""


@contextmanager
def explained(act: Act) -> Iterator[None]:
    """Errors of the SDKs leave this block as ours."""
    try:
        yield
    except ValkyrieError:
        raise
    except Exception as error:
        if (ours := _translated(error, act)) is None:
            raise
        # The vendor's error holds URLs and headers of the request: it is not chained.
        raise ours from None


def fault_code(error: Exception) -> str:
    """AWS's own code of an error (`NoSuchKey`), its HTTP status when there is none, or nothing."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        return str(response.get("Error", {}).get("Code", "")) or str(_status(error) or "")
    if _of_obstore(error):
        text = str(error)
        if "redirect without LOCATION" in text:
            return "PermanentRedirect"
        found = _CODE.search(text) or _STATUS.search(text)
        return found[1] if found else ""
    return ""


def no_credentials(what: str, cause: str = "aws_config") -> UserError:
    return UserError(
        f"No usable AWS credentials to {what}: run `valk config init`, log in (`aws sso login`), or export "
        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.",
        cause=cause,
    )


def _translated(error: Exception, act: Act) -> ValkyrieError | None:
    kind = type(error).__name__
    if not _of_botocore(error) and not _of_obstore(error):
        return None
    if any(base.__name__ in _NO_CREDENTIALS for base in type(error).__mro__):
        return no_credentials(f"{act.what} ({kind})", act.refused)
    code, status = fault_code(error), _status(error)
    if kind in ("ParamValidationError", "InvalidPathError"):
        return UserError(f"AWS cannot {act.what}: a name in it is not allowed there.", cause=act.refused)
    if code:
        return _refused(code, status, act)
    hint = "; is AWS_ENDPOINT_URL right?" if os.environ.get("AWS_ENDPOINT_URL") else "."
    return InfrastructureError(
        f"AWS cannot be reached: no answer when asked to {act.what}{hint}", cause=act.unreachable
    )


def _refused(code: str, status: int | None, act: Act) -> ValkyrieError:
    said = f"AWS refused to {act.what} ({code})"
    if code in _BUSY or "Throttl" in code or (status or 0) >= 500 or code in ("429", "408"):
        return InfrastructureError(
            f"AWS is too busy or down: it did not {act.what} ({code}).", cause=act.unreachable
        )
    if code in _DENIED or (code == "403"):
        return UserError(f"{said}: grant {act.permission}, or use other credentials.", cause=act.refused)
    if code in _EXPIRED:
        return UserError(
            f"{said}: the credentials have expired. Renew them and try again.", cause=act.refused
        )
    if code in _BAD_KEYS:
        return UserError(f"{said}: the access keys are wrong or were revoked.", cause=act.refused)
    if code in _WRONG_REGION or code == "301":
        return UserError(
            f"{said}: it is in another region. Set AWS_DEFAULT_REGION to its own.", cause=act.refused
        )
    if code in _SKEWED:
        return UserError(f"{said}: this machine's clock is wrong.", cause=act.refused)
    if code in ("NoSuchKey", "ResourceNotFoundException", "NotFound", "404"):
        return UnknownError(f"AWS cannot {act.what}: there is no such thing.")
    if code == "NoSuchBucket":
        return UserError(f"AWS cannot {act.what}: there is no such bucket ({code}).", cause=act.refused)
    return UserError(f"{said}.", cause=act.refused)


def _status(error: Exception) -> int | None:
    response: Any = getattr(error, "response", None)
    if isinstance(response, dict):
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        return int(status) if status else None
    found = _STATUS.search(str(error)) if _of_obstore(error) else None
    return int(found[1]) if found else None


def _of_botocore(error: Exception) -> bool:
    return any(base.__module__.partition(".")[0] in ("botocore", "boto3") for base in type(error).__mro__)


def _of_obstore(error: Exception) -> bool:
    # A key that is not there is FileNotFoundError in obstore, with the request in its text.
    return type(error).__module__.startswith("obstore") or (
        isinstance(error, FileNotFoundError) and error.errno is None
    )


# One way into AWS: whose credentials, which region, which endpoint.

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


class ObjectStoreCredential(TypedDict):
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

    def credential(self) -> ObjectStoreCredential:
        """Credentials that hold for a while, renewed when they no longer would."""
        with explained(self._assuming()):
            with self._lock:
                found = self._opened().get_credentials()
            if found is None:
                raise no_credentials("sign requests with")
            frozen = found.get_frozen_credentials()
        lasting = type(found).__name__ == "Credentials"
        return ObjectStoreCredential(
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
