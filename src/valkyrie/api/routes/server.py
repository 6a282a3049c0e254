"""The server (health, metrics, queue, disk), the caller, their organisation and its secrets."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from valkyrie import __version__
from valkyrie.api.answers import answer, refused
from valkyrie.api.bodies import CredentialsBody, OrganisationChange, SecretBody
from valkyrie.api.context import ApiRequest, Ask, Context, RefusedError, context_of
from valkyrie.api.routes import errors, router
from valkyrie.domain import Role, RunState, TrialState
from valkyrie.errors import ValkyrieError
from valkyrie.store import executors, tenants
from valkyrie.store.counters import answers, totals
from valkyrie.store.tenants import Action
from valkyrie.tenants.organisation import Joined, Mode
from valkyrie.views import DiskView, QueueView, SecretView

if TYPE_CHECKING:
    from valkyrie.api.capacity import WorkerPools
    from valkyrie.store import Store
    from valkyrie.tenants.server import ServerOrganisation
    from valkyrie.tracker.local import LocalTracker


_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0)
_COUNT_EVERY_S = 5.0
_PATIENCE_S = 1.0
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class ServerMetrics:
    """One server's numbers, in a registry of their own."""

    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            "valkyrie_requests", "Requests answered", ["method", "route", "status"], registry=registry
        )
        self._latency = Histogram(
            "valkyrie_request_seconds",
            "Seconds until a request was answered; streams are not in it",
            ["method", "route"],
            registry=registry,
            buckets=_BUCKETS,
        )
        self._streams = Gauge("valkyrie_streams", "Streams now open", ["kind"], registry=registry)
        self._runs = Gauge("valkyrie_runs", "Runs by state", ["state"], registry=registry)
        self._trials = Gauge("valkyrie_trials", "Trials by state", ["state"], registry=registry)
        self._executors = Gauge("valkyrie_executors_alive", "Executors with a live lease", registry=registry)
        self._database = Gauge("valkyrie_database_up", "Whether the database answers", registry=registry)
        self._restarts = Counter(
            "valkyrie_executor_restarts",
            "Times the server's own executor was started again",
            registry=registry,
        )
        self._counted_at = float("-inf")

    def observe(
        self, method: str, route: str, status: int, seconds: float, *, streamed: bool = False
    ) -> None:
        """One request has been answered."""
        method = method if method in _METHODS else "other"
        self._requests.labels(method, route, str(status)).inc()
        if not streamed:
            self._latency.labels(method, route).observe(seconds)

    def restarted(self) -> None:
        """The executor was started again."""
        self._restarts.inc()

    def text(self, store: Store, lanes: WorkerPools) -> bytes:
        """Everything, as Prometheus reads it. Blocking."""
        from prometheus_client import generate_latest

        now = time.monotonic()
        if now - self._counted_at >= _COUNT_EVERY_S:
            self._count(store)
            self._counted_at = now
        for kind, seats in (
            ("watchers", lanes.watchers),
            ("followers", lanes.followers),
            ("transfers", lanes.downloads),
        ):
            self._streams.labels(kind).set(seats.taken)
        return generate_latest(self._registry)

    def _count(self, store: Store) -> None:
        try:
            with store.reading(_PATIENCE_S) as connection:
                counted, alive = totals(connection), len(executors.living(connection))
        except ValkyrieError:
            self._database.set(0)
            return
        self._database.set(1)
        self._executors.set(alive)
        for state in RunState:
            self._runs.labels(state.value).set(counted.runs.get(state.value, 0))
        for one in TrialState:
            self._trials.labels(one.value).set(counted.trials.get(one.value, 0))


_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


# Whether the tracker works, and its numbers.

health_routes = APIRouter(tags=["health"])
HEALTH_TIMEOUT_S = 3.0


@dataclass(frozen=True, slots=True)
class Health:
    """Whether requests can be answered."""

    status: Literal["ok", "error"]
    version: str
    database: Literal["ok", "unreachable"]


@health_routes.get(
    "/health",
    response_model=Health,
    responses={503: {"model": Health, "description": "The database does not answer."}},
)
async def health(request: Request) -> Response:
    """Whether the tracker and its database work. Needs no key."""
    if await _database_answers(context_of(request)):
        return answer(Health("ok", __version__, "ok"))
    return answer(Health("error", __version__, "unreachable"), 503)


async def _database_answers(context: Context) -> bool:
    def ask() -> bool:
        with context.tracker_app.store.reading(HEALTH_TIMEOUT_S / 2) as connection:
            return answers(connection)

    # Not cancelled when it takes too long: the thread ends with the driver's own patience.
    asking = asyncio.ensure_future(context.lanes.health.run(ask))
    done, _ = await asyncio.wait({asking}, timeout=HEALTH_TIMEOUT_S)
    if not done:
        asking.add_done_callback(lambda late: late.cancelled() or late.exception())
        return False
    try:
        return asking.result()
    except ValkyrieError:
        return False


@health_routes.get(
    "/metrics",
    responses={200: {"content": {"text/plain": {}}, "description": "Prometheus text."}, **errors()},
    response_class=Response,
)
async def metrics(request: Request) -> Response:
    """Numbers for Prometheus, over all organisations."""
    context = context_of(request)
    text = await context.lanes.health.run(
        lambda: context.metrics.text(context.tracker_app.store, context.lanes)
    )
    return Response(text, media_type=CONTENT_TYPE)


# What waits, who works, where the bytes are.

queue_routes = router("queue", "/v1")


@queue_routes.get("/queue", response_model=QueueView, responses=errors())
async def queue(ask: Ask) -> Response:
    """Open runs of the organisation in the order they are served, and the executors that live."""
    return await ask.quick(lambda tracker: tracker.queue())


