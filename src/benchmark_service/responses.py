"""Results and chunks as strict JSON, and what a caller reads when something goes wrong."""

from __future__ import annotations

import json
import logging
import math
import secrets
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_jsonable_python
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from benchmark_service.schemas import (
    StreamChunk,
    StreamErrorChunk,
    StreamEvalResumeStateChunk,
    StreamMessageChunk,
    StreamResultChunk,
)
from sandboxes.errors import SandboxCapacityError, SandboxConnectionError, SandboxUnsupportedError

log = logging.getLogger(__name__)

ERROR_ID_HEADER = "X-Error-Id"
_MESSAGE_CHARS = 4000
_AWAY_S = 10.0


class ServiceFault(Exception):
    """The service's own code answered something unusable. The message is fit for the caller to read."""


class JsonAnswer(Response):
    """JSON of any text at all: half a surrogate pair is escaped, where it would break the encoding."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        if isinstance(content, bytes):
            return content
        return json_text(content).encode()


def json_text(content: Any) -> str:
    """Compact strict JSON that can be encoded as UTF-8."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(content, allow_nan=False, separators=(",", ":"))
    return text


def failure_detail(status: int, text: Any, headers: Mapping[str, str] | None = None) -> JsonAnswer:
    """An error as every route answers it."""
    return JsonAnswer({"detail": text}, status_code=status, headers=dict(headers or {}))


def record_failure(error: BaseException, where: str) -> str:
    """Put the traceback into the log and return the id it is found under."""
    error_id = secrets.token_hex(6)
    log.error("error %s in %s", error_id, where, exc_info=error)
    return error_id


def message_of(error: BaseException) -> str:
    """The error in its own words, one that says nothing by its name; never a traceback."""
    if isinstance(error, HTTPException):
        text = str(error.detail)
    elif isinstance(error, ValidationError):
        wrong = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()[:5])
        text = f"{error.title} is not valid: {wrong}"
    elif isinstance(error, (ValueError, ServiceFault)) and str(error):
        text = str(error)
    else:
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return text if len(text) <= _MESSAGE_CHARS else text[:_MESSAGE_CHARS] + " …"


class FailureMiddleware:
    """Answers 500 for whatever no handler took, and logs it once, under an id."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self.app(scope, receive, watched)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the edge of the process: the service lives on
            answer = _internal(error, scope)
            if not started:
                await answer(scope, receive, send)


def install_handlers(app: FastAPI) -> None:
    """Give `app` the answers of this module."""
    app.add_exception_handler(ValueError, _bad_request)
    app.add_exception_handler(ValidationError, _service_bug)
    app.add_exception_handler(PydanticSerializationError, _service_bug)
    app.add_exception_handler(NotImplementedError, _unsupported)
    app.add_exception_handler(SandboxUnsupportedError, _bad_request)
    app.add_exception_handler(SandboxConnectionError, _away)
    app.add_exception_handler(SandboxCapacityError, _away)
    app.add_exception_handler(ServiceFault, _fault)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _invalid)


def _internal(error: BaseException, scope: Scope) -> JsonAnswer:
    where = f"{scope['method']} {scope['path']!r}"
    return failure_detail(500, "Internal server error", {ERROR_ID_HEADER: record_failure(error, where)})


async def _bad_request(_request: Request, error: Exception) -> Response:
    return failure_detail(400, str(error))


async def _away(_request: Request, error: Exception) -> Response:
    """The caller's sandbox provider cannot be reached, or has no room: neither's mistake, and it may pass."""
    after = getattr(error, "retry_after", None) or _AWAY_S
    return failure_detail(503, message_of(error), {"Retry-After": str(math.ceil(after))})


async def _service_bug(request: Request, error: Exception) -> Response:
    # A ValueError by class, yet not the caller's mistake: the service built a bad model.
    return _internal(error, request.scope)


async def _unsupported(_request: Request, error: Exception) -> Response:
    return failure_detail(501, str(error) or "This service does not implement that")


async def _fault(request: Request, error: Exception) -> Response:
    where = f"{request.method} {request.scope['path']!r}"
    return failure_detail(500, message_of(error), {ERROR_ID_HEADER: record_failure(error, where)})


async def _http(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code in (204, 304):
        return Response(status_code=error.status_code, headers=error.headers)
    return failure_detail(error.status_code, error.detail, error.headers)


async def _invalid(_request: Request, error: Exception) -> Response:
    # Without the input, which may hold a provider's key or a number JSON cannot carry.
    assert isinstance(error, RequestValidationError)
    return failure_detail(
        422, [{"type": e["type"], "loc": e["loc"], "msg": e["msg"]} for e in error.errors()]
    )


# Results and chunks of services as strict JSON, with the place named where they are not.

_DEPTH = 200
_CHUNK: TypeAdapter[StreamChunk] = TypeAdapter(StreamChunk)
_CHUNK_MODELS = (StreamMessageChunk, StreamErrorChunk, StreamResultChunk, StreamEvalResumeStateChunk)


class NotJson(ServiceFault):
    """A value that JSON cannot carry; the message names its place."""


def to_json(value: Any, what: str = "result") -> str:
    """Strict JSON of a value: plain data, pydantic models, dataclasses, dates, enums."""
    try:
        return json_text(value)
    except (TypeError, ValueError, RecursionError):
        pass
    return json_text(_plain(value, what, 0))


def chunk_frame(chunk: Any) -> str:
    """One chunk as the frame that carries it: exactly type and data, and what extras are set."""
    model = chunk
    if not isinstance(model, _CHUNK_MODELS):
        try:
            model = _CHUNK.validate_python(_fields(chunk) if isinstance(chunk, BaseModel) else chunk)
        except ValidationError as error:
            wrong = "; ".join(str(e["msg"]) for e in error.errors()[:3])
            raise ServiceFault(
                f"the service yielded {type(chunk).__name__}, which is not a stream chunk: {wrong}"
            ) from None
    kept = {
        name: value for name, value in _fields(model).items() if value is not None or name in ("type", "data")
    }
    return to_json(kept, f"{kept['type']} chunk")


def _fields(model: BaseModel) -> dict[str, Any]:
    """A model's fields as they are, extras included; what is inside them is encoded later."""
    own = {name: getattr(model, name) for name in type(model).model_fields}
    return {**own, **(model.model_extra or {})}


def _plain(value: Any, where: str, depth: int) -> Any:
    if depth > _DEPTH:
        raise NotJson(f"{where} is nested deeper than {_DEPTH} levels, or contains itself")
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise NotJson(f"{where} is {value}, which is not a JSON number")
        return value
    if isinstance(value, Mapping):
        return {_key(key, where): _plain(inner, f"{where}.{key}", depth + 1) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner, f"{where}[{at}]", depth + 1) for at, inner in enumerate(value)]
    if isinstance(value, (set, frozenset)):
        raise NotJson(f"{where} is a {type(value).__name__}, which is not JSON; make it a list")
    return _plain(_converted(value, where), where, depth + 1)


def _key(key: Any, where: str) -> Any:
    if isinstance(key, str) or key is None or isinstance(key, (bool, int)):
        return key
    return str(_converted(key, f"a key of {where}"))


def _converted(value: Any, where: str) -> Any:
    try:
        if isinstance(value, BaseModel):
            return value.model_dump(mode="json", warnings=False)
        converted = to_jsonable_python(value)
    except (PydanticSerializationError, ValueError, TypeError):
        raise NotJson(f"{where} is a {type(value).__name__}, which is not JSON") from None
    return converted
