"""Services of either era, written only against the names they import, run as they are."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from benchmark_service import BenchmarkService, BenchmarkServiceApp
from benchmark_service.context import current_sandbox_provider
from benchmark_service.sandbox import DaytonaProviderConfig, ImageSource, Sandbox, SandboxCreateRequest
from benchmark_service.schemas import (
    EvaluateResponseRequest,
    FinalScoreResult,
    Resources,
    RetrieveTaskResponse,
    StreamChunk,
    StreamErrorChunk,
    StreamEvalResumeStateChunk,
    StreamMessageChunk,
    StreamResultChunk,
)
from benchmark_service.utils import stream_command
from sandboxes.null import NullProvider, NullSandbox
from tests.integration.benchmark_service.conftest import live_app
from tests.integration.benchmark_service.test_sockets import DAYTONA, HEADERS, hear
from tests.integration.benchmark_service.toy_service import ToyService

RUN_ID = str(uuid.uuid4())


class SeedService(BenchmarkService):
    """Uploads and executes through the vendor's own objects, `fs` and `process`."""

    async def load_datasets(self) -> dict[str, dict[str, Any]]:
        return {"default": {"hello": {"statement": "say hello"}}}

    async def retrieve_task(
        self, task_id: str, skip_validation: bool, dataset: str | None = None
    ) -> RetrieveTaskResponse:
        return RetrieveTaskResponse(
            docker_image="alpine",
            problem_path="/tmp/problem_statement.txt",
            cwd="/testbed",
            agent_timeout=None,
            resources=Resources(vcpu=2, memory=4, disk=10),
        )

    async def setup_task(
        self, task_id: str, sandbox: Any, dataset: str | None = None
    ) -> AsyncGenerator[StreamChunk, None]:
        statement = self.get_dataset(dataset)[task_id]["statement"]
        await sandbox.fs.upload_file(statement.encode(), "/tmp/problem_statement.txt")
        async for line in stream_command(sandbox, "bash /setup.sh", "/testbed", ignore_error=True):
            yield StreamMessageChunk(type="message", data=line)
        done = await sandbox.process.exec(command="ls", cwd="/")
        if done.exit_code != 0:
            yield StreamErrorChunk(type="error", data=done.result)
        yield StreamResultChunk(type="result", data={"status": "ok"})

    async def evaluate_response(self, request: EvaluateResponseRequest, dataset: str | None = None) -> Any:
        return request.response == "hello"

    async def evaluate_instance(
        self, task_id: str, sandbox: Any, dataset: str | None = None
    ) -> AsyncGenerator[StreamChunk, None]:
        yield StreamResultChunk(type="result", data={"resolved": True})

    async def calculate_final_score(
        self, evaluation_results: dict[str, Any], dataset: str | None = None
    ) -> FinalScoreResult:
        resolved = sum(bool(result) for result in evaluation_results.values())
        return FinalScoreResult(score=float(resolved), metadata={"resolved": resolved})


class MidService(SeedService):
    """Works through the sandbox protocol, saves its state, opens a second sandbox, reads the run's id."""

    async def evaluate_instance(
        self, task_id: str, sandbox: Sandbox, dataset: str | None = None
    ) -> AsyncGenerator[StreamChunk, None]:
        run_id = str(uuid.UUID(getattr(sandbox, "_sandbox").labels["Id"]))  # noqa: B009
        await sandbox.exec("git diff > /tmp/patch.diff")
        await sandbox.upload_file("/root/eval.sh", b"true")
        yield StreamEvalResumeStateChunk(
            type="eval_resume_state", data={"run_id": run_id, "task_id": task_id}
        )
        provider = current_sandbox_provider()
        second = await provider.create_sandbox(SandboxCreateRequest(source=ImageSource(image="alpine")))
        await provider.delete_sandbox(second.id)
        yield StreamResultChunk(type="result", data={"resolved": True, "run": run_id})

    async def stream_evaluate_response(
        self, request: EvaluateResponseRequest, dataset: str | None = None
    ) -> AsyncGenerator[StreamChunk, None]:
        assert request.eval_resume_state is not None and request.sandbox_provider is not None
        async with request.sandbox_provider.create_provider() as provider:
            made = await provider.create_sandbox(SandboxCreateRequest(source=ImageSource(image="alpine")))
            yield StreamMessageChunk(type="message", data=f"resumed in {made.name}")
        yield StreamResultChunk(type="result", data=request.eval_resume_state)


class VendorSandbox(NullSandbox):
    """As the Daytona provider hands it out: the vendor's object inside, its attributes reachable."""

    __slots__ = ("_sandbox",)

    def __init__(self) -> None:
        super().__init__("box", "box", {})
        files: dict[str, bytes] = {}

        async def upload_file(content: bytes, path: str) -> None:
            files[path] = content

        async def execute(command: str, cwd: str) -> Any:
            return SimpleNamespace(exit_code=0 if files else 1, result="")

        self._sandbox = SimpleNamespace(
            labels={"Id": RUN_ID},
            fs=SimpleNamespace(upload_file=upload_file),
            process=SimpleNamespace(exec=execute),
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sandbox, name)


class VendorProvider(NullProvider):
    async def get_sandbox(self, sandbox_id: str) -> NullSandbox:
        await asyncio.sleep(0)
        return VendorSandbox()


@pytest.fixture(autouse=True)
def _vendor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DaytonaProviderConfig, "create_provider", lambda _config: VendorProvider())


async def test_a_service_of_the_first_era() -> None:
    request = {"task_id": "hello", "instance_id": "box", "dataset": None}
    with (
        live_app(SeedService) as live,
        httpx.Client(verify=False, base_url=live.url, follow_redirects=True) as http,
    ):
        assert http.get("/retrieve-task/?task_id=hello").json()["docker_image"] == "alpine"
        setup = await hear(live, "/ws/setup-task", request, HEADERS)
        assert setup.chunks == [{"type": "result", "data": {"status": "ok"}}]
        graded = await hear(live, "/ws/evaluate-instance", request, HEADERS)
        assert graded.chunks[-1]["data"] == {"resolved": True}
        body = {"task_id": "hello", "response": "hello"}
        assert http.post("/evaluate-response", json=body).json() is True
        score = http.post("/final-score", json={"evaluation_results": {"hello": True}}).json()
        assert (score["final_score"], score["metadata"]) == (1.0, {"resolved": 1})


async def test_a_service_of_the_middle_era() -> None:
    request = {"task_id": "hello", "instance_id": "box", "sandbox_provider": DAYTONA}
    with live_app(MidService) as live:
        graded = await hear(live, "/ws/evaluate-instance", request)
        state, result = graded.chunks
        assert state["data"] == {"run_id": RUN_ID, "task_id": "hello"}
        assert result["data"] == {"resolved": True, "run": RUN_ID}
        again = {"task_id": "hello", "eval_resume_state": state["data"], "sandbox_provider": DAYTONA}
        resumed = await hear(live, "/ws/evaluate-response", again)
        assert [chunk["type"] for chunk in resumed.chunks] == ["message", "result"]
        assert resumed.chunks[-1]["data"] == state["data"]


def test_every_route_has_a_path_to_be_found_by() -> None:
    """Services look for the route they replace among all of them."""
    paths = [route.path for route in BenchmarkServiceApp(ToyService).router.routes]  # type: ignore[attr-defined]
    assert "/retrieve-task/" in paths and "/v1/evaluate" in paths
