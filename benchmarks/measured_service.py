"""The service that `benchmarks.services` measures: `python measured_service.py PORT`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping
from typing import Any

import uvicorn

from benchmark_service import BenchmarkService, BenchmarkServiceApp
from benchmark_service.schemas import (
    EvaluateResponseRequest,
    FinalScoreResult,
    Resources,
    RetrieveTaskResponse,
    StreamChunk,
    StreamMessageChunk,
    StreamResultChunk,
)
from sandboxes.null import NullProvider
from sandboxes.protocol import Sandbox
from sandboxes.types import DaytonaProviderConfig, SandboxCreateRequest


class AnySandbox(NullProvider):
    """Has every sandbox it is asked for."""

    async def get_sandbox(self, sandbox_id: str) -> Sandbox:
        return await self.create_sandbox(SandboxCreateRequest(name=sandbox_id))


class MeasuredService(BenchmarkService):
    async def load_datasets(self) -> dict[str, dict[str, Any]]:
        return {"default": {"task-0": {}}}

    async def retrieve_task(
        self, task_id: str, skip_validation: bool = False, dataset: str | None = None
    ) -> RetrieveTaskResponse:
        resources = Resources(vcpu=1, memory=1, disk=1)
        return RetrieveTaskResponse(problem_path="/p", cwd="/w", resources=resources)

    async def setup_task(
        self, task_id: str, sandbox: Sandbox, dataset: str | None = None
    ) -> AsyncIterator[StreamChunk]:
        yield StreamResultChunk(type="result", data={"status": "success"})

    async def evaluate_instance(
        self, task_id: str, sandbox: Sandbox, dataset: str | None = None
    ) -> AsyncIterator[StreamChunk]:
        for line in range(50):
            yield StreamMessageChunk(type="message", data=f"line {line} " + "x" * 200)
            await asyncio.sleep(0.004)
        yield StreamResultChunk(type="result", data={"resolved": True})

    async def evaluate_response(self, request: EvaluateResponseRequest, dataset: str | None = None) -> Any:
        return {"resolved": True}

    async def calculate_final_score(
        self, evaluation_results: Mapping[str, Any], dataset: str | None = None
    ) -> FinalScoreResult:
        return FinalScoreResult(score=1.0)


if __name__ == "__main__":
    provider = AnySandbox()
    DaytonaProviderConfig.create_provider = lambda _: provider  # type: ignore[method-assign]
    uvicorn.run(
        BenchmarkServiceApp(MeasuredService), host="127.0.0.1", port=int(sys.argv[1]), log_level="error"
    )
