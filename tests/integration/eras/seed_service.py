"""A benchmark service of the first era: Daytona's own sandbox object, three kinds of chunk, an image."""

import json
import os
from collections.abc import AsyncGenerator
from typing import Any

from daytona import AsyncSandbox

from benchmark_service import BenchmarkService, BenchmarkServiceApp
from benchmark_service.schemas import (
    EvaluateResponseRequest,
    FinalScoreResult,
    Resources,
    RetrieveTaskResponse,
    StreamChunk,
    StreamErrorChunk,
    StreamMessageChunk,
    StreamResultChunk,
)
from benchmark_service.utils import stream_command

TASKS = {
    "reverse": {"statement": "Write the word 'stressed' backwards.", "answer": "desserts"},
    "double": {"statement": "Write 21 doubled.", "answer": "42"},
    "count": {"statement": "How many letters has 'sandbox'?", "answer": "7"},
}
CHECK = """
import json, sys
from pathlib import Path

answer = Path("answer.txt").read_text().strip() if Path("answer.txt").exists() else None
print("checking", sys.argv[1])
print("warning: case matters", file=sys.stderr)
Path("/tmp/report.json").write_text(json.dumps({"answer": answer, "resolved": answer == sys.argv[2]}))
"""


class SeedBenchmark(BenchmarkService):
    async def load_datasets(self) -> dict[str, dict[str, Any]]:
        return {"default": TASKS}

    async def check_auth(self, headers: dict[str, str]) -> bool:
        return headers.get("authorization") == os.environ["SEED_CREDENTIAL"]

    async def retrieve_task(
        self, task_id: str, skip_validation: bool = False, dataset: str | None = None
    ) -> RetrieveTaskResponse:
        if not skip_validation:
            await self.validate_task_ids([task_id], dataset)
        return RetrieveTaskResponse(
            docker_image="python:3.12-slim",
            problem_path="/tmp/problem_statement.txt",
            cwd="/workspace",
            agent_timeout=60.0,
            resources=Resources(vcpu=1, memory=1, disk=1),
        )

    async def setup_task(
        self, task_id: str, sandbox: AsyncSandbox, dataset: str | None = None
    ) -> AsyncGenerator[StreamChunk, None]:
        task = self.get_dataset(dataset)[task_id]
        await sandbox.fs.upload_file(task["statement"].encode(), "/tmp/problem_statement.txt")
        async for line in stream_command(sandbox, "mkdir -p /workspace && echo workspace is ready", "/"):
            yield StreamMessageChunk(type="message", data=line)
        async for line in stream_command(sandbox, "cat /no/such/file", "/tmp", ignore_error=True):
            yield StreamErrorChunk(type="error", data=line)
        response = await sandbox.process.exec(command="ls problem_statement.txt", cwd="/tmp")
        if response.exit_code != 0:
            raise ValueError(f"The problem statement is missing: {response.result}")
        yield StreamResultChunk(type="result", data={"status": "success"})

    async def evaluate_response(self, request: EvaluateResponseRequest, dataset: str | None = None) -> Any:
        task = self.get_dataset(dataset)[request.task_id]
        return {"resolved": request.response == task["answer"]}

    async def evaluate_instance(
        self, task_id: str, sandbox: AsyncSandbox, dataset: str | None = None
    ) -> AsyncGenerator[StreamChunk, None]:
        task = self.get_dataset(dataset)[task_id]
        await sandbox.fs.upload_file(CHECK.encode(), "/tmp/check.py")
        command = f"python3 /tmp/check.py {task_id} {task['answer']}"
        async for line in stream_command(sandbox, command, "/workspace"):
            yield StreamMessageChunk(type="message", data=line)
        report = await sandbox.fs.download_file("/tmp/report.json")
        yield StreamResultChunk(type="result", data=json.loads(report))

    async def calculate_final_score(
        self, evaluation_results: dict[str, Any], dataset: str | None = None
    ) -> FinalScoreResult:
        resolved = [task for task, result in evaluation_results.items() if result and result["resolved"]]
        return FinalScoreResult(
            score=len(resolved) / len(evaluation_results) * 100, metadata={"resolved_tasks": resolved}
        )


app = BenchmarkServiceApp(SeedBenchmark)
