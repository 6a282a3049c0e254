"""The web application: routes, the gate in front of them, and how errors are told."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from typing import TYPE_CHECKING

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import BaseRoute

from sandboxes.web_gate import BodyError, BodyPace, RequestGate
from valkyrie import __version__
from valkyrie.api.answers import refuse
from valkyrie.api.auth import Door, Doorkeeper, OpenDoor
from valkyrie.api.context import Context
from valkyrie.api.describing import describe
from valkyrie.api.errors import Refusal, refusal, refused
from valkyrie.api.gate import RefusedError, TrackerAdmission, refusal_of_body
from valkyrie.api.hub import EventHub
from valkyrie.api.journal import Journal
from valkyrie.api.lanes import Lanes
from valkyrie.api.metrics import Metrics
from valkyrie.api.query_check import known_words
from valkyrie.api.receiving import sweep_incoming
from valkyrie.api.routes import (
    agents,
    benchmarks,
    health,
    ingest,
    jobs,
    organisation,
    queue,
    runs,
    secrets,
    trials,
    uploads,
)
from valkyrie.api.settings import ApiSettings
from valkyrie.errors import ValkyrieError

if TYPE_CHECKING:
    from valkyrie.tracker.app import TrackerApp

NOUNS = (health, organisation, runs, trials, jobs, queue, ingest, agents, uploads, secrets, benchmarks)


def create_app(tracker_app: TrackerApp, settings: ApiSettings | None = None) -> FastAPI:
    """The application on one tracker_app. It owns neither the tracker_app nor an executor."""
    settings = settings or ApiSettings()
    lanes, metrics = Lanes(settings), Metrics()
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
    app.add_middleware(Journal, metrics=metrics)
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
    """What applications of one process share: deriving validators from a hundred types takes a while."""
    whole = FastAPI(
        openapi_url=None,
        generate_unique_id_function=lambda route: f"{route.tags[0]}_{route.name}",
        dependencies=[known_words],
    )
    for noun in NOUNS:
        whole.include_router(noun.routes)
    return tuple(whole.routes)


def _door(tracker_app: TrackerApp, settings: ApiSettings, lanes: Lanes) -> Door:
    if not settings.auth:
        return OpenDoor()
    from valkyrie.organisation.access import open_authenticator

    return Doorkeeper(open_authenticator(tracker_app.store), lanes.doors)


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
