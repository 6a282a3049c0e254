"""The web application: routes, their OpenAPI description, the gate before them, and how errors are told."""

from __future__ import annotations

import ast
import inspect
import logging
import re
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

from fastapi import Depends, FastAPI, Request
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import BaseRoute

from sandboxes.web_gate import BodyError, BodyPace, RequestGate
from valkyrie import __version__
from valkyrie.api import answers, bodies
from valkyrie.api.answers import Refusal, broken, refusal, refuse, refused
from valkyrie.api.capacity import ApiSettings, WorkerPools
from valkyrie.api.context import (
    Context,
    KeyIdentifier,
    OpenIdentifier,
    RefusedError,
    RequestIdentifier,
    TrackerAdmission,
    refusal_of_body,
)
from valkyrie.api.hub import EventHub
from valkyrie.api.routes import jobs as routes_jobs
from valkyrie.api.routes import library, server
from valkyrie.api.routes import runs as routes_runs
from valkyrie.api.routes.server import ServerMetrics
from valkyrie.api.streams import STREAMED, cut, sweep_incoming
from valkyrie.errors import UsageError, ValkyrieError
from valkyrie.tenants.organisation import open_authenticator
from valkyrie.text import did_you_mean
from valkyrie.views import jobs, requests, resources, results, runs

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from valkyrie.tracker.app import TrackerApp


_MODULES: tuple[ModuleType, ...] = (
    resources,
    requests,
    results,
    runs,
    jobs,
    bodies,
    answers,
    server,
    routes_runs,
    library,
)


def describe(app: FastAPI) -> None:
    """Let the application describe itself with what its types say of their fields."""
    plain = app.openapi

    def complete() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _completed(plain())
        return app.openapi_schema

    app.openapi = complete  # type: ignore[method-assign]


def _completed(schema: dict[str, Any]) -> dict[str, Any]:
    schemas = schema["components"]["schemas"]
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    for operation in _operations(schema):
        told = operation["responses"].get("422", {})
        if "HTTPValidationError" in str(told):
            del operation["responses"]["422"]  # ours are 400
    for name, found in schemas.items():
        for field, words in _field_docs().get(name, {}).items():
            if field in found.get("properties", {}):
                found["properties"][field].setdefault("description", words)
    return schema


def _operations(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for methods in schema["paths"].values():
        yield from methods.values()


@cache
def _field_docs() -> dict[str, dict[str, str]]:
    """The text under each field of each class of the modules views are in."""
    found: dict[str, dict[str, str]] = {}
    for module in _MODULES:
        for node in ast.parse(inspect.getsource(module)).body:
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, {}).update(_docs_of(node))
    return found


