"""What every route stands on, and how a route asks a verb."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, cast

from fastapi import Depends, Request, Security
from fastapi.security import APIKeyHeader, HTTPBearer
from starlette.responses import Response

from valkyrie.api.answers import answer
from valkyrie.api.auth import Door, access_key
from valkyrie.api.lanes import Lane, Lanes
from valkyrie.api.settings import ApiSettings
from valkyrie.nouns import Identity

if TYPE_CHECKING:
    from valkyrie.api.hub import EventHub
    from valkyrie.api.metrics import Metrics
    from valkyrie.api.subjects import Kind
    from valkyrie.tracker.local import LocalTracker
    from valkyrie.tracker.office import Office

DESCOPE = "X-Descope-Api-Key"


@dataclass(frozen=True, slots=True)
class Context:
    """One server's parts, the same for all requests."""

    office: Office
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
        return self.context.office.tracker(self.identity, {DESCOPE: key} if key else None)

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
            found = ask(self.tracker())
            return Response(status_code=204) if found is None and status == 204 else answer(found, status)

        return await lane.run(work)


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
