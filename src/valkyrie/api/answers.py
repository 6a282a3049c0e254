"""Answers as JSON, and errors as they travel: a status, and the class the client raises again."""

from __future__ import annotations

import json
import logging
import math
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python
from starlette.responses import Response

from valkyrie.errors import (
    AccessError,
    AgentError,
    BenchmarkError,
    InfrastructureError,
    MissingSecretError,
    RoleError,
    StoreError,
    UnknownError,
    UsageError,
    UserError,
    ValkyrieError,
)
from valkyrie.text import shorten_names

log = logging.getLogger("valkyrie.api")
RETRY_AFTER_S = 5.0
_STATUS: tuple[tuple[type[ValkyrieError], int], ...] = (
    (UnknownError, 404),
    (RoleError, 403),
    (AccessError, 401),
    (UsageError, 400),
    (UserError, 422),
    (BenchmarkError, 502),
    (AgentError, 502),
    (InfrastructureError, 503),
    (StoreError, 503),
)


@dataclass(frozen=True, slots=True)
class ErrorDetail:
    """What went wrong."""

    type: str
    """The class of valkyrie.errors that it is."""
    cause: str
    """A short stable code."""
    message: str
    """For people: what happened, to what, and the way out."""
    exit_code: int
    """What a command that fails with it returns."""
    retry_after: float | None = None
    """Seconds after which asking again may help."""
    missing: dict[str, str] | None = None
    """Environment variable → name of the secret that has no value, where that is what went wrong."""


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """The body of every answer that is not the one hoped for."""

    error: ErrorDetail


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error as an HTTP answer."""

    status: int
    detail: ErrorDetail
    headers: dict[str, str] = field(default_factory=dict)


def refusal(error: ValkyrieError) -> Refusal:
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
    retry_after = error.retry_after
    headers: dict[str, str] = {}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if status == 503:
        retry_after = RETRY_AFTER_S if retry_after is None else retry_after
    if retry_after is not None:
        headers["Retry-After"] = str(max(1, math.ceil(retry_after)))
    missing = error.missing if isinstance(error, MissingSecretError) else None
    detail = ErrorDetail(
        type=type(error).__name__,
        cause=error.cause,
        message=shorten_names(_told(error)),
        exit_code=error.exit_code,
        retry_after=retry_after,
        missing=dict(missing) if missing else None,
    )
    return Refusal(status, detail, headers)


def _told(error: ValkyrieError) -> str:
    """Return what callers are told, strangers among them: of the store not where it is and what its driver
    says."""
    if not isinstance(error, StoreError) or error.cause == "sealed":
        return str(error)
    log.warning("the store: %s", error)
    if error.cause == "disk_full":
        return "The disk of the tracker's database is full; whoever runs the tracker must make room."
    return "The tracker's database cannot be used now; its log says why. Try again in a moment."


def refused(
    status: int, message: str, *, cause: str = "usage", headers: dict[str, str] | None = None
) -> Refusal:
    """An answer for what HTTP itself can get wrong: a size, a method, a path, a host."""
    if status == 404:
        return Refusal(status, ErrorDetail("UnknownError", "unknown", message, 2), headers or {})
    return Refusal(status, ErrorDetail("UsageError", cause, message, 2), headers or {})


def broken(request_id: str) -> Refusal:
    """An answer for our own mistakes; what happened is only in the log: it may name what is not theirs."""
    message = f"The tracker failed; its log says why under request {request_id}."
    return Refusal(500, ErrorDetail("ValkyrieError", "internal", message, 1))


def busy(what: str, retry_after: float = 2.0) -> InfrastructureError:
    return InfrastructureError(
        f"The tracker is busy: {what}. Try again.", cause="busy", retry_after=retry_after
    )


# Answers: views and errors as JSON.


JSON = "application/json"


def encode(view: Any) -> bytes:
    try:
        return to_json(view, inf_nan_mode="null")
    except PydanticSerializationError:
        # A file name that is no Unicode; json can say it in escapes.
        return json.dumps(to_jsonable_python(view, inf_nan_mode="constants")).encode()


def answer(view: Any, status: int = 200) -> Response:
    return Response(encode(view), status, media_type=JSON)


def refuse(refusal: Refusal) -> Response:
    return Response(encode(ErrorAnswer(refusal.detail)), refusal.status, refusal.headers, media_type=JSON)
