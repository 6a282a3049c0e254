"""What every route stands on, and how a route asks a verb."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, cast

from fastapi import Depends, Request, Security
from fastapi.security import APIKeyHeader, HTTPBearer
from starlette.responses import Response

from valkyrie.api.answers import answer
from valkyrie.api.auth import Door, access_key
from valkyrie.api.lanes import Lane, Lanes
from valkyrie.api.roles import is_recorded
from valkyrie.api.settings import ApiSettings
from valkyrie.errors import StoreError, UserError, ValkyrieError
from valkyrie.job_views import StartedJob
from valkyrie.nouns import Identity
from valkyrie.store import actions, jobs
from valkyrie.views import IngestedRun, StartedRun

if TYPE_CHECKING:
    from valkyrie.api.hub import EventHub
    from valkyrie.api.metrics import Metrics
    from valkyrie.api.subjects import Kind
    from valkyrie.store import Connection
    from valkyrie.tracker.app import TrackerApp
    from valkyrie.tracker.local import LocalTracker

log = logging.getLogger("valkyrie.api")
DESCOPE = "X-Descope-Api-Key"


@dataclass(frozen=True, slots=True)
class Context:
    """One server's parts, the same for all requests."""

    tracker_app: TrackerApp
    settings: ApiSettings
    lanes: Lanes
    door: Door
    hub: EventHub
    metrics: Metrics


@dataclass(frozen=True, slots=True)
class Asking:
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

    async def _through(self, lane: Lane, ask: Callable[[LocalTracker], Any], status: int) -> Response:
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
            number = actions.record(connection, self.identity, name, self._subject(tracker, connection))
        outcome: actions.ActionOutcome = "failed"
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
                    actions.settle(connection, number, outcome, made)
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
    """The ids of what an operation made."""
    if isinstance(found, StartedRun):
        return found.run.id
    if isinstance(found, StartedJob):
        return found.job.id
    if isinstance(found, list) and found and isinstance(found[0], IngestedRun):
        return " ".join(one.run_id for one in found[:20])
    return None


def context_of(request: Request) -> Context:
    """The parts of the server that got this request."""
    return cast("Context", request.app.state.context)


def identity_of(request: Request) -> Identity:
    """Who asks, as the gate found out."""
    return cast(Identity, request.scope["identity"])


_bearer = HTTPBearer(auto_error=False, description="An API key; in hosted mode also a session's token.")
_api_key = APIKeyHeader(
    name="X-Api-Key", auto_error=False, description="The same API key, in its own header."
)


async def _asking(
    request: Request,
    _shown: Annotated[object, Security(_bearer)],
    _key: Annotated[object, Security(_api_key)],
) -> Asking:
    """The gate has looked at the credentials; they are parameters here to be in the description.

    It waits for nothing, but must be async: FastAPI gives others a thread.
    """
    return Asking(context_of(request), identity_of(request), request)


Ask = Annotated[Asking, Depends(_asking)]
