"""Who sends a request, whether it is admitted, which role it needs, and how a route asks a verb."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Protocol, cast
from urllib.parse import urlsplit

from fastapi import Depends, Request, Security
from fastapi.security import APIKeyHeader, HTTPBearer
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import Response

from sandboxes.web_gate import BodyError, bearer_token
from valkyrie.api.answers import Refusal, answer, refusal, refused
from valkyrie.api.capacity import ApiSettings, SharedLookups, WorkerPool, WorkerPools, ask_for, is_loopback
from valkyrie.domain import Identity, Role
from valkyrie.errors import AccessError, RoleError, StoreError, UsageError, UserError, ValkyrieError
from valkyrie.store import jobs, tenants
from valkyrie.views import IngestedRun, StartedRun
from valkyrie.views.jobs import StartedJob

if TYPE_CHECKING:
    from starlette.types import Scope

    from valkyrie.api.hub import EventHub, Kind
    from valkyrie.api.routes.server import ServerMetrics
    from valkyrie.store import Connection
    from valkyrie.tenants.organisation import Authenticator, Joined, Mode
    from valkyrie.tracker.app import TrackerApp
    from valkyrie.tracker.local import LocalTracker


_LOOKS = frozenset({"GET", "HEAD"})
_ADMIN = re.compile(r"/v1/organisation(/.*)?|/v1/audit")
_READ_BY_POST = re.compile(r"/v1/runs/[^/]+/(results|outputs|logs)")
"""What is asked for does not fit in an address, so it is posted; nothing is changed."""
_MEMBER_LOOKS = re.compile(r"/v1/runs/[^/]+/shell")
_UNRECORDED = re.compile(r"/v1/(runs|jobs)/plan|/v1/benchmarks/tasks|/v1/uploads/[^/]+")
"""They change nothing, or bring the bytes of a request that is recorded when it comes."""


def needed_role(method: str, path: str) -> Role:
    """Return the least role that may do this; whatever is not known to be a look needs a member."""
    looks = method in _LOOKS or (method == "POST" and _READ_BY_POST.fullmatch(path) is not None)
    if _ADMIN.fullmatch(path) and (not looks or path == "/v1/audit"):
        return Role.ADMIN
    return Role.READER if looks and not _MEMBER_LOOKS.fullmatch(path) else Role.MEMBER


def is_recorded(method: str, path: str) -> bool:
    """Return whether a request changes something, so that who asked for it is written down."""
    looks = method in _LOOKS or _READ_BY_POST.fullmatch(path) or _UNRECORDED.fullmatch(path)
    return not looks


def check_role(identity: Identity, method: str, path: str) -> None:
    """Raise RoleError when the caller's role is not enough for this request."""
    needed = needed_role(method, path)
    if not identity.role.may(needed):
        raise RoleError(
            f"This key has the role {identity.role.value}; {method} {path[:200]} needs {needed.value}. "
            "Whoever runs the tracker makes such keys: "
            f"`valkyrie admin key create --role {needed.value} --person EMAIL`."
        )


# Who asks: from the headers of a request to an identity.

REMEMBER_S = 5.0
"""A revoked key opens nothing after so long."""
_MOST_REMEMBERED = 2048
_PERSON = "x-valkyrie-person"
_LONGEST_PERSON = 200


class RequestCredential(NamedTuple):
    """What a request shows, as it was sent."""

    api_key: str | None
    bearer: str | None

    @property
    def mark(self) -> bytes:
        return hashlib.sha256(f"{self.api_key}\0{self.bearer}".encode()).digest()

    @classmethod
    def of(cls, headers: Headers) -> RequestCredential:
        return cls(headers.get("x-api-key", "").strip() or None, bearer_token(headers) or None)


def access_key(headers: Headers) -> str | None:
    """The key a hosted caller showed; None for a session's token, which is good for this tracker only."""
    shown = RequestCredential.of(headers)
    key = shown.api_key or shown.bearer
    return key if key and key.count(".") != 2 else None


