"""What a tracker refuses, raised again as the error it was there."""

from __future__ import annotations

import json
from typing import Any

from valkyrie import errors
from valkyrie.errors import (
    AccessError,
    InfrastructureError,
    MissingSecretError,
    StoreError,
    UnknownError,
    UsageError,
    UserError,
    ValkyrieError,
)

BUSY = frozenset({502, 503, 504})
"""The tracker, or what stands before it, may answer a little later."""
ADDRESS_HINT = "config key tracker_url, or TRACKER_SERVICE_URL"
KEY_HINT = "config key api_key, or VALKYRIE_API_KEY"
_BY_STATUS: dict[int, type[ValkyrieError]] = {
    400: UsageError,
    401: AccessError,
    403: AccessError,
    404: UnknownError,
    405: UsageError,
    409: UserError,
    413: UserError,
    422: UserError,
}
_LONGEST = 2000


class TrackerUnreachableError(InfrastructureError):
    """No answer came from the tracker."""

    default_cause = "tracker_unreachable"

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent
        """The request may have arrived: what it asked for may have been done."""


class BusyError(Exception):
    """The tracker says that it cannot answer now; `error` is what to raise when it stays so."""

    def __init__(self, error: ValkyrieError) -> None:
        super().__init__(str(error))
        self.error = error


def later(error: ValkyrieError) -> bool:
    """Return whether the tracker cannot answer now; what fails behind it (a service, a disk) is an answer."""
    return isinstance(error, StoreError) or error.cause in ("busy", "tracker_unreachable")


def unreachable(url: str, reason: str, *, sent: bool) -> TrackerUnreachableError:
    """Nobody answers there."""
    return TrackerUnreachableError(
        f"The tracker at {url} does not answer: {reason}. Is it running, and is its address right "
        f"({ADDRESS_HINT})?",
        sent=sent,
    )


def strange(url: str, what: str) -> InfrastructureError:
    """Return the error for what answers and is no tracker, or one of another version."""
    return InfrastructureError(
        f"What answers at {url} does not speak as a tracker of this version: {what[:_LONGEST]}. Is its "
        f"address right ({ADDRESS_HINT}), and is it of the same version?",
        cause="tracker_strange",
    )


def refusal(url: str, status: int, body: bytes, retry_after: float | None) -> ValkyrieError:
    """Return the error an answer stands for: of the class the tracker raised, with its words."""
    try:
        said = json.loads(body)["error"]
        error = _again(said, retry_after)
    except (ValueError, KeyError, TypeError):
        error = _unexplained(url, status, retry_after)
    if isinstance(error, AccessError):
        return AccessError(f"{error} (tracker {url}; the key comes from {KEY_HINT})", cause=error.cause)
    return error


def _again(said: dict[str, Any], retry_after: float | None) -> ValkyrieError:
    kind = getattr(errors, str(said["type"]), None)
    message = str(said["message"])
    if kind is MissingSecretError:
        missing = _missing(said.get("missing"))
        return MissingSecretError(message, missing=missing, cause=said.get("cause"))
    if not (isinstance(kind, type) and issubclass(kind, ValkyrieError)):
        kind = ValkyrieError
    error: ValkyrieError = kind(message, cause=said.get("cause"), retry_after=retry_after)
    return error


def _missing(named: Any) -> dict[str, str]:
    """Environment variable → secret name; a bare list of names is taken for both."""
    if isinstance(named, dict):
        return {str(variable): str(name) for variable, name in named.items()}
    return {str(name): str(name) for name in named or ()}


def _unexplained(url: str, status: int, retry_after: float | None) -> ValkyrieError:
    """An answer that is not in the tracker's form: a proxy's, or another program's."""
    if status in BUSY or status == 429:
        return InfrastructureError(
            f"The tracker at {url} cannot answer now (HTTP {status}).",
            cause="tracker_unreachable",
            retry_after=retry_after,
        )
    kind = _BY_STATUS.get(status)
    if kind is None or status in (404, 405):
        return strange(url, f"it answered HTTP {status}")
    return kind(f"The tracker at {url} refused the request (HTTP {status}).")
