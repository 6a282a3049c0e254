"""Errors as Daytona's clients read them: a status, and a body whose message is for people."""

from __future__ import annotations

from datetime import UTC, datetime
from http import HTTPStatus

from sandboxes.errors import (
    SandboxCapacityError,
    SandboxConnectionError,
    SandboxError,
    SandboxFileNotFoundError,
    SandboxFullError,
    SandboxNotFoundError,
)

DEFAULT_RETRY_SECONDS = 5


class ApiError(Exception):
    """The answer to a request that cannot be met."""

    def __init__(self, status: int, message: str, *, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = headers or {}


def error_body(status: int, message: str, path: str = "") -> dict[str, object]:
    """The JSON body of an error."""
    phrase = HTTPStatus(status).phrase
    return {
        "statusCode": status,
        "message": message,
        "error": phrase,
        "code": phrase.upper().replace(" ", "_"),
        "source": "VALKYRIE_SANDBOXES",
        "timestamp": datetime.now(UTC).isoformat(),
        "path": path,
    }


def retry_later(message: str, seconds: float | None = None) -> ApiError:
    """No room now."""
    wait = max(1, round(seconds or DEFAULT_RETRY_SECONDS))
    return ApiError(429, message, headers={"Retry-After": str(wait)})


def api_error(error: SandboxError) -> ApiError:
    """What a provider's error means to a client."""
    if isinstance(error, SandboxNotFoundError | SandboxFileNotFoundError):
        return ApiError(404, str(error))
    if isinstance(error, SandboxCapacityError):
        return retry_later(str(error), error.retry_after)
    if isinstance(error, SandboxConnectionError):
        return ApiError(502, str(error))
    if isinstance(error, SandboxFullError):
        return ApiError(507, str(error))
    return ApiError(400, str(error))