def _docs_of(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, words in zip(node.body, node.body[1:], strict=False):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        if isinstance(words, ast.Expr) and isinstance(words.value, ast.Constant):
            yield field.target.id, inspect.cleandoc(str(words.value.value))


# The web application: routes, the gate and request log before them, and how errors are told.


async def _check_words(request: Request) -> None:
    """Refuse an unknown query parameter: a misspelt filter would otherwise filter nothing."""
    route = request.scope.get("route")
    known = _words(route.dependant) if isinstance(route, APIRoute) else []
    for name, value in request.query_params.multi_items():
        if name not in known:
            raise UsageError(f"Unknown query parameter {name[:80]!r}.{did_you_mean(name, known)}")
        if "\0" in value:
            raise UsageError(f"The query parameter {name!r} has a NUL character in it.")
    if any("\0" in str(value) for value in request.path_params.values()):
        raise UsageError("The address has a NUL character in it.")


def _words(dependant: Dependant) -> list[str]:
    """The query parameters of a route, and of what it depends on."""
    own = [one.alias for one in dependant.query_params]
    return own + [word for inner in dependant.dependencies for word in _words(inner)]


known_words = Depends(_check_words)


# Around every request: its id, one line in the log, its measurement, and a plain answer to our mistakes.

log = logging.getLogger("valkyrie.api")
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_LONGEST_PATH = 200
_ALWAYS = ((b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store"))


class RequestLog:
    """The outermost layer. Query strings, headers and bodies are in no line of it: they may hold secrets."""

    def __init__(self, app: ASGIApp, metrics: ServerMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _ID.fullmatch(given) else uuid.uuid4().hex
        scope["request_id"] = request_id
        began, status = time.perf_counter(), 0

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                own = [*_ALWAYS, (b"x-request-id", request_id.encode())]
                message = {**message, "headers": [*message.get("headers", ()), *own]}
            await send(message)

        try:
            await self._app(scope, receive, noting)
        except Exception:
            log.exception("request %s failed: %s %s", request_id, scope["method"], _path(scope))
            if not status:
                await refuse(broken(request_id))(scope, receive, noting)
            elif not cut(scope):
                raise  # half an answer cannot be taken back: the server must close the connection
        finally:
            self._note(scope, status, time.perf_counter() - began)

    def _note(self, scope: Scope, status: int, took: float) -> None:
        method = scope["method"]
        self._metrics.observe(method, route_of(scope), status, took, streamed=STREAMED in scope)
        identity = scope.get("identity")
        who = f" org={identity.org} key={identity.key_id or '-'}" if identity else ""
        log.info(
            "%s %s %d %.1fms request=%s%s",
            method,
            _path(scope),
            status,
            took * 1000,
            scope["request_id"],
            who,
        )


def route_of(scope: Scope) -> str:
    """The template of the route that answers, of which there are few; `other` for no route."""
    route = scope.get("route")
    return str(getattr(route, "path", "other"))


def _path(scope: Scope) -> str:
    """The path as it came, still percent-encoded: nobody writes lines of their own into the log."""
    raw: bytes = scope.get("raw_path") or b"?"
    return raw.partition(b"?")[0].decode("ascii", "replace")[:_LONGEST_PATH]


# The web application: routes, the gate in front of them, and how errors are told.

ROUTERS = (
    *(
        server.health_routes,
        server.organisation_routes,
        routes_runs.routes,
        routes_runs.trial_routes,
        routes_jobs.routes,
    ),
    *(server.queue_routes, library.ingest_routes, library.agent_routes, library.upload_routes),
    *(server.secret_routes, library.benchmark_routes),
)


def create_app(tracker_app: TrackerApp, settings: ApiSettings | None = None) -> FastAPI:
    """The application on one tracker_app. It owns neither the tracker_app nor an executor."""
    settings = settings or ApiSettings()
    lanes, metrics = WorkerPools(settings), ServerMetrics()
    door = _door(tracker_app, settings, lanes)
    hub = EventHub(tracker_app, settings, lanes.events)
    app = bare_app()
    app.state.context = Context(tracker_app, settings, lanes, door, hub, metrics)
    app.router.lifespan_context = _lifespan
    admission = TrackerAdmission(settings, door)
    app.add_middleware(
        RequestGate,
        admit=admission.admit,
        answer=lambda _scope, error: refuse(_refusal(error)),
        limit=admission.limit,
        pace=BodyPace(settings.body_pause_s, settings.body_rate),
    )
    app.add_middleware(RequestLog, metrics=metrics)
    return app


def bare_app() -> FastAPI:
    """The routes without anything behind them: what is described in OpenAPI."""
    app = FastAPI(
        title="Valkyrie tracker",
        version=__version__,
        description="Runs of agents on benchmarks: start them, watch them, take their results.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        routes=list(_routes()),
    )
    for kind in (ValkyrieError, HTTPException, RequestValidationError, RefusedError):
        app.add_exception_handler(kind, _tell)
    app.add_exception_handler(ClientDisconnect, _tell_no_one)
    describe(app)
    return app


@cache
def _routes() -> tuple[BaseRoute, ...]:
    """Return what applications of one process share: deriving validators from a hundred types takes a
    while."""
    whole = FastAPI(
        openapi_url=None,
        generate_unique_id_function=lambda route: f"{route.tags[0]}_{route.name}",
        dependencies=[known_words],
    )
    for router in ROUTERS:
        whole.include_router(router)
    return tuple(whole.routes)


def _door(tracker_app: TrackerApp, settings: ApiSettings, lanes: WorkerPools) -> RequestIdentifier:
    if not settings.auth:
        return OpenIdentifier()
    return KeyIdentifier(open_authenticator(tracker_app.store), lanes.doors)


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    context: Context = app.state.context
    sweep_incoming(context.tracker_app.data)
    context.hub.start()
    _warm_up(app)
    try:
        yield
    finally:
        await end_streams(app)


def _warm_up(app: FastAPI) -> None:
    """FastAPI finishes a route when it first looks at it, which takes long: not while somebody waits."""
    nowhere = {"type": "http", "method": "GET", "path": "/", "root_path": "", "headers": []}
    for route in app.routes:
        route.matches(nowhere)


async def end_streams(app: FastAPI) -> None:
    """End what would never end by itself: event streams and followed logs."""
    context: Context = app.state.context
    context.lanes.followers.close()
    context.lanes.watchers.close()
    await context.hub.close()


async def _tell(_request: Request, error: Exception) -> Response:
    return refuse(_refusal(error))


async def _tell_no_one(_request: Request, _error: Exception) -> Response:
    return Response(status_code=499)


def _refusal(error: Exception) -> Refusal:
    if isinstance(error, RefusedError):
        return error.told
    if isinstance(error, BodyError):
        return refusal_of_body(error)
    if isinstance(error, ValkyrieError):
        return refusal(error)
    if isinstance(error, HTTPException):
        return refused(error.status_code, _detail(error), headers=dict(error.headers or {}))
    assert isinstance(error, RequestValidationError)
    # Without what was given: it may be a secret.
    wrong = [
        f"{'.'.join(map(str, one['loc'][1:])) or one['loc'][0]}: {one['msg'].rstrip('.')}"
        for one in error.errors()[:5]
    ]
    whole = any(tuple(one["loc"]) == ("body",) for one in error.errors())
    hint = " A JSON object is wanted, with `Content-Type: application/json`." if whole else ""
    return refused(400, f"The request is not understood: {'; '.join(wrong)}.{hint}")


def _detail(error: HTTPException) -> str:
    if error.status_code == 404:
        return "There is nothing at this address."
    if error.status_code == 405:
        return "This address does not take that method."
    return str(error.detail)
