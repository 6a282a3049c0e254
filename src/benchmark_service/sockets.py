"""The three streams: setting a task up, grading an instance, grading a response."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from benchmark_service import admission, auth
from benchmark_service.base import ResumableEvaluationInfrastructureError
from benchmark_service.context import sandbox_provider_scope
from benchmark_service.gate import is_trial
from benchmark_service.responses import ServiceFault, chunk_frame, message_of, record_failure, to_json
from benchmark_service.routes import DOCKER_DISABLED, is_refused_docker, pinned_version, version_refusal
from benchmark_service.schemas import (
    RESUMABLE,
    EvaluateInstanceRequest,
    EvaluateResponseRequest,
    SetupTaskRequest,
    StreamErrorChunk,
)
from sandboxes.types import DaytonaProviderConfig

if TYPE_CHECKING:
    from benchmark_service.app import BenchmarkServiceApp

log = logging.getLogger(__name__)

PRELUDE_SECONDS = 300.0
"""How long everything before the service's own generator may take, unless the environment says."""
NORMAL, INVALID, REFUSED, BROKEN = 1000, 1007, 1008, 1011

_HEADERS = {
    "DAYTONA_API_KEY": ("x-api-key", "daytona_api_key"),
    "DAYTONA_API_URL": ("x-api-url", "daytona_api_url"),
    "DAYTONA_TARGET": ("x-target", "daytona_target"),
}


class Refused(Exception):
    """The stream ends before it begins: an error chunk if there is something to say, then a close."""

    def __init__(
        self, code: int, reason: str, chunk: str | None = None, status_code: int | None = None
    ) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.chunk = chunk
        self.status_code = status_code


@dataclass
class _Stream:
    """One socket and what is known of it so far."""

    websocket: WebSocket
    app: BenchmarkServiceApp
    name: str
    tenant: str = ""
    stage: str = field(default="authenticating")


Run = Callable[[_Stream, Any], Awaitable[None]]


def add_sockets(app: BenchmarkServiceApp) -> None:
    """Add the streams to `app`."""

    def stream(name: str, model: type[BaseModel], run: Run) -> None:
        async def endpoint(websocket: WebSocket) -> None:
            await _serve(_Stream(websocket, app, name), model, run)

        app.add_api_websocket_route(f"/ws/{name}", endpoint, name=name)

    stream("setup-task", SetupTaskRequest, _setup_task)
    stream("evaluate-instance", EvaluateInstanceRequest, _evaluate_instance)
    stream("evaluate-response", EvaluateResponseRequest, _evaluate_response)


async def _setup_task(stream: _Stream, request: SetupTaskRequest) -> None:
    async with _sandbox(stream, request, evaluation=False) as sandbox:
        service = stream.app.service
        await _forward(stream, service.setup_task(request.task_id, sandbox, dataset=request.dataset))


async def _evaluate_instance(stream: _Stream, request: EvaluateInstanceRequest) -> None:
    async with _sandbox(stream, request, evaluation=True) as sandbox:
        service = stream.app.service
        await _forward(stream, service.evaluate_instance(request.task_id, sandbox, dataset=request.dataset))


async def _evaluate_response(stream: _Stream, request: EvaluateResponseRequest) -> None:
    async with AsyncExitStack() as stack:
        async with _prelude(stream):
            if request.sandbox_provider is None:
                request.sandbox_provider = _provider_from_headers(stream.websocket)
            await _admit(stream, stack, request, evaluation=True)
        service = stream.app.service
        await _forward(stream, service.stream_evaluate_response(request, dataset=request.dataset))


@asynccontextmanager
async def _sandbox(stream: _Stream, request: SetupTaskRequest, *, evaluation: bool) -> AsyncIterator[Any]:
    """The sandbox of a request, with its provider the current one and open until the end."""
    async with AsyncExitStack() as stack:
        async with _prelude(stream):
            config = request.sandbox_provider or _provider_from_headers(stream.websocket)
            if config is None:
                names = ", ".join(first for first, _ in _HEADERS.values())
                raise Refused(NORMAL, "", f"Missing required headers: {names}")
            request.sandbox_provider = config
            await _admit(stream, stack, request, evaluation=evaluation)
            stream.stage = "opening the sandbox provider"
            provider = await stack.enter_async_context(config.create_provider())
            stream.stage = f"looking up sandbox {request.instance_id}"
            sandbox = await provider.get_sandbox(request.instance_id)
        with sandbox_provider_scope(provider):
            yield sandbox