class RequestIdentifier(Protocol):
    """Says who sent a request."""

    @property
    def mode(self) -> Mode: ...

    async def identify(self, headers: Headers) -> Identity:
        """Return who sent these headers; AccessError when nobody we know did."""
        ...

    async def init(self, headers: Headers) -> Joined:
        """Make the caller's organisation, in hosted mode."""
        ...


class KeyIdentifier:
    """Asks the authenticator, and remembers its good answers for a few seconds."""

    def __init__(
        self, authenticator: Authenticator, lane: WorkerPool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.mode: Mode = authenticator.mode
        self._authenticator = authenticator
        self._lane = lane
        self._clock = clock
        self._known: dict[bytes, tuple[Identity, float]] = {}
        self._asking: SharedLookups[bytes, Identity] = SharedLookups()

    async def identify(self, headers: Headers) -> Identity:
        shown = RequestCredential.of(headers)
        mark = shown.mark
        identity, until = self._known.get(mark, (None, 0.0))
        if identity is not None and self._clock() < until:
            return identity
        self._known.pop(mark, None)
        if shown == (None, None):
            raise AccessError("An API key is needed: `Authorization: Bearer KEY`, or `X-Api-Key: KEY`.")
        identity = await self._asking.look(
            mark, lambda: self._lane.run(lambda: self._authenticator.identify(*shown))
        )
        if len(self._known) >= _MOST_REMEMBERED:
            self._known.pop(next(iter(self._known)))
        self._known[mark] = (identity, self._clock() + REMEMBER_S)
        return identity

    async def init(self, headers: Headers) -> Joined:
        shown = RequestCredential.of(headers)
        return await self._lane.run(lambda: self._authenticator.init(*shown))


async def is_welcome(door: RequestIdentifier, headers: Headers, known: Identity) -> bool:
    """Return whether the key of a long answer is still good; a door remembers, so asking costs little."""
    try:
        identity = await door.identify(headers)
    except AccessError:
        return False
    except ValkyrieError:
        return True  # whoever knows keys cannot be asked now; that says nothing about this one
    return identity.org_id == known.org_id


async def until_unwelcome(door: RequestIdentifier, headers: Headers, known: Identity, every_s: float) -> None:
    """Return when the key of a long answer is no longer good."""
    while await is_welcome(door, headers, known):  # noqa: ASYNC110 - of a key that was revoked nobody tells us
        await asyncio.sleep(every_s)


class OpenIdentifier:
    """`--no-auth`, on loopback only: everyone is the default organisation, as whoever they say they are."""

    @property
    def mode(self) -> Mode:
        return "self-hosted"

    async def identify(self, headers: Headers) -> Identity:
        person = headers.get(_PERSON, "").strip()
        plain = person.isprintable() and len(person) <= _LONGEST_PERSON
        return Identity(person=person if person and plain else None)

    async def init(self, headers: Headers) -> Joined:  # noqa: ARG002 - nobody is anybody here
        raise UsageError("This tracker asks for no keys; there is no organisation to make.")


# What every route stands on, and how a route asks a verb.

log = logging.getLogger("valkyrie.api")
DESCOPE = "X-Descope-Api-Key"


@dataclass(frozen=True, slots=True)
class Context:
    """One server's parts, the same for all requests."""

    tracker_app: TrackerApp
    settings: ApiSettings
    lanes: WorkerPools
    door: RequestIdentifier
    hub: EventHub
    metrics: ServerMetrics


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """One request: who asks, and the verbs as they may use them."""

    context: Context
    identity: Identity
    request: Request

    def tracker(self) -> LocalTracker:
        """The verbs, as the caller; hosted benchmark services know people by the keys we know them by."""
        key = access_key(self.request.headers) if self.context.door.mode == "hosted" else None
        return self.context.tracker_app.tracker(self.identity, {DESCOPE: key} if key else None)

    async def quick(self, ask: Callable[[LocalTracker], Any], status: int = 200) -> Response:
        """The answer of a verb that only looks, or changes little."""
        return await self._through(self.context.lanes.quick, ask, status)

    async def slow(self, ask: Callable[[LocalTracker], Any], status: int = 200) -> Response:
        """The answer of a verb that may take its time."""
        return await self._through(self.context.lanes.slow, ask, status)

    async def find(self, kind: Kind, ref: str) -> str:
        """The id of the run or job that `ref` names to the caller."""
        return await self.context.hub.find(kind, self.identity, ref, self.context.lanes.quick)

    async def _through(self, lane: WorkerPool, ask: Callable[[LocalTracker], Any], status: int) -> Response:
        def work() -> Response:
            tracker = self.tracker()
            found = self._recorded(ask, tracker) if self._is_recorded else ask(tracker)
            return Response(status_code=204) if found is None and status == 204 else answer(found, status)

        return await lane.run(work)

    @property
    def _is_recorded(self) -> bool:
        return is_recorded(self.request.method, self.request.scope["path"])

    def _recorded(self, ask: Callable[[LocalTracker], Any], tracker: LocalTracker) -> Any:
        """Do what is asked with who asked for it written down before, and how it ended after."""
        store, route = tracker.store, self.request.scope["route"]
        name = f"{route.tags[0]}_{route.name}"
        with store.writing() as connection:
            number = tenants.record_action(
                connection, self.identity, name, self._subject(tracker, connection)
            )
        outcome: tenants.ActionOutcome = "failed"
        made = None
        try:
            found = ask(tracker)
            outcome, made = "done", _made(found)
        except UserError:
            outcome = "refused"
            raise
        finally:
            try:
                with store.writing() as connection:
                    tenants.settle_action(connection, number, outcome, made)
            except StoreError as error:  # it happened; that it was asked for is written down
                log.warning("how action %s ended could not be written down: %s", number, error)
        return found

    def _subject(self, tracker: LocalTracker, connection: Connection) -> str | None:
        """The whole id of the run or job a request is about, or the name it has in its address."""
        values = self.request.path_params
        ref = values.get("ref")
        if ref is None:
            return next((str(value) for value in values.values()), None)
        with suppress(ValkyrieError):  # the verb itself says what is wrong with it
            if self.request.scope["path"].startswith("/v1/jobs/"):
                return jobs.resolve(connection, ref, self.identity.org_id)
            return tracker.context.resolve(connection, ref)
        return str(ref)


def _made(found: Any) -> str | None:
    if isinstance(found, StartedRun):
        return found.run.id
    if isinstance(found, StartedJob):
        return found.job.id
    if isinstance(found, list) and found and isinstance(found[0], IngestedRun):
        return " ".join(one.run_id for one in found[:20])
    return None


def context_of(request: Request) -> Context:
    return cast("Context", request.app.state.context)


def identity_of(request: Request) -> Identity:
    return cast(Identity, request.scope["identity"])


_bearer = HTTPBearer(auto_error=False, description="An API key; in hosted mode also a session's token.")
_api_key = APIKeyHeader(
    name="X-Api-Key", auto_error=False, description="The same API key, in its own header."
)


async def _asking(
    request: Request,
    _shown: Annotated[object, Security(_bearer)],
    _key: Annotated[object, Security(_api_key)],
) -> ApiRequest:
    """The gate has looked at the credentials; they are parameters here to be in the description.

    It waits for nothing, but must be async: FastAPI gives others a thread.
    """
    return ApiRequest(context_of(request), identity_of(request), request)


Ask = Annotated[ApiRequest, Depends(_asking)]


# Decide which requests reach the tracker's routes: which host was meant, and who asks.


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
    """Return whether a page's origin is this very server; another port of the same machine is another
    site."""
    scheme, _, netloc = origin.lower().partition("://")
    usual = {"http": ":80", "https": ":443"}.get(scheme, "")
    return bool(netloc) and netloc.removesuffix(usual) == host.lower().removesuffix(usual)


def _host_of(netloc: str) -> str:
    try:
        return (urlsplit(f"//{netloc}").hostname or "").lower()
    except ValueError:
        return ""


def refusal_of_body(error: BodyError) -> Refusal:
    return refused(error.status_code, f"{error.detail}.", cause=error.cause)
