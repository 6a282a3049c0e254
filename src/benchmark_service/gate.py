"""The door: who comes in over HTTP, and how much they may carry."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from benchmark_service.failures import detail

if TYPE_CHECKING:
    from benchmark_service.app import BenchmarkServiceApp

PUBLIC_PATHS = frozenset({"/health", "/version"})
MAX_BODY_BYTES = 256 << 20
"""Generous, because the results of a whole run come in one request."""

_TRIAL_PATHS = re.compile(r"/v1/(evaluate|score|datasets/[^/]+/tasks)|/resolve-dataset")


class Gate:
    """Lets in callers the service knows, as `request.state.tenant`; trial tenants only to part of `/v1`."""

    def __init__(self, app: ASGIApp, service_app: BenchmarkServiceApp) -> None:
        self.app = app
        self.service_app = service_app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        path = _route_path(scope)
        headers = Headers(scope=scope)
        if path not in PUBLIC_PATHS:
            tenant = await self.service_app.service.resolve_tenant(dict(headers))
            if tenant is None:
                return await detail(401, "Unauthorized")(scope, receive, send)
            if await is_trial(tenant) and not _TRIAL_PATHS.fullmatch(path):
                refusal = detail(403, "A trial key opens the approved /v1 endpoints only")
                return await refusal(scope, receive, send)
            scope.setdefault("state", {})["tenant"] = tenant
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length) > MAX_BODY_BYTES:
            return await detail(413, _TOO_LARGE)(scope, receive, send)
        return await self.app(scope, _bounded(receive), send)


_TOO_LARGE = f"The request is larger than {MAX_BODY_BYTES >> 20} MiB"


async def is_trial(tenant: str) -> bool:
    """Whether a tenant is on trial. Tenants a service names by itself are not."""
    from benchmark_service import auth

    return auth.auth_required() and await auth.is_trial(tenant)


def _bounded(receive: Receive) -> Receive:
    received = 0

    async def bounded() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > MAX_BODY_BYTES:
            raise HTTPException(413, _TOO_LARGE)
        return message

    return bounded


def _route_path(scope: Scope) -> str:
    """The path as the router matches it, without the prefix the app is mounted under."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path[len(root) :] if root and path.startswith(root + "/") else path
