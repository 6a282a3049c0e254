"""Descope, the hosted identity provider: its client, and whose a token is. The SDK is loaded when needed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from benchmark_service.allowlist import LEGACY_TENANT

__all__ = ["descope_client", "only_tenant"]


@lru_cache(maxsize=4)
def descope_client(project_id: str, base_url: str | None = None, management_key: str | None = None) -> Any:
    """A client of the project; `base_url` points it elsewhere. Blocking, for any thread."""
    from descope import DescopeClient

    return DescopeClient(
        project_id=project_id, base_url=base_url or None, management_key=management_key, timeout_seconds=10
    )


def only_tenant(claims: Any) -> str:
    """The one tenant a token is scoped to; PermissionError when there is none, or are several."""
    tenants = claims.get("tenants") if isinstance(claims, Mapping) else None
    if not isinstance(tenants, Mapping) or len(tenants) != 1:
        raise PermissionError("the access key must be scoped to exactly one tenant")
    tenant = next(iter(tenants))
    if not isinstance(tenant, str) or not tenant or tenant == LEGACY_TENANT:
        raise PermissionError("the access key's tenant has no usable name")
    return tenant
