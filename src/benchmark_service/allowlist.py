"""Find out whose a token is and which datasets that tenant may use, by a local list or a catalogue."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, TypeVar
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

if TYPE_CHECKING:
    import httpx


T = TypeVar("T")


class SingleFlight(Generic[T]):
    """Work in flight, by key; whoever asks meanwhile shares its result, or its error."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[T]] = {}

    async def join(self, key: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of the work in flight under `key`, started by this call if there is none.

        A caller that is cancelled leaves the work to the others.
        """
        task = self._tasks.get(key)
        if task is None or task.get_loop() is not asyncio.get_running_loop():
            task = asyncio.create_task(work())
            self._tasks[key] = task
            task.add_done_callback(lambda done: self._landed(key, done))
        return await asyncio.shield(task)

    def _landed(self, key: str, task: asyncio.Task[T]) -> None:
        if self._tasks.get(key) is task:
            del self._tasks[key]
        if not task.cancelled():
            task.exception()  # known to those who still wait; without them nobody needs to hear of it


# Which tenants may use which datasets: a local list, or a catalogue that is asked with the caller's key.

LEGACY_TENANT = "_legacy"
"""The tenant of callers without one: bearer keys, custom auth, open services. No list may name it."""

CATALOG_TIMEOUT_S = 5.0
CATALOG_CACHE_TTL_S = 300.0
CATALOG_CACHE_SIZE = 1024
MAX_CATALOG_BYTES = 1 << 20

Name = Annotated[str, Field(min_length=1, max_length=256)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class EvaluationQuota(_Strict):
    """How many evaluations a tenant may ask for in one calendar period (UTC)."""

    limit: int = Field(ge=1)
    period: Literal["day", "week", "month", "year"]


class TenantPolicy(_Strict):
    """What one tenant may do."""

    datasets: list[Name]
    trial_mode: bool = False
    evaluation_quota: EvaluationQuota | None = None

    def allows(self, dataset: str | None) -> bool:
        """Return whether the dataset is on the list; none given means `default`."""
        return (dataset or "default") in self.datasets


class Allowlist(_Strict):
    """Tenants by name; who is not in it is not let in."""

    tenants: dict[Name, TenantPolicy] = Field(default_factory=dict)

    @field_validator("tenants")
    @classmethod
    def _legacy_is_reserved(cls, tenants: dict[str, TenantPolicy]) -> dict[str, TenantPolicy]:
        if LEGACY_TENANT in tenants:
            raise ValueError(f"the tenant name {LEGACY_TENANT!r} is reserved")
        return tenants


class TenantCatalogEntry(TenantPolicy):
    """What the catalogue answers about one service to one caller."""

    name: str
    trial_mode: bool


def catalog_url() -> str | None:
    """Address of the catalogue, when one decides instead of the local list."""
    return os.environ.get("BENCHMARK_CATALOG_API_URL", "").strip().rstrip("/") or None


def load_allowlist() -> Allowlist:
    """The local list: DESCOPE_TENANT_ALLOWLIST_JSON, else the YAML at DESCOPE_ALLOWLIST_PATH, else empty.

    A malformed list is a ValueError that names the place.
    """
    if text := os.environ.get("DESCOPE_TENANT_ALLOWLIST_JSON", "").strip():
        return _checked(_json(text), "DESCOPE_TENANT_ALLOWLIST_JSON")
    if path := os.environ.get("DESCOPE_ALLOWLIST_PATH", "").strip():
        return _checked(_yaml(Path(path)), f"DESCOPE_ALLOWLIST_PATH ({path})")
    return Allowlist()


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"DESCOPE_TENANT_ALLOWLIST_JSON is not JSON: {error}") from None


def _yaml(path: Path) -> Any:
    import yaml

    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"DESCOPE_ALLOWLIST_PATH: cannot read {path}: {error}") from None


def _checked(data: Any, place: str) -> Allowlist:
    if not isinstance(data, dict) or "tenants" not in data:
        raise ValueError(f"{place}: expected an object with the key 'tenants'")
    try:
        return Allowlist.model_validate(data)
    except ValidationError as error:
        raise ValueError(f"{place}: {_first(error)}") from None


def _first(error: ValidationError) -> str:
    """Return where the first mistake is and what it is, without the value that was there."""
    first = error.errors(include_input=False, include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}" if where else str(first["msg"])


class CatalogAllowlistClient:
    """Asks the catalogue what the holder of a key may do here. Never falls back to a local list.

    `url` and `name` are the catalogue's address and this service's name in it; left out, they are read from
    the environment at each call. `transport` is httpx's, for tests.
    """

    def __init__(
        self,
        url: str | None = None,
        name: str | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._url = url.rstrip("/") if url else None
        self._name = name
        self._transport = transport
        self._clock = clock
        self._entries: OrderedDict[str, tuple[float, TenantCatalogEntry]] = OrderedDict()
        self._questions: SingleFlight[TenantCatalogEntry | None] = SingleFlight()

    async def policy(self, access_key: str) -> TenantPolicy | None:
        """The key holder's policy, None when the catalogue refuses the key or does not know the service.

        Anything else that is not a well-formed answer about this service raises ValueError.
        """
        url = self._url or catalog_url()
        service = self._name or os.environ.get("SERVICE_NAME", "").strip()
        if not url or not service:
            raise ValueError("the catalogue needs BENCHMARK_CATALOG_API_URL and SERVICE_NAME")
        # Digests, so that neither the cache nor a dump of it holds anyone's key.
        slot = hashlib.sha256("\0".join((url, service, access_key)).encode()).hexdigest()
        kept = self._entries.get(slot)
        if kept is not None and self._clock() < kept[0]:
            self._entries.move_to_end(slot)
            return kept[1]
        self._entries.pop(slot, None)
        entry = await self._questions.join(slot, lambda: self._ask(url, service, access_key))
        if entry is not None:
            self._entries[slot] = (self._clock() + CATALOG_CACHE_TTL_S, entry)
            while len(self._entries) > CATALOG_CACHE_SIZE:
                self._entries.popitem(last=False)
        return entry

    def clear(self) -> None:
        """Forget every answer."""
        self._entries.clear()

    async def _ask(self, url: str, service: str, access_key: str) -> TenantCatalogEntry | None:
        import httpx

        address = f"{url}/benchmark-services/{quote(service, safe='')}"
        try:
            async with (
                asyncio.timeout(CATALOG_TIMEOUT_S),
                httpx.AsyncClient(
                    timeout=CATALOG_TIMEOUT_S, follow_redirects=False, transport=self._transport
                ) as client,
                client.stream("GET", address, headers={"x-descope-api-key": access_key}) as answer,
            ):
                if answer.status_code in (401, 403, 404):
                    return None
                if answer.status_code != 200:
                    raise ValueError(f"the catalogue at {url} answered {answer.status_code}")
                body = await _bounded(answer.aiter_bytes())
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
            raise ValueError(f"the catalogue at {url} cannot be reached: {type(error).__name__}") from None
        try:
            entry = TenantCatalogEntry.model_validate_json(body)
        except ValidationError as error:
            raise ValueError(f"the catalogue at {url} answered badly: {_first(error)}") from None
        if entry.name != service:
            raise ValueError(f"the catalogue at {url} answered about another service than {service!r}")
        return entry


async def _bounded(pieces: AsyncIterator[bytes]) -> bytes:
    body = b""
    async for piece in pieces:
        body += piece
        if len(body) > MAX_CATALOG_BYTES:
            raise ValueError(f"the catalogue answered more than {MAX_CATALOG_BYTES} bytes")
    return body


# Descope, the hosted identity provider: its client, and whose a token is. The SDK is loaded when needed.


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


__all__ = [
    "LEGACY_TENANT",
    "Allowlist",
    "CatalogAllowlistClient",
    "EvaluationQuota",
    "TenantPolicy",
    "catalog_url",
    "descope_client",
    "load_allowlist",
    "only_tenant",
]
