"""Who is calling: a Descope tenant, a holder of the static key, or anybody, as the environment says.

Everything is read from the environment at each call. Whatever cannot be decided is refused.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import inspect
import logging
import os
import time
from collections import OrderedDict
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmark_service import admission, allowlist
from benchmark_service.allowlist import (
    LEGACY_TENANT,
    Allowlist,
    CatalogAllowlistClient,
    SingleFlight,
    TenantPolicy,
    descope_client,
    only_tenant,
)
from sandboxes.masker import Masker
from sandboxes.registry import add_extra

__all__ = [
    "LEGACY_TENANT",
    "auth_required",
    "check_settings",
    "clear_allowlist_cache",
    "clear_auth_cache",
    "consume_quota",
    "dataset_allowed",
    "is_trial",
    "load_allowlist",
    "resolve_tenant",
]

log = logging.getLogger(__name__)

AUTH_CACHE_SIZE = 1024
DEFAULT_AUTH_CACHE_TTL_S = 300.0
MAX_ACCESS_KEY_LENGTH = 4096
EXCHANGE_TIMEOUT_S = 15.0


@dataclass(frozen=True, slots=True)
class _Caller:
    """Whom this request was resolved to, with what the catalogue said of them."""

    tenant: str
    policy: TenantPolicy = field(repr=False)


_caller: ContextVar[_Caller | None] = ContextVar("benchmark_service_caller", default=None)
_tenants: OrderedDict[str, tuple[float, str]] = OrderedDict()
_exchanges: SingleFlight[Any] = SingleFlight()
_catalog_client = CatalogAllowlistClient()


def auth_required() -> bool:
    """Return whether every caller must show a Descope access key."""
    return os.environ.get("AUTH_REQUIRED", "").strip().lower() in ("1", "true", "yes", "on")


def check_settings() -> None:
    """Raise ValueError for settings nobody could be let in with safely; run once at startup."""
    _cache_ttl()
    if not auth_required():
        if allowlist.catalog_url():
            log.warning(
                "BENCHMARK_CATALOG_API_URL is set but AUTH_REQUIRED is not: the catalogue is not asked"
            )
        return
    if allowlist.catalog_url():
        if not os.environ.get("SERVICE_NAME", "").strip():
            raise ValueError("BENCHMARK_CATALOG_API_URL is set but SERVICE_NAME is not")
    elif not Allowlist.model_validate(load_allowlist()).tenants:
        log.error(
            "AUTH_REQUIRED is set but no tenant is on the list: every request will be refused; set "
            'DESCOPE_TENANT_ALLOWLIST_JSON={"tenants": {"TENANT": {"datasets": ["default"]}}}'
        )
    if not os.environ.get("DESCOPE_PROJECT_ID", "").strip():
        log.error("AUTH_REQUIRED is set but DESCOPE_PROJECT_ID is not: every request will be refused")
    if find_spec("descope") is None:
        log.error(
            "AUTH_REQUIRED is set but Descope's SDK is missing: every request will be refused; %s",
            add_extra("hosted"),
        )


async def resolve_tenant(headers: Mapping[str, str]) -> str | None:
    """The caller's tenant, LEGACY_TENANT where tenants are not asked for, None to refuse (401)."""
    _caller.set(None)
    if not auth_required():
        return LEGACY_TENANT if _static_key_matches(headers.get("authorization", "")) else None
    key = headers.get("x-descope-api-key", "")
    if not key or len(key) > MAX_ACCESS_KEY_LENGTH:
        return None
    try:
        tenant = await _tenant_of(key)
        policy = await _policy_of(tenant, key)
    except Exception as error:  # noqa: BLE001 - a vendor's SDK, the network, a bad list: all refuse
        log.warning("authentication failed closed: %s: %s", type(error).__name__, _without(key, str(error)))
        return None
    if policy is None:
        log.info("tenant %r is not on the allowlist", tenant)
        return None
    _caller.set(_Caller(tenant, policy))
    return tenant


async def dataset_allowed(tenant: str, dataset: str | None) -> bool:
    """Return whether the tenant may use the dataset; callers without a tenant may use all."""
    if tenant == LEGACY_TENANT:
        return True
    policy = _known_policy(tenant)
    return policy is not None and policy.allows(dataset)


async def is_trial(tenant: str) -> bool:
    """Return whether the tenant sees reduced results only; one of ours that is on no list any more does.

    Tenants that a service names by itself (without AUTH_REQUIRED, or by a `resolve_tenant` of its own) are on
    no list, unless its operator put them there.
    """
    if tenant == LEGACY_TENANT or not auth_required():
        return False
    policy = _known_policy(tenant) or _policy_behind(tenant)
    return policy.trial_mode if policy is not None else not _named_by_service()


