"""Services built like those for terminal-bench and SkillsBench, with what they reach into."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from fastapi import Request
from pydantic import model_validator

from benchmark_service import BenchmarkService, BenchmarkServiceApp
from benchmark_service.context import current_sandbox_provider
from benchmark_service.sandbox import ComposeSandbox, ComposeSource, ImageSource, Sandbox
from benchmark_service.sandbox.daytona import DaytonaSandboxProvider
from benchmark_service.schemas import (
    EvaluateResponseRequest,
    FinalScoreResult,
    Resources,
    RetrieveTaskResponse,
    SetupTaskResponse,
    StreamChunk,
    StreamMessageChunk,
    StreamResultChunk,
)
from benchmark_service.utils import stream_command
from benchmark_service.v1_schemas import V1Task

IMAGE = ImageSource(image="ghcr.io/example/terminal:1")


class TaskResources(Resources):
    """Resources as task files state them: `memory: 2G`."""

    @model_validator(mode="before")
    @classmethod
    def _from_task_file(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        size = {name: int(str(data.get(name, "1")).removesuffix("G")) for name in ("memory", "disk")}
        return {"vcpu": int(data.get("cpus", 1)), **size}


class TerminalBenchmark(BenchmarkService):
    def __init__(self, root: Path) -> None:
        raise AssertionError(f"services are made without their constructor, here for {root}")

    async def load_datasets(self) -> dict[str, dict[str, Any]]:
        self.logs = "/logs/verifier"
        files = {
            "make-file": {"ask": "Create hello.txt", "test": "test -e hello.txt", "size": {"memory": "1G"}},
            "fill-file": {"ask": "Fill full.txt", "test": "grep -q full full.txt", "size": {"cpus": "1"}},
        }
        return {"default": files, "compose": {"fill-file": files["fill-file"]}}

    async def list_tasks(self, dataset: str | None = None) -> list[V1Task]:
        tasks = self.get_dataset(dataset)
        return [V1Task(id=task_id, question=task["ask"], timeout=60) for task_id, task in tasks.items()]

    async def retrieve_task(
        self, task_id: str, skip_validation: bool = False, dataset: str | None = None
    ) -> RetrieveTaskResponse:
        await self.validate_task_ids([task_id], dataset)
        return RetrieveTaskResponse(
            source=ComposeSource(outer=IMAGE, service="client") if dataset == "compose" else IMAGE,
            problem_path="/app/instruction.md",
            cwd="/app",
            agent_timeout=60.0,
            resources=TaskResources.model_validate(self.get_dataset(dataset)[task_id]["size"]),
        )

    async def setup_task(
        self, task_id: str, sandbox: Sandbox, dataset: str | None = None
    ) -> AsyncGenerator[StreamChunk, None]:
        provider = current_sandbox_provider()
        if not isinstance(provider, DaytonaSandboxProvider) or isinstance(sandbox, ComposeSandbox):
            raise RuntimeError(f"{type(provider).__name__} is not supported")
        async for line in stream_command(sandbox, f"mkdir -p /app {self.logs} && ls -d /app", cwd="/"):
            yield StreamMessageChunk(type="message", data=line)
        await sandbox.upload_file("/app/instruction.md", self.get_dataset(dataset)[task_id]["ask"].encode())
        yield StreamResultChunk(type="result", data=SetupTaskResponse(status="success").model_dump())

    async def evaluate_response(self, request: EvaluateResponseRequest, dataset: str | None = None) -> Any:
        raise NotImplementedError

    async def evaluate_instance(
        self, task_id: str, sandbox: Sandbox, dataset: str | None = None
    ) -> AsyncGenerator[StreamChunk, None]:
        test = self.get_dataset(dataset)[task_id]["test"]
        script = f"if {test}; then echo 1; else echo 0; fi > {self.logs}/reward.txt; echo tests ran"
        async for line in stream_command(sandbox, script, cwd="/app"):
            yield StreamMessageChunk(type="message", data=line)
        reward = b""
        async for piece in sandbox.stream_download(f"{self.logs}/reward.txt"):
            reward += piece
        yield StreamResultChunk(type="result", data={"reward": float(reward)})

    async def calculate_final_score(
        self, evaluation_results: dict[str, Any], dataset: str | None = None
    ) -> FinalScoreResult:
        rewards = [result["reward"] if result else 0.0 for result in evaluation_results.values()]
        return FinalScoreResult(score=sum(rewards) / len(rewards), metadata={"rewards": rewards})


class SkillsBenchmark(TerminalBenchmark):
    async def setup_task(
        self, task_id: str, sandbox: Sandbox, dataset: str | None = None
    ) -> AsyncGenerator[StreamChunk, None]:
        inner = getattr(sandbox, "_sandbox")  # noqa: B009
        reached = [inner._sandbox_api.api_client, inner._experimental_create_snapshot]
        reached.append(getattr(current_sandbox_provider(), "_daytona").snapshot)  # noqa: B009
        yield StreamMessageChunk(type="message", data=f"reached {len(reached)}")
        async for chunk in super().setup_task(task_id, sandbox, dataset):
            if isinstance(chunk, StreamResultChunk):
                await sandbox.upload_file("/skills/SKILL.md", b"Use touch.")
                done = SetupTaskResponse(status="success", skills_dir="/skills")  # type: ignore[call-arg]
                chunk = StreamResultChunk(type="result", data=done.model_dump())
            yield chunk


app = BenchmarkServiceApp(TerminalBenchmark)
skills_app = BenchmarkServiceApp(SkillsBenchmark)


async def retrieve_task(
    request: Request, task_id: str, skip_validation: bool = False, dataset: str | None = None
) -> dict[str, Any]:
    tenant = request.state.tenant
    task = await skills_app.service.retrieve_task(task_id, skip_validation, dataset)
    return {**task.model_dump(mode="json"), "skills": ["touch"], "asked_by": tenant}


for route in list(skills_app.router.routes):
    if getattr(route, "path", None) == "/retrieve-task/":
        skills_app.router.routes.remove(route)
skills_app.add_api_route("/retrieve-task/", retrieve_task, methods=["GET"])
