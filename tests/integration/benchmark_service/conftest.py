"""A benchmark service on a real server on loopback, in a thread of this process."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import uvicorn

from benchmark_service import BenchmarkService, BenchmarkServiceApp
from benchmark_service.client import BenchmarkServiceClient
from tests.integration.benchmark_service.scripted_service import ScriptedService, client_of, scripted
from tests.integration.benchmark_service.toy_service import Ground, ToyService

SETTINGS = (
    "AUTH_REQUIRED",
    "BENCHMARK_API_KEY",
    "BENCHMARK_CATALOG_API_URL",
    "BENCHMARK_SERVICE_STREAM_PRELUDE_TIMEOUT_S",
    "CBS_DOCKER_ENABLED",
    "DESCOPE_ALLOWLIST_PATH",
    "DESCOPE_PROJECT_ID",
    "DESCOPE_TENANT_ALLOWLIST_JSON",
    "GRADING_MAX_ADMITTED_PER_TENANT",
    "GRADING_MAX_CONCURRENCY",
    "GRADING_MAX_QUEUED",
    "GRADING_QUEUE_TIMEOUT_S",
    "SERVICE_NAME",
)


@dataclass(frozen=True)
class Live:
    """A running app and where it is."""

    app: BenchmarkServiceApp
    url: str
    ws: str


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.settled = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets)
        except SystemExit:
            self.should_exit = True
        finally:
            self.settled.set()


@contextmanager
def serving(app: Any) -> Iterator[str]:
    """Run any ASGI app; yields its address. Raises when it does not start."""
    # With its protocol named, or asyncio leaves small answers waiting for more to be sent with them.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen(256)
    config = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=5, ws_max_size=64 << 20)
    server = _Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        server.settled.wait(60)
        if not server.started:
            raise RuntimeError("the app did not start; its log says why")
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(60)
        listener.close()
        assert not thread.is_alive(), "the server did not stop"


@contextmanager
def environment(**env: str) -> Iterator[None]:
    """Only these of the settings a service reads."""
    before = {name: os.environ.pop(name) for name in SETTINGS if name in os.environ}
    os.environ.update(env)
    try:
        yield
    finally:
        for name in env:
            os.environ.pop(name, None)
        os.environ.update(before)


@contextmanager
def live_app(service_cls: type[BenchmarkService], **env: str) -> Iterator[Live]:
    """Serve a benchmark under the settings given, and no others."""
    with environment(**env):
        app = BenchmarkServiceApp(service_cls)
        with serving(app) as url:
            yield Live(app, url, url.replace("http", "ws", 1))


@pytest.fixture
async def service() -> AsyncIterator[ScriptedService]:
    async with scripted() as running:
        yield running


@pytest.fixture
async def client(service: ScriptedService) -> AsyncIterator[BenchmarkServiceClient]:
    async with client_of(service.url, {"Authorization": "Bearer sesame"}) as made:
        yield made


@pytest.fixture(scope="module")
def toy() -> Iterator[Live]:
    with live_app(ToyService) as live:
        yield live


@pytest.fixture
def ground(monkeypatch: pytest.MonkeyPatch) -> Ground:
    """Sandboxes in memory behind every Daytona config."""
    from sandboxes.types import DaytonaProviderConfig

    made = Ground()
    monkeypatch.setattr(DaytonaProviderConfig, "create_provider", lambda config: made.open(config))
    return made
