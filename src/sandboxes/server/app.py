"""The web application: the gate, the routes, and how errors are told."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.responses import JSONResponse, Response

from sandboxes.errors import SandboxError
from sandboxes.server import commands, file_routes, ptys, sandbox_routes, sessions
from sandboxes.server.gate import GrantAdmission, RevocableRequests, answer, limit
from sandboxes.server.server import AccessTable, ApiError, api_error, error_body
from sandboxes.web_gate import RequestGate

TOOLBOX = "/toolbox"
"""Where the calls that go into one sandbox begin; its id follows."""


def create_app(table: AccessTable, base_url: Callable[[], str]) -> FastAPI:
    """The application for the tokens in `table`, reached at `base_url()`."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.state.toolbox_url = lambda: f"{base_url()}{TOOLBOX}"
    app.include_router(sandbox_routes.router, prefix="/api/sandbox")
    for module in (commands, sessions, ptys, file_routes):
        app.include_router(module.router, prefix=f"{TOOLBOX}/{{sandbox_id}}")
    app.add_exception_handler(ApiError, _tell)
    app.add_exception_handler(SandboxError, _tell)
    app.add_exception_handler(HTTPException, _tell)
    app.add_exception_handler(RequestValidationError, _tell)
    app.add_exception_handler(ClientDisconnect, _tell_no_one)
    app.add_exception_handler(Exception, _tell_nothing)
    app.add_middleware(RevocableRequests)
    app.add_middleware(RequestGate, admit=GrantAdmission(table).admit, answer=answer, limit=limit)
    return app


async def _tell(connection: HTTPConnection, error: Exception) -> Response:
    return answer(connection.scope, _as_api_error(error))


async def _tell_no_one(_request: Request, _error: Exception) -> Response:
    return Response(status_code=499)


async def _tell_nothing(request: Request, _error: Exception) -> Response:
    # The error itself goes to the log by way of the server; it may name files of this machine.
    return JSONResponse(error_body(500, "The sandbox server failed; its log says why", request.url.path), 500)


def _as_api_error(error: Exception) -> ApiError:
    if isinstance(error, ApiError):
        return error
    if isinstance(error, SandboxError):
        return api_error(error)
    if isinstance(error, HTTPException):
        return ApiError(error.status_code, error.detail, headers=dict(error.headers or {}))
    assert isinstance(error, RequestValidationError)
    wrong = "; ".join(f"{'.'.join(map(str, e['loc'][1:]))}: {e['msg']}" for e in error.errors()[:5])
    return ApiError(400, f"The request is not understood: {wrong}")
