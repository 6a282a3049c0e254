"""Decide which requests reach the tracker's routes: which host was meant, and who asks."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException

from sandboxes.web_gate import BodyError, bearer_token
from valkyrie.api.answers import Refusal, refusal, refused
from valkyrie.api.capacity import ApiSettings, ask_for, is_loopback
from valkyrie.api.context import check_role
from valkyrie.errors import ValkyrieError

if TYPE_CHECKING:
    from starlette.datastructures import Headers
    from starlette.types import Scope

    from valkyrie.api.context import RequestIdentifier

OPEN_PATHS = frozenset({"/health", "/openapi.json", "/v1/init"})
"""`/v1/init` asks for a key itself: whoever shows one has no organisation yet."""
METRICS = "/metrics"
_ARCHIVES = ("/v1/agents/", "/v1/uploads/", "/v1/ingest")


class RefusedError(HTTPException):
    """A request ends here, with this answer."""

    def __init__(self, told: Refusal) -> None:
        super().__init__(told.status, told.detail.message, told.headers)
        self.told = told


class TrackerAdmission:
    """Refuse strangers, and pages of other sites, before a body is read or a name looked up."""

    def __init__(self, settings: ApiSettings, door: RequestIdentifier) -> None:
        self._settings = settings
        self._door = door

    def limit(self, scope: Scope) -> int:
        """Return how many bytes the request's body may have."""
        archive = scope["method"] == "PUT" and scope["path"].startswith(_ARCHIVES)
        return self._settings.upload_limit if archive else self._settings.json_limit

    async def admit(self, scope: Scope, headers: Headers) -> None:
        """Note who asks in the request's scope, or raise RefusedError."""
        self._check_host(headers)
        try:
            await self._identify(scope, headers)
        except ValkyrieError as error:
            raise RefusedError(refusal(error)) from error

    def _check_host(self, headers: Headers) -> None:
        """Refuse pages that reach this machine's server by a name of their own, or in a user's name."""
        host = _host_of(headers.get("host", ""))
        if self._settings.loopback and not is_loopback(host) and host != self._settings.host:
            raise RefusedError(
                refused(
                    400,
                    "This tracker listens on loopback and answers no other Host. A proxy before it sends "
                    f"`Host: {self._settings.host}`.",
                )
            )
        origin = headers.get("origin")
        if origin is not None and not _is_of(origin, headers.get("host", "")):
            raise RefusedError(refused(403, "Pages of other sites may not call this tracker."))

    async def _identify(self, scope: Scope, headers: Headers) -> None:
        path: str = scope["path"]
        ask_for(None)  # a connection's next request begins in the context of the one before
        if path in OPEN_PATHS:
            return
        token = self._settings.metrics_token
        if path == METRICS and token is not None:
            shown = bearer_token(headers).encode("utf-8", "replace")
            if not hmac.compare_digest(shown, token.encode()):
                unknown = refused(
                    401, "Metrics need their own token.", headers={"WWW-Authenticate": "Bearer"}
                )
                raise RefusedError(unknown)
            return
        identity = await self._door.identify(headers)
        check_role(identity, scope.get("method", "GET"), path)
        ask_for(identity.org_id)
        scope["identity"] = identity


def _is_of(origin: str, host: str) -> bool:
    """Whether a page's origin is this very server; another port of the same machine is another site."""
    scheme, _, netloc = origin.lower().partition("://")
    usual = {"http": ":80", "https": ":443"}.get(scheme, "")
    return bool(netloc) and netloc.removesuffix(usual) == host.lower().removesuffix(usual)


def _host_of(netloc: str) -> str:
    """The host of `host`, `host:port` or `[v6]:port`."""
    try:
        return (urlsplit(f"//{netloc}").hostname or "").lower()
    except ValueError:
        return ""


def refusal_of_body(error: BodyError) -> Refusal:
    """Return the answer to a request whose body is refused."""
    return refused(error.status_code, f"{error.detail}.", cause=error.cause)
