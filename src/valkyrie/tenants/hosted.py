"""Hosted mode: people are known to Descope, and each of its tenants is an organisation here."""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from benchmark_service.allowlist import descope_client, only_tenant
from sandboxes.masker import Masker
from sandboxes.registry import add_extra
from valkyrie.domain import Identity, Role
from valkyrie.errors import (
    AccessError,
    InfrastructureError,
    UnknownError,
    UsageError,
    UserError,
    ValkyrieError,
)
from valkyrie.store import tenants
from valkyrie.tenants.organisation import Joined, Mode, one_of

if TYPE_CHECKING:
    from valkyrie.store import Store
    from valkyrie.store.tenants import Org

REMEMBER_S = 300.0
"""How long an exchange is remembered at most: a key that was revoked is refused after that."""
MOST_REMEMBERED = 4096
_STRIPES = 64
_EXCHANGES = 4
_TURN_S = 2.0
_REFRESH_TOKEN = "DSR"  # noqa: S105 - what such a token calls itself
_LONGEST = 128

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HostedSettings:
    """How Descope is reached."""

    project_id: str
    base_url: str | None = None
    management_key: str | None = field(default=None, repr=False)
    """With it, people of keys without an e-mail address are looked up."""


@dataclass(frozen=True, slots=True)
class DescopeCaller:
    """Whom Descope says a key or token belongs to."""

    tenant: str
    tenant_name: str
    person: str
    key_id: str | None
    role: Role
    until: float


def hosted_settings() -> HostedSettings:
    """From the server's environment; UserError says what is missing."""
    project = os.environ.get("DESCOPE_PROJECT_ID", "").strip()
    if not project:
        raise UserError("AUTH_REQUIRED is set but DESCOPE_PROJECT_ID is not: nobody could be let in.")
    if find_spec("descope") is None:
        raise UserError(f"Hosted mode needs the Descope SDK: {add_extra('hosted')}")
    base_url = os.environ.get("DESCOPE_BASE_URL") or os.environ.get("DESCOPE_BASE_URI")
    return HostedSettings(project, base_url or None, os.environ.get("DESCOPE_MANAGEMENT_KEY") or None)


class HostedAuthenticator:
    """Access keys are exchanged, session tokens are verified; both must be of exactly one tenant."""

    mode: Mode = "hosted"

    def __init__(
        self, store: Store, settings: HostedSettings, clock: Callable[[], float] = time.time
    ) -> None:
        self._store = store
        self._settings = settings
        self._clock = clock
        self._callers: OrderedDict[str, DescopeCaller] = OrderedDict()
        self._lock = threading.Lock()
        # One exchange at a time of a key that many requests show at once, and few in all: while Descope
        # hangs, those whose keys are remembered must find a thread.
        self._stripes = [threading.Lock() for _ in range(_STRIPES)]
        self._exchanges = threading.BoundedSemaphore(_EXCHANGES)

    def identify(self, api_key: str | None, bearer: str | None) -> Identity:
        caller = self._caller(api_key, bearer)
        with self._store.reading() as connection:
            org = tenants.org_by_tenant(connection, caller.tenant)
        if org is None:
            raise UnknownError(
                "Your organisation is not known to this tracker yet: `valk config init --mode hosted` "
                "makes it known.",
                cause="unknown_organisation",
            )
        return Identity(org.id, org.name, caller.person, caller.key_id, role=caller.role)

    def init(self, api_key: str | None, bearer: str | None) -> Joined:
        caller = self._caller(api_key, bearer)
        org, created = self._join(caller)
        return Joined(org.name, created, caller.person)

    def _join(self, caller: DescopeCaller) -> tuple[Org, bool]:
        with self._store.writing() as connection:
            for name in (caller.tenant_name, f"{caller.tenant_name[: _LONGEST // 2]} ({caller.tenant})"):
                if org := tenants.org_by_tenant(connection, caller.tenant):
                    return org, False
                try:
                    return tenants.create_org(connection, name[:_LONGEST], caller.tenant), True
                except UsageError:
                    continue  # another tenant has that name, or a colleague was faster
            if org := tenants.org_by_tenant(connection, caller.tenant):
                return org, False
        raise UserError(f"No name is free for the organisation of tenant {caller.tenant!r}.")

    def _caller(self, api_key: str | None, bearer: str | None) -> DescopeCaller:
        if api_key and bearer:
            raise AccessError("Send an access key (X-Api-Key) or a session token (Authorization), not both.")
        shown = one_of(api_key, bearer)
        # A digest, so that neither the cache nor a dump of it holds anyone's key.
        slot = hashlib.sha256(shown.encode()).hexdigest()
        if caller := self._remembered(slot):
            return caller
        with _soon(self._stripes[int(slot[:8], 16) % _STRIPES]):
            if caller := self._remembered(slot):
                return caller
            with _soon(self._exchanges):
                caller = self._ask(shown)
            with self._lock:
                self._callers[slot] = caller
                while len(self._callers) > MOST_REMEMBERED:
                    self._callers.popitem(last=False)
            return caller

    def _remembered(self, slot: str) -> DescopeCaller | None:
        with self._lock:
            caller = self._callers.get(slot)
            if caller is None or caller.until <= self._clock():
                self._callers.pop(slot, None)
                return None
            self._callers.move_to_end(slot)
            return caller

    def _ask(self, shown: str) -> DescopeCaller:
        """Return what Descope says of it; a token is three parts with dots, an access key has none."""
        is_token = shown.count(".") == 2
        try:
            claims = self._verified(shown) if is_token else self._exchanged(shown)
            tenant = _tenant_of(claims)
        except Exception as error:  # noqa: BLE001 - the vendor's SDK and whatever it is built on
            raise _refusal(error, shown) from None
        token: Mapping[str, Any] = claims.get("sessionToken") or claims
        now = self._clock()
        expires = token.get("exp")
        return DescopeCaller(
            tenant,
            self._tenant_name(tenant, claims["tenants"][tenant]),
            self._person(token, None if is_token else claims.get("keyId")),
            None if is_token else claims.get("keyId"),
            _role_of(claims["tenants"][tenant]),
            min(float(expires), now + REMEMBER_S) if expires else now + REMEMBER_S,
        )

    def _client(self) -> Any:
        settings = self._settings
        return descope_client(settings.project_id, settings.base_url, settings.management_key)

    def _exchanged(self, key: str) -> Any:
        return self._client().exchange_access_key(key)

    def _verified(self, token: str) -> Any:
        claims = self._client().validate_session(token)
        if claims.get("drn") == _REFRESH_TOKEN:
            raise PermissionError("a refresh token is no session token")
        return claims

    def _tenant_name(self, tenant: str, told: Any) -> str:
        name = told.get("name") if isinstance(told, Mapping) else None
        if not name and self._settings.management_key:
            name = self._looked_up(lambda mgmt: mgmt.tenant.load(tenant).get("name"))
        return _printable(name) or _printable(tenant) or "tenant"

    def _person(self, token: Mapping[str, Any], key_id: str | None) -> str:
        email = token.get("email")
        if not email and self._settings.management_key:
            email = self._looked_up(lambda mgmt: _email_of(mgmt, token, key_id))
        fallback = f"key {key_id}" if key_id else token.get("name") or token.get("sub")
        return _printable(email) or _printable(fallback) or "unknown"

    def _looked_up(self, question: Callable[[Any], Any]) -> Any:
        try:
            return question(self._client().mgmt)
        except Exception as error:  # noqa: BLE001 - a name for people; whoever has a good key is let in without
            log.warning("Descope's management API did not answer: %s", type(error).__name__)
            return None


