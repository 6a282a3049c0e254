"""What an error of an AWS SDK means, in our words. Of the SDK's own text only the code is repeated."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from valkyrie.errors import InfrastructureError, UnknownError, UserError, ValkyrieError

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
    """There is nobody to be at AWS."""
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
