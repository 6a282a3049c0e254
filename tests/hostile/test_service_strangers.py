"""Whoever is not the platform: pages in a developer's browser, and executors that were killed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from benchmark_service import BenchmarkServiceApp
from benchmark_service.context import current_sandbox_provider
from benchmark_service.sandbox import SandboxCreateRequest
from sandboxes.registry import open_provider
from tests.integration.benchmark_service.conftest import Live, environment, live_app, serving
from tests.integration.benchmark_service.toy_service import ToyService
from tests.integration.conftest import end_executor, until
from valkyrie.config import values
from valkyrie.store.layout import DataFolder
from valkyrie.tracker.local import LocalTracker
from valkyrie.views import RunRequest, StopRequest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def toy() -> Iterator[Live]:
    with live_app(ToyService) as live:
        yield live


@pytest.mark.parametrize("path", ["setup-task", "evaluate-instance", "evaluate-response"])
@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:1"])
async def test_a_page_of_another_site_cannot_open_a_stream(toy: Live, path: str, origin: str) -> None:
    async with connect(f"{toy.ws}/ws/{path}", additional_headers={"Origin": origin}, proxy=None) as socket:
        with pytest.raises(ConnectionClosed):
            await socket.recv()
        assert (socket.close_code, socket.close_reason) == (1008, "Pages of other sites may not connect")


async def test_a_page_of_the_service_itself_can(toy: Live) -> None:
    async with connect(
        f"{toy.ws}/ws/setup-task", additional_headers={"Origin": toy.url}, proxy=None
    ) as socket:
        with suppress(ConnectionClosed):
            await socket.send("{}")
            while True:
                await socket.recv()
        assert socket.close_code == 1007


class Maker(ToyService):
    """Makes sandboxes of its own while it grades, and never comes to an end."""

    made: list[str] = []  # noqa: RUF012 - one service, one test

    async def evaluate_instance(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        own = await current_sandbox_provider().create_sandbox(SandboxCreateRequest(labels={"mine": "yes"}))  # type: ignore[union-attr]
        self.made.append(own.id)
        await own.exec("sleep 4711")
        await asyncio.Event().wait()
        yield


@pytest.fixture
def tracker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalTracker]:
    monkeypatch.setenv("VALKYRIE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("VALKYRIE_CONFIG_PATH", str(tmp_path / "valkyrie.yaml"))
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}:{ROOT}")
    made = LocalTracker(tmp_path / "home")
    yield made
    made.close()
    end_executor(tmp_path / "home")


@pytest.mark.slow
def test_sandboxes_of_a_service_do_not_outlive_a_killed_executor(
    tracker: LocalTracker, tmp_path: Path
) -> None:
    async def living() -> set[str]:
        async with open_provider("process", DataFolder(tmp_path / "home").sandboxes("process")) as provider:
            return {sandbox.id async for sandbox in provider.list_sandboxes()}

    with environment(), serving(BenchmarkServiceApp(Maker)) as url:
        values.set_entry("custom_benchmark_services", "maker", url)
        asked = RunRequest(
            agent="tests.integration.test_service_runs:SilentAgent",
            benchmark="maker",
            provider="process",
            task_ids=["t1"],
            host_image=True,
        )
        run = tracker.start(asked).run
        until(lambda: Maker.made, 30)
        first = Maker.made[0]
        assert first in asyncio.run(living())
        status = tracker.executor_status()
        assert status is not None
        os.kill(status["pid"], signal.SIGKILL)
        tracker.resume(run.id)
        until(lambda: len(Maker.made) > 1, 30)
        assert first not in asyncio.run(living())
        tracker.stop(run.id, StopRequest(force=True))
        until(lambda: not asyncio.run(living()), 30)
