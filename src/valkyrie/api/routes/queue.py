"""What waits, who works, where the bytes are."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from valkyrie.api.context import Ask
from valkyrie.api.routes import errors, router
from valkyrie.views import DiskView, QueueView

routes = router("queue", "/v1")


@routes.get("/queue", response_model=QueueView, responses=errors())
async def queue(ask: Ask) -> Response:
    """Open runs of the organisation in the order they are served, and the executors that live."""
    return await ask.quick(lambda tracker: tracker.queue())


@routes.get("/disk", response_model=DiskView, responses=errors())
async def disk(ask: Ask) -> Response:
    """Where the bytes are on the tracker's machine, as far as they are the organisation's."""
    return await ask.slow(lambda tracker: tracker.disk())


@routes.get("/executor", response_model=dict[str, Any] | None, responses=errors())
async def executor(ask: Ask) -> Response:
    """What the executor on the tracker's machine says of itself; null when there is none."""
    return await ask.quick(lambda tracker: tracker.executor_status())
