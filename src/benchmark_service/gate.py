"""Decide which callers reach a service's routes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException

from benchmark_service import auth

if TYPE_CHECKING:
    from starlette.datastructures import Headers
    from starlette.types import Scope

    from benchmark_service.app import BenchmarkServiceApp

PUBLIC_PATHS = frozenset({"/health", "/version"})
MAX_BODY_BYTES = 256 << 20
"""Generous, because the results of a whole run come in one request."""

_TRIAL_PATHS = re.compile(r"/v1/(evaluate|score|datasets/[^/]+/tasks)|/resolve-dataset")


class TenantAdmission:
    """Admit callers the service knows, as `request.state.tenant`; trial tenants only to part of `/v1`."""

    def __init__(self, service_app: BenchmarkServiceApp) -> None:
        self._service_app = service_app

    async def admit(self, scope: Scope, headers: Headers) -> None:
        """Note the request's tenant in its scope, or raise HTTPException. Websockets are checked later."""
        path = _route_path(scope)
        if scope["type"] != "http" or path in PUBLIC_PATHS:
            return
        tenant = await self._service_app.service.resolve_tenant(dict(headers))
        if tenant is None:
            raise HTTPException(401, "Unauthorized")
        if await is_trial(tenant) and not _TRIAL_PATHS.fullmatch(path):
            raise HTTPException(403, "A trial key opens the approved /v1 endpoints only")
        scope.setdefault("state", {})["tenant"] = tenant


async def is_trial(tenant: str) -> bool:
    """Return whether a tenant is on trial. Tenants a service names by itself are not."""
    return auth.auth_required() and await auth.is_trial(tenant)


def _route_path(scope: Scope) -> str:
    """Return the path as the router matches it, without the prefix the app is mounted under."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path[len(root) :] if root and path.startswith(root + "/") else path
