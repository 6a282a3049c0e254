"""A tracker with two organisations, served on loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.routing import APIRoute
from pydantic import TypeAdapter
from starlette.routing import Match

from tests.integration.api.stage import Stage, client, open_stage, serving
from valkyrie.api.app import ROUTERS
from valkyrie.api.server import ApiServer


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    monkeypatch.setenv("VALKYRIE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("VALKYRIE_CONFIG_PATH", str(tmp_path / "config" / "valkyrie.yaml"))
    for name in ("VALKYRIE_DATABASE_URL", "VALKYRIE_SECRET_KEY", "AUTH_REQUIRED"):
        monkeypatch.delenv(name, raising=False)
    made = open_stage(tmp_path / "home")
    yield made
    made.tracker_app.close()


@pytest.fixture
async def server(stage: Stage) -> AsyncIterator[ApiServer]:
    async with serving(stage) as made:
        yield made


@pytest.fixture
async def ours(stage: Stage, server: ApiServer) -> AsyncIterator[httpx.AsyncClient]:
    """A client with a key of the default organisation."""
    async with client(server, stage.ours) as made:
        made.event_hooks = {"response": [is_as_described]}
        yield made


async def is_as_described(response: httpx.Response) -> None:
    """A good answer in JSON is what the description says of its route."""
    if response.is_success and response.headers.get("content-type") == "application/json":
        model = _model(response.request.method, response.request.url.path)
        if model is not None:
            TypeAdapter(model).validate_json(await response.aread())


@cache
def _routes() -> list[APIRoute]:
    return [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]


def _model(method: str, path: str) -> Any:
    scope = {"type": "http", "method": method, "path": path}
    found = [route for route in _routes() if route.matches(scope)[0] is Match.FULL]
    assert found, f"{method} {path} is no route"
    return found[0].response_model


@pytest.fixture
async def theirs(stage: Stage, server: ApiServer) -> AsyncIterator[httpx.AsyncClient]:
    """A client with a key of another organisation."""
    async with client(server, stage.theirs) as made:
        yield made
