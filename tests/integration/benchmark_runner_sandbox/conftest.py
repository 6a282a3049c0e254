"""The example service, live, and real sandboxes without a network."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from benchmark_service.client import BenchmarkServiceClient
from sandboxes.local.provider import LocalProvider
from tests.abilities import need_local_sandboxes
from tests.integration.benchmark_runner.runner_project import Live, live, load_trivia

READ = (
    *("SERVICE_URL", "VALS_AUTH_KEY", "VALS_API_KEY", "BENCHMARK_API_KEY", "AUTH_REQUIRED"),
    *("CUSTOM_ENDPOINT", "CUSTOM_API_KEY", "QUIZ_KEY"),
)


@pytest.fixture(scope="session")
def trivia_service() -> Iterator[Live]:
    with live(load_trivia().app) as service:
        yield service


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder to work in, and an environment that says nothing; both are as before afterwards."""
    need_local_sandboxes(tmp_path / "trying", network="none")
    before = dict(os.environ)
    for name in READ:
        os.environ.pop(name, None)
    os.environ["XDG_STATE_HOME"] = str(tmp_path / "state")
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    yield tmp_path / "project"
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def service(trivia_service: Live, place: Path) -> Live:
    trivia_service.forget()
    return trivia_service


@pytest.fixture
async def client(service: Live) -> AsyncIterator[BenchmarkServiceClient]:
    async with BenchmarkServiceClient(service.url) as made:
        yield made


@pytest.fixture
async def provider(place: Path) -> AsyncIterator[LocalProvider]:
    async with LocalProvider(place / "sandboxes") as made:
        yield made
        assert [one async for one in made.list_sandboxes()] == []
