"""Runs whose sandboxes are reached over Daytona's REST: with tasks of ours, with a service, after a crash."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxes.daytona import DaytonaSandboxProvider
from sandboxes.types import DaytonaProviderConfig
from tests.contract.test_daytona_provider import serve
from tests.integration.benchmark_service.conftest import serving
from tests.integration.conftest import until
from tests.integration.faulty_service import FaultyService
from valkyrie.config import values
from valkyrie.errors import UserError
from valkyrie.executor.client import ExecutorClient
from valkyrie.store.layout import DataFolder
from valkyrie.tracker.local import LocalTracker
from valkyrie.views import RunRequest, StopRequest

pytestmark = pytest.mark.slow

BENCHMARK = "tests.integration.scripted:ScriptedBenchmark"
SCRIPTED = "tests.integration.scripted:ScriptedAgent"
SILENT = "tests.integration.test_service_runs:SilentAgent"


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DaytonaProviderConfig]:
    """A server of ours that stands for Daytona; its key is in the environment."""
    for found in serve("process", tmp_path / "cloud"):
        for name in ("DAYTONA_API_KEY", "DAYTONA_API_URL", "DAYTONA_TARGET"):
            monkeypatch.setenv(name, getattr(found, name))
        yield found


def sandboxes(cloud: DaytonaProviderConfig) -> list[str]:
    async def list_them() -> list[str]:
        async with DaytonaSandboxProvider(cloud) as provider:
            return [one.id async for one in provider.list_sandboxes()]

    return asyncio.run(list_them())


def request(**more: object) -> RunRequest:
    return RunRequest(**{"agent": SCRIPTED, "benchmark": BENCHMARK, "provider": "daytona", **more})  # type: ignore[arg-type]


def test_without_a_key_the_way_out_is_named(tracker: LocalTracker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DAYTONA_API_KEY", raising=False)
    with pytest.raises(UserError, match=r"DAYTONA_API_KEY.*config provider set daytona"):
        tracker.start(request(dataset="ok"))


def test_a_run_and_its_key_leave_no_trace(
    tracker: LocalTracker, cloud: DaytonaProviderConfig, tmp_path: Path
) -> None:
    run = tracker.wait(tracker.start(request(dataset="ok*3")).run.id, timeout=60)
    assert (run.state, run.score.final_score) == ("FINISHED", 1.0)
    assert sandboxes(cloud) == []
    kept = b"".join(path.read_bytes() for path in (tmp_path / "home").rglob("*") if path.is_file())
    assert cloud.DAYTONA_API_KEY.encode() not in kept


def test_the_key_may_be_one_secret(
    tracker: LocalTracker, cloud: DaytonaProviderConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_DAYTONA", json.dumps(cloud.model_dump(exclude={"type"})))
    monkeypatch.delenv("DAYTONA_API_KEY")
    values.set_entry("sandbox_providers", "daytona", "MY_DAYTONA")
    run = tracker.wait(tracker.start(request(dataset="ok")).run.id, timeout=60)
    assert run.score.final_score == 1.0


def test_what_a_killed_executor_left_there_is_reaped(
    tracker: LocalTracker, cloud: DaytonaProviderConfig, tmp_path: Path
) -> None:
    run = tracker.start(request(dataset="slow=60*2", concurrency=2)).run
    until(lambda: tracker.fetch(run.id).counts["IN_PROGRESS"] == 2, timeout=60)
    before = sandboxes(cloud)
    assert len(before) == 2
    client = ExecutorClient(DataFolder(tmp_path / "home"))
    status = client.status()
    assert status is not None
    os.kill(status["pid"], signal.SIGKILL)
    until(lambda: client.status() is None)
    tracker.resume(run.id)
    until(lambda: tracker.fetch(run.id).counts["IN_PROGRESS"] == 2, timeout=60)
    assert not set(before) & set(sandboxes(cloud))
    tracker.stop(run.id, StopRequest(force=True))
    tracker.wait(run.id, timeout=60)
    until(lambda: sandboxes(cloud) == [], timeout=60)


def test_a_service_is_given_the_providers_own_key(
    tracker: LocalTracker, cloud: DaytonaProviderConfig
) -> None:
    service = FaultyService(["ok-1", "ok-2"])
    service.task = {**service.task, "problem_path": "/etc"}  # it writes none, and every sandbox has this
    with serving(service.app()) as url:
        run = tracker.start(request(benchmark=url, agent=SILENT, dataset="default")).run
        assert tracker.wait(run.id, timeout=60).score.final_score == 100.0
    assert {headers["x-api-url"] for headers in service.stream_headers} == {cloud.DAYTONA_API_URL}
    assert {headers["x-api-key"] for headers in service.stream_headers} == {cloud.DAYTONA_API_KEY}
