"""A benchmark that does as its task ids say, and sandboxes that remember."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator
from typing import Any

from benchmark_service import BenchmarkService
from benchmark_service.context import current_sandbox_provider
from benchmark_service.sandbox import (
    Sandbox,
    SandboxCapacityError,
    SandboxConnectionError,
    SandboxNotFoundError,
)
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
from sandboxes.null import NullProvider, NullSandbox
from sandboxes.types import DaytonaProviderConfig


class Ground:
    """Counts the providers opened and closed; knows the sandbox `box`, and loses `stuck` on the way."""

    def __init__(self) -> None:
        self.configs: list[DaytonaProviderConfig] = []
        self.opened = 0
        self.closed = 0
        self.changed = threading.Condition()
        self.last_provider: Any = None

    def open(self, config: DaytonaProviderConfig) -> NullProvider:
        self.configs.append(config)
        self.opened += 1
        self.last_provider = _Provider(self)
        return self.last_provider

    def wait_closed(self, count: int) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: self.closed >= count, 60)


class _Provider(NullProvider):
    def __init__(self, ground: Ground) -> None:
        super().__init__()
        self.ground = ground

    async def get_sandbox(self, sandbox_id: str) -> NullSandbox:
        if sandbox_id == "stuck":
            await asyncio.Event().wait()
        if sandbox_id != "box":
            raise SandboxNotFoundError(f"no sandbox {sandbox_id}")
        return NullSandbox(sandbox_id, sandbox_id, {})

    async def close(self) -> None:
        with self.ground.changed:
            self.ground.closed += 1
            self.ground.changed.notify_all()


def chunk(kind: str, data: Any) -> StreamChunk:
    models = {
        "message": StreamMessageChunk,
        "error": StreamErrorChunk,
        "result": StreamResultChunk,
        "eval_resume_state": StreamEvalResumeStateChunk,
    }
    return models[kind](type=kind, data=data)


class ToyService(BenchmarkService):
    """Datasets `default` (t1 to t5) and `small`; other task ids make trouble of a kind."""

    async def load_datasets(self) -> dict[str, dict[str, Any]]:
        self.closed = threading.Event()
        self.started = threading.Event()
        self.requests: list[EvaluateResponseRequest] = []
        self.scored: list[dict[str, Any]] = []
        return {"default": {f"t{n}": {"answer": str(n)} for n in range(1, 6)}, "small": {"s1": {}, "t2": {}}}

    async def retrieve_task(
        self, task_id: str, skip_validation: bool = False, dataset: str | None = None
    ) -> RetrieveTaskResponse:
        if not skip_validation:
            await self.validate_task_ids([task_id], dataset)
        return RetrieveTaskResponse(
            docker_image="python:3.12-slim",
            problem_path="/tmp/problem_statement.txt",
            cwd="/workspace",
            resources=Resources(vcpu=1, memory=2, disk=3),
        )

    async def setup_task(
        self, task_id: str, sandbox: Sandbox, dataset: str | None = None
    ) -> AsyncGenerator[StreamChunk, None]:
        await sandbox.upload_file("/tmp/problem_statement.txt", b"think")
        yield chunk("message", f"setting up {task_id} in {sandbox.id}")
        assert current_sandbox_provider() is not None
        yield chunk("result", {"status": "ok", "skills_dir": "/skills"})

    async def evaluate_response(self, request: EvaluateResponseRequest, dataset: str | None = None) -> Any:
        self.requests.append(request)
        match request.response:
            case "set":
                return {"scores": [{1, 2}]}
            case "nan":
                return {"score": float("nan")}
            case "object":
                return {"inner": object()}
            case "model":
                Resources(vcpu="many", memory=1, disk=1)  # type: ignore[arg-type]
            case "unsupported":
                raise NotImplementedError("text answers are not graded here")
            case "provider":
                assert request.sandbox_provider is not None
                request.sandbox_provider.create_provider()
            case "away":
                raise SandboxConnectionError("the provider does not answer")
            case "full":
                raise SandboxCapacityError("no room", retry_after=2.5)
            case "exit":
                raise SystemExit(3)
            case "lone \ud800":
                return {"said": request.response}
        task = self.get_dataset(dataset)[request.task_id]
        return {"resolved": request.response == task["answer"]}

    async def evaluate_instance(
        self, task_id: str, sandbox: Sandbox, dataset: str | None = None
    ) -> AsyncGenerator[StreamChunk, None]:
        self.started.set()
        try:
            async for each in _scripted(task_id):
                yield each
        finally:
            self.closed.set()

    async def calculate_final_score(
        self, evaluation_results: dict[str, Any], dataset: str | None = None
    ) -> FinalScoreResult:
        self.scored.append(evaluation_results)
        if "t5" in evaluation_results:
            return FinalScoreResult(score=float("nan"))
        resolved = [key for key, value in evaluation_results.items() if value and value["resolved"]]
        total = len(evaluation_results)
        return FinalScoreResult(
            score=100 * len(resolved) / total if total else 0.0, metadata={"resolved_tasks": resolved}
        )


class _Custom(StreamMessageChunk):
    colour: str = "blue"


async def _scripted(task_id: str) -> AsyncGenerator[Any, None]:
    match task_id:
        case "silent":
            await asyncio.Event().wait()
        case "forever":
            while True:
                yield chunk("message", "x" * 1000)
                await asyncio.sleep(0)
        case "raises":
            yield chunk("message", "before")
            raise KeyError("the answer")
        case "exits":
            raise SystemExit("a library called sys.exit")
        case "cancels":
            raise asyncio.CancelledError
        case "odd":
            yield {"type": "message", "data": "from a dict"}
            yield _Custom(type="message", data="from a subclass")
            yield "not a chunk"
            yield {"type": "unheard-of", "data": 1}
            yield chunk("result", {"bad": {1}})
        case "big":
            yield chunk("result", {"patch": "é" * 6_000_000})
        case _:
            yield chunk("message", f"grading {task_id}")
            yield chunk("eval_resume_state", {"step": 1})
            yield chunk("error", "a test was flaky")
            yield chunk("result", {"resolved": True})