async def consume_quota(service_name: str, tenant: str) -> None:
    """Count one evaluation of the tenant; raises quota.QuotaReached or quota.QuotaUnavailable."""
    if tenant == LEGACY_TENANT or not auth_required():
        return
    policy = _known_policy(tenant) or _policy_behind(tenant)
    if policy is None:
        if _named_by_service():
            return
        raise admission.QuotaUnavailable("Evaluation quota of this tenant is not known.")
    if policy.evaluation_quota is not None:
        await admission.consume_window(service_name, tenant, policy.evaluation_quota)


def load_allowlist() -> Allowlist:
    """The local list as it is now, parsed again only when its source changed."""
    path = os.environ.get("DESCOPE_ALLOWLIST_PATH", "").strip()
    try:
        stat = Path(path).stat() if path else None
    except OSError:
        stat = None
    changed = (stat.st_mtime_ns, stat.st_size, stat.st_ino) if stat else None
    return _parsed_allowlist(os.environ.get("DESCOPE_TENANT_ALLOWLIST_JSON", ""), path, changed)


@lru_cache(maxsize=4)
def _parsed_allowlist(_json: str, _path: str, _changed: tuple[int, int, int] | None) -> Allowlist:
    return allowlist.load_allowlist()


def clear_allowlist_cache() -> None:
    """Forget the parsed list and every answer of the catalogue."""
    _parsed_allowlist.cache_clear()
    _catalog_client.clear()


def clear_auth_cache() -> None:
    """Forget which key belongs to which tenant."""
    _tenants.clear()


def _static_key_matches(authorization: str) -> bool:
    expected = os.environ.get("BENCHMARK_API_KEY", "")
    if not expected:
        return True
    return hmac.compare_digest(authorization.encode(), f"Bearer {expected}".encode())


async def _tenant_of(key: str) -> str:
    """The one tenant the key is scoped to, from the cache or from Descope."""
    project = os.environ.get("DESCOPE_PROJECT_ID", "").strip()
    if not project:
        raise PermissionError("AUTH_REQUIRED is set but DESCOPE_PROJECT_ID is not")
    # Digests, so that neither the cache nor a dump of it holds anyone's key.
    slot = hashlib.sha256(f"{project}\0{key}".encode()).hexdigest()
    kept = _tenants.get(slot)
    if kept is not None and time.monotonic() < kept[0]:
        _tenants.move_to_end(slot)
        return kept[1]
    _tenants.pop(slot, None)
    tenant = only_tenant(await _exchanges.join(slot, lambda: _exchanged(key, project)))
    _tenants[slot] = (time.monotonic() + _cache_ttl(), tenant)
    while len(_tenants) > AUTH_CACHE_SIZE:
        _tenants.popitem(last=False)
    return tenant


async def _exchanged(key: str, project: str) -> Any:
    # Not `run_blocking`: a hanging exchange holds nothing of ours, so its caller need not wait for it.
    async with asyncio.timeout(EXCHANGE_TIMEOUT_S):
        claims = await asyncio.to_thread(_exchange_descope_access_key, project, key)
        return await claims if inspect.isawaitable(claims) else claims


def _exchange_descope_access_key(project_id: str, access_key: str) -> Any:
    """The verified claims of the key's token; raises whatever the SDK raises. Blocking."""
    return descope_client(project_id, os.environ.get("DESCOPE_BASE_URI")).exchange_access_key(access_key)


async def _policy_of(tenant: str, key: str) -> TenantPolicy | None:
    if allowlist.catalog_url():
        return await _catalog_client.policy(key)
    return _listed(tenant)


def _known_policy(tenant: str) -> TenantPolicy | None:
    """The policy of a resolved tenant: the catalogue's answer to this very request, or the local list's."""
    if allowlist.catalog_url():
        caller = _caller.get()
        return caller.policy if caller is not None and caller.tenant == tenant else None
    return _listed(tenant)


def _policy_behind(tenant: str) -> TenantPolicy | None:
    """Return the policy of the key that a service's own `resolve_tenant` gave another name."""
    caller = _caller.get()
    return caller.policy if caller is not None and caller.tenant != tenant else None


def _named_by_service() -> bool:
    """Return whether nobody of ours resolved this request's caller."""
    return _caller.get() is None


def _listed(tenant: str) -> TenantPolicy | None:
    return Allowlist.model_validate(load_allowlist()).tenants.get(tenant)


def _cache_ttl() -> float:
    text = os.environ.get("DESCOPE_AUTH_CACHE_TTL_SECONDS", "").strip()
    try:
        ttl = float(text) if text else DEFAULT_AUTH_CACHE_TTL_S
    except ValueError:
        ttl = 0.0
    if not 1 <= ttl < float("inf"):
        raise ValueError(f"DESCOPE_AUTH_CACHE_TTL_SECONDS must be a number of at least 1, not {text!r}")
    return ttl


def _without(secret: str, text: str) -> str:
    return Masker([secret]).text(text)[:300]