@queue_routes.get("/disk", response_model=DiskView, responses=errors())
async def disk(ask: Ask) -> Response:
    """Where the bytes are on the tracker's machine, as far as they are the organisation's."""
    return await ask.slow(lambda tracker: tracker.disk())


@queue_routes.get("/executor", response_model=dict[str, Any] | None, responses=errors())
async def executor(ask: Ask) -> Response:
    """What the executor on the tracker's machine says of itself; null when there is none."""
    return await ask.quick(lambda tracker: tracker.executor_status())


# The caller and their organisation.

organisation_routes = router("organisation", "/v1")


@dataclass(frozen=True, slots=True)
class Me:
    """Who asks, as the tracker sees it."""

    org_id: str
    org: str
    person: str | None
    key_id: str | None
    role: Role
    """What the key may do."""
    mode: Mode
    """Who makes keys: whoever runs the tracker, or its identity service."""


@dataclass(frozen=True, slots=True)
class OrganisationView:
    """What an organisation says about its own AWS."""

    s3_bucket: str | None
    aws_region: str | None
    log_group: str | None
    log_retention_days: int | None
    role_arn: str | None
    external_id: str
    """What the trust policy of its role must ask for; given by us."""
    credentials: bool
    """Whether AWS keys are kept."""


def _organisation(ask: ApiRequest) -> ServerOrganisation:
    return cast("ServerOrganisation", ask.context.tracker_app.organisation(ask.identity))


@organisation_routes.get("/me", response_model=Me, responses=errors())
async def me(ask: Ask) -> Response:
    """Whose key this is."""
    who = ask.identity
    return answer(Me(who.org_id, who.org, who.person, who.key_id, who.role, ask.context.door.mode))


@organisation_routes.post(
    "/init",
    response_model=Joined,
    responses={**errors(), 405: {"description": "Self-hosted: organisations are made by whoever runs it."}},
)
async def init(request: Request) -> Response:
    """Hosted: make the organisation of the key's tenant, unless it is there."""
    door = context_of(request).door
    if door.mode == "self-hosted":
        await door.identify(request.headers)
        message = (
            "This tracker is self-hosted: `valkyrie admin org create` on its machine makes organisations."
        )
        raise RefusedError(refused(405, message, headers={"Allow": ""}))
    return answer(await door.init(request.headers))


@organisation_routes.get("/audit", response_model=list[Action], responses=errors(400))
async def audit(
    ask: Ask,
    person: Annotated[str | None, Query(description="Only of this person.", max_length=320)] = None,
    subject: Annotated[
        str | None, Query(description="Only about this run, job, agent, secret or key.", max_length=512)
    ] = None,
    since: Annotated[float | None, Query(description="Only after this moment (Unix time).")] = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 100,
) -> Response:
    """Who did what in the organisation, newest first; for keys of the role `admin`."""

    def look(tracker: LocalTracker) -> list[Action]:
        with tracker.store.reading() as connection:
            found = tenants.list_actions(
                connection,
                org_id=ask.identity.org_id,
                person=person,
                subject=subject,
                since=since,
                limit=limit,
            )
        return list(found)

    return await ask.quick(look)


@organisation_routes.get("/organisation", response_model=OrganisationView, responses=errors())
async def describe(ask: Ask) -> Response:
    """The organisation's settings."""
    return await ask.quick(lambda _: _organisation(ask).describe())


@organisation_routes.patch("/organisation", response_model=OrganisationView, responses=errors(400, 413, 422))
async def change(changes: OrganisationChange, ask: Ask) -> Response:
    """Change settings, once AWS agrees with them."""
    given = changes.model_dump(exclude_unset=True)
    return await ask.slow(lambda _: _organisation(ask).change(given))


@organisation_routes.put("/organisation/credentials", status_code=204, responses=errors(400, 413, 422))
async def set_credentials(keys: CredentialsBody, ask: Ask) -> Response:
    """Keep AWS keys, encrypted, once AWS knows them."""
    given: dict[str, object] = {
        "aws_access_key_id": keys.aws_access_key_id,
        "aws_secret_access_key": keys.aws_secret_access_key,
        "aws_session_token": keys.aws_session_token,
    }
    return await ask.slow(lambda _: _organisation(ask).set_credentials(given), 204)


@organisation_routes.delete("/organisation/credentials", status_code=204, responses=errors())
async def remove_credentials(ask: Ask) -> Response:
    """Forget the AWS keys."""
    return await ask.quick(lambda _: _organisation(ask).remove_credentials(), 204)


# Secrets of the organisation: names only, ever.

secret_routes = router("secrets", "/v1/secrets")

Name = Annotated[str, Path(description="The secret's name; it may contain `/`.", max_length=512)]


@secret_routes.get("", response_model=list[SecretView], responses=errors())
async def list_secrets(ask: Ask) -> Response:
    """Names of the secrets that are kept."""
    return await ask.quick(lambda tracker: tracker.secrets())


@secret_routes.put("/{name:path}", status_code=204, responses=errors(400, 413, 422))
async def set_secret(name: Name, secret: SecretBody, ask: Ask) -> Response:
    """Keep a secret, encrypted, over an earlier one of that name."""
    return await ask.quick(lambda tracker: tracker.set_secret(name, secret.value), 204)


@secret_routes.delete("/{name:path}", status_code=204, responses=errors(400, 404))
async def remove(name: Name, ask: Ask) -> Response:
    """Forget a secret."""
    return await ask.quick(lambda tracker: tracker.remove_secret(name), 204)
