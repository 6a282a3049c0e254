"""A service that leaves nothing for the agent to read has not set the task up."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandboxes.process import ProcessProvider
from sandboxes.types import DaytonaProviderConfig, SandboxCreateRequest
from tests.integration.benchmark_service.conftest import serving
from tests.integration.faulty_service import FaultyService
from valkyrie.benchmarks.service.address import ServiceAddress
from valkyrie.benchmarks.service.benchmark import ServiceBenchmark
from valkyrie.errors import BenchmarkError


async def test_no_problem_statement_is_the_benchmarks_error(tmp_path: Path) -> None:
    access = DaytonaProviderConfig(
        DAYTONA_API_KEY="k", DAYTONA_API_URL="http://127.0.0.1:1", DAYTONA_TARGET="t"
    )
    with serving(FaultyService(["ok-1"]).app()) as url:
        benchmark = ServiceBenchmark(ServiceAddress("quiet", url, "given"), access=access)
        try:
            task = await benchmark.describe("ok-1")
            async with ProcessProvider(tmp_path / "state") as provider:
                sandbox = await provider.create_sandbox(SandboxCreateRequest())
                for text in (None, b" \n"):
                    if text is not None:
                        await sandbox.upload_file(task.problem_path, text)
                    with pytest.raises(BenchmarkError, match="no problem statement") as caught:
                        await benchmark.setup(task, sandbox, lambda _stream, _text: None, tmp_path)
                    assert caught.value.cause == "task_setup_failed"
                await sandbox.upload_file(task.problem_path, b"Do it.")
                await benchmark.setup(task, sandbox, lambda _stream, _text: None, tmp_path)
                await provider.delete_sandbox(sandbox.id)
        finally:
            await benchmark.close()