@contextmanager
def _soon(room: threading.Lock | threading.Semaphore) -> Iterator[None]:
    """Wait a little for one's turn, not for ever."""
    if not room.acquire(timeout=_TURN_S):
        raise _unavailable()
    try:
        yield
    finally:
        room.release()


def _tenant_of(claims: Any) -> str:
    chosen = claims.get("dct")
    return chosen if isinstance(chosen, str) and chosen in claims["tenants"] else only_tenant(claims)


def _role_of(told: Any) -> Role:
    """The highest of our roles that Descope says the caller has in the tenant.

    Whom it gives none of them may do everything, as before there were roles.
    """
    names = told.get("roles") if isinstance(told, Mapping) else None
    given = {str(name).lower() for name in names} if isinstance(names, list) else set()
    return next((role for role in reversed(Role) if role.value in given), Role.ADMIN)


def _email_of(mgmt: Any, token: Mapping[str, Any], key_id: str | None) -> Any:
    """The address of the user a key is bound to, or who is signed in."""
    user_id = token.get("sub")
    if key_id:
        user_id = mgmt.access_key.load(key_id).get("key", {}).get("userId")
    return mgmt.user.load_by_user_id(user_id).get("user", {}).get("email") if user_id else None


def _printable(text: Any) -> str:
    """A text of another service, fit for a column and a terminal."""
    cleaned = "".join(c for c in text if c.isprintable()).strip() if isinstance(text, str) else ""
    return cleaned[:_LONGEST]


def _unavailable() -> InfrastructureError:
    return InfrastructureError(
        "The identity provider cannot be asked now; try again in a moment.",
        cause="identity_provider",
        retry_after=5.0,
    )


def _refusal(error: Exception, shown: str) -> ValkyrieError:
    """Return whether the key is no good, or Descope cannot say so now."""
    import httpx

    said = Masker([shown]).text(str(error))[:300]
    status, kind = getattr(error, "status_code", None), getattr(error, "error_type", None)
    unavailable = isinstance(error, httpx.HTTPError) or status == 429
    # The SDK also says 500 of tokens it cannot read; only "server error" is an answer of the service.
    if unavailable or (kind == "server error" and isinstance(status, int) and status >= 500):
        log.warning("Descope cannot be asked: %s", said)
        return _unavailable()
    log.info("a key or token was refused: %s", said)
    reason = f": {error}" if isinstance(error, PermissionError) else ""
    return AccessError(
        f"This key or session is not accepted{reason}. Ask for a new one, then `valk config init`."
    )