async def _admit(stream: _Stream, stack: AsyncExitStack, request: Any, *, evaluation: bool) -> None:
    """Refuse what this service, or this tenant, may not do; select the dataset's version."""
    if is_refused_docker(request.sandbox_provider):
        raise Refused(REFUSED, DOCKER_DISABLED)
    stream.stage = "checking access to the dataset"
    if not await stream.app.service.check_dataset_access(stream.tenant, request.dataset):
        raise Refused(REFUSED, "Dataset not allowed")
    await _pin(stream, stack, request.dataset)
    if not evaluation:
        return
    stream.stage = "counting the evaluation quota"
    try:
        await auth.consume_quota(stream.app.deployment_name, stream.tenant)
    except admission.QuotaReached as reached:
        when = admission.iso_z(reached.retry_at)
        raise Refused(REFUSED, f"Evaluation quota reached; retry after {when}.") from None
    except admission.QuotaUnavailable as error:
        raise Refused(BROKEN, str(error)) from None


async def _pin(stream: _Stream, stack: AsyncExitStack, dataset: str | None) -> None:
    """Open the version the request asks for and acknowledge it, before anything else is said."""
    stream.stage = "selecting the dataset's version"
    try:
        version = await stack.enter_async_context(
            pinned_version(stream.app.service, stream.websocket.headers, dataset)
        )
    except Exception as error:
        status, said = version_refusal(error)
        log.warning("%s: dataset version refused with %s", stream.name, status, exc_info=status >= 500)
        raise Refused(NORMAL, "", said, status) from None
    if version is not None:
        chosen = {"type": "dataset_version", "data": {"id": version.id, "label": version.label}}
        await stream.websocket.send_text(to_json(chosen))


async def _serve(stream: _Stream, model: type[BaseModel], run: Run) -> None:
    """A socket from its acceptance to its close, whatever happens in between."""
    websocket = stream.websocket
    await websocket.accept()
    code, reason = NORMAL, ""
    try:
        async with _prelude(stream):
            await _authenticate(stream)
            stream.stage = "waiting for the request"
            request = _parsed(await websocket.receive(), model)
        await _while_connected(stream, run(stream, request))
    except WebSocketDisconnect:
        log.info("%s: the client went away while %s", stream.name, stream.stage)
        return
    except Refused as refused:
        code, reason = refused.code, refused.reason
        if refused.chunk is not None:
            await _send_error(
                stream, StreamErrorChunk(type="error", data=refused.chunk, status_code=refused.status_code)
            )
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the service's own code failed; the process lives on
        said = f"{message_of(error)} (error id {record_failure(error, stream.name)})"
        resumable = isinstance(error, ResumableEvaluationInfrastructureError)
        code_of_error = RESUMABLE if resumable else None
        await _send_error(stream, StreamErrorChunk(type="error", data=said, error_code=code_of_error))
    with suppress(RuntimeError, WebSocketDisconnect):
        await websocket.close(code, reason[:120])


async def _authenticate(stream: _Stream) -> None:
    if _is_of_another_site(stream.websocket):
        raise Refused(REFUSED, "Pages of other sites may not connect")
    tenant = await stream.app.service.resolve_tenant(dict(stream.websocket.headers))
    if tenant is None:
        raise Refused(REFUSED, "Unauthorized")
    if await is_trial(tenant):
        raise Refused(REFUSED, "Trial tenants may only access /v1/*")
    stream.tenant = stream.websocket.state.tenant = tenant


def _is_of_another_site(websocket: WebSocket) -> bool:
    """Return whether a browser connects for a page that is not from here: any page may do so, unasked, and
    reach services that only this machine can. Programs send no Origin."""
    origin = websocket.headers.get("origin")
    return (
        origin is not None and origin.partition("://")[2].lower() != websocket.headers.get("host", "").lower()
    )


