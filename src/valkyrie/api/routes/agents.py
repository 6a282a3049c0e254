"""Agents: pushed as archives, listed, taken back, removed."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query
from starlette.responses import Response

from valkyrie.api.context import Ask
from valkyrie.api.receiving import receive_archive
from valkyrie.api.routes import errors, router
from valkyrie.api.streams import stream
from valkyrie.views import AgentView

routes = router("agents", "/v1/agents")

Name = Annotated[str, Path(description="The agent's name.", max_length=200)]
ZIP = {
    "requestBody": {
        "required": True,
        "content": {"application/zip": {"schema": {"type": "string", "format": "binary"}}},
    }
}


@routes.get("", response_model=list[AgentView], responses=errors())
async def list_agents(ask: Ask) -> Response:
    """Pushed agents of the organisation, by name."""
    return await ask.slow(lambda tracker: tracker.agents())


@routes.put("/{name}", response_model=AgentView, responses=errors(400, 413, 422), openapi_extra=ZIP)
async def push(
    name: Name,
    ask: Ask,
    origin: Annotated[str | None, Query(description="Where it was installed from.", max_length=1000)] = None,
) -> Response:
    """Take an agent's archive (a zip) in, over an earlier one of that name."""
    async with receive_archive(ask) as received:
        return await ask.slow(lambda tracker: tracker.push_archive(received.file, name, origin))


@routes.get(
    "/{name}/archive",
    responses={200: {"content": {"application/zip": {}}, "description": "The archive."}, **errors(400, 404)},
    response_class=Response,
)
async def archive(name: Name, ask: Ask) -> Response:
    """A pushed agent's archive."""
    lanes, tracker = ask.context.lanes, ask.tracker()
    return await stream(
        lanes.slow,
        lanes.downloads,
        lambda: tracker.agent_archive(name)[1],
        "application/zip",
        stuck_s=ask.context.settings.stuck_s,
    )


@routes.delete("/{name}", status_code=204, responses=errors(400, 404))
async def remove(name: Name, ask: Ask) -> Response:
    """Forget a pushed agent; runs keep their own copy."""
    return await ask.slow(lambda tracker: tracker.remove_agent(name), 204)
