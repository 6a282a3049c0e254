"""Whether the tracker works, and its numbers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Literal

from fastapi import APIRouter, Request
from starlette.responses import Response

from valkyrie import __version__
from valkyrie.api.answers import answer
from valkyrie.api.context import Context, context_of
from valkyrie.api.metrics import CONTENT_TYPE
from valkyrie.api.routes import errors
from valkyrie.errors import ValkyrieError

routes = APIRouter(tags=["health"])
HEALTH_TIMEOUT_S = 3.0


@dataclass(frozen=True, slots=True)
class Health:
    """Whether requests can be answered."""

    status: Literal["ok", "error"]
    version: str
    database: Literal["ok", "unreachable"]


@routes.get(
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
    from valkyrie.store.totals import answers

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


@routes.get(
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