def _parsed(message: Any, model: type[BaseModel]) -> Any:
    """The request in the first frame."""
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message.get("code") or NORMAL)
    text = message.get("text")
    if text is None:
        raise Refused(INVALID, "Invalid request", "Invalid request: expected a text frame holding JSON")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Refused(INVALID, "Invalid request", f"Invalid request: not JSON ({error})") from None
    if not isinstance(content, dict):
        raise Refused(INVALID, "Invalid request", "Invalid request: expected one JSON object")
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise Refused(INVALID, "Invalid request", message_of(error)) from None


def _provider_from_headers(websocket: WebSocket) -> DaytonaProviderConfig | None:
    """The Daytona settings in the headers; None unless all three are there."""
    values = {
        name: next((websocket.headers[alias] for alias in aliases if alias in websocket.headers), None)
        for name, aliases in _HEADERS.items()
    }
    return None if None in values.values() else DaytonaProviderConfig.model_validate(values)


def prelude_seconds() -> float:
    """Return how long a stream may take to begin; 0 or less is for ever."""
    name = "BENCHMARK_SERVICE_STREAM_PRELUDE_TIMEOUT_S"
    text = os.environ.get(name, "").strip()
    try:
        return float(text) if text else PRELUDE_SECONDS
    except ValueError:
        raise ValueError(f"{name} must be a number of seconds, not {text!r}") from None


@asynccontextmanager
async def _prelude(stream: _Stream) -> AsyncIterator[None]:
    """Bound the silence before the service speaks; the error names what it was waiting for."""
    seconds = prelude_seconds()
    timer = asyncio.timeout(seconds if seconds > 0 else None)
    try:
        async with timer:
            yield
    except TimeoutError:
        if not timer.expired():
            raise
        said = f"The stream did not begin: still {stream.stage} after {seconds:g} s"
        raise Refused(BROKEN, "Stream prelude timed out", said) from None


async def _while_connected(stream: _Stream, work: Awaitable[None]) -> None:
    """Do `work`, and cancel it as soon as the client is gone, however silent the service is."""
    working = asyncio.ensure_future(_contained(work))
    gone = asyncio.ensure_future(_disconnected(stream.websocket))
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        left = not working.done()
    finally:
        working.cancel()
        gone.cancel()
        await asyncio.gather(working, gone, return_exceptions=True)
    if left:
        raise WebSocketDisconnect(NORMAL)
    if working.cancelled():
        raise ServiceFault("the service cancelled its own stream")
    failure = working.result()
    if failure is not None:
        raise failure


async def _contained(work: Awaitable[None]) -> BaseException | None:
    # Returned, not raised: a SystemExit that leaves a task would end the whole server.
    try:
        await work
    except (Exception, SystemExit) as error:  # noqa: BLE001 - raised again by the caller
        return error
    return None


async def _disconnected(websocket: WebSocket) -> None:
    """Wait for the client to leave; what else it sends has no meaning here."""
    while (await websocket.receive())["type"] != "websocket.disconnect":
        pass


async def _forward(stream: _Stream, chunks: Any) -> None:
    """Send each chunk as it comes, one at a time, and close the generator whatever happens."""
    stream.stage = "streaming"
    if inspect.isawaitable(chunks):
        chunks = await chunks
    if not hasattr(chunks, "__aiter__"):
        raise ServiceFault(f"{stream.name} must be an async generator of chunks, not {type(chunks).__name__}")
    try:
        async for chunk in chunks:
            try:
                frame = chunk_frame(chunk)
            except ServiceFault as fault:
                log.error("%s: %s", stream.name, fault)
                frame = chunk_frame(StreamErrorChunk(type="error", data=str(fault)))
            await stream.websocket.send_text(frame)
    finally:
        close = getattr(chunks, "aclose", None)
        if close is not None:
            await close()


async def _send_error(stream: _Stream, chunk: StreamErrorChunk) -> None:
    if stream.websocket.client_state is WebSocketState.CONNECTED:
        with suppress(RuntimeError, WebSocketDisconnect):
            await stream.websocket.send_text(chunk_frame(chunk))
