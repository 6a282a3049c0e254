"""A sandbox-graded benchmark service: small Python functions to write, two datasets, and a saved state.

The service keeps the expected values to itself. Into the sandbox, once the agent is done, go the arguments
of the hidden tests and a runner that prints what the agent's function returns for them.
"""

from __future__ import annotations

import json
import os
import shlex
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

from tasks import Task, load, parsed

from benchmark_service import BenchmarkService, BenchmarkServiceApp, Sandbox, SandboxCommandError
from benchmark_service.app import serve
from benchmark_service.sandbox import SandboxCreateRequest
from benchmark_service.schemas import (
    EvaluateResponseRequest,
    FinalScoreResult,
    Resources,
    RetrieveTaskResponse,
    StreamChunk,
    StreamEvalResumeStateChunk,
    StreamMessageChunk,
    StreamResultChunk,
)
from benchmark_service.utils import stream_command
from benchmark_service.v1_schemas import V1Task

RUNNER = Path(__file__).parent / "runner.py"
PROBLEM_PATH = "/tmp/problem_statement.md"
WORKSPACE = "/workspace"
SOLUTION = f"{WORKSPACE}/solution.py"
SOLUTION_LIMIT = 64 * 1024
GRADING = "/tmp/pycode-grading"
TIMEOUT = 120.0
GRADE_SECONDS = 60
RESOURCES = Resources(vcpu=1, memory=1, disk=1)


class PyCode(BenchmarkService):
    """Functions to write, graded by hidden tests in the sandbox."""

    async def load_datasets(self) -> dict[str, dict[str, Any]]:
        return {name: dict(tasks) for name, tasks in load().items()}

    async def task(self, task_id: str, dataset: str | None) -> Task:
        """The task of that id; a ValueError, which callers see as 400, when there is none."""
        await self.validate_task_ids([task_id], dataset)
        found: Task = self.get_dataset(dataset)[task_id]
        return found

    async def retrieve_task(
        self, task_id: str, skip_validation: bool = False, dataset: str | None = None
    ) -> RetrieveTaskResponse:
        _ = skip_validation
        await self.task(task_id, dataset)
        return RetrieveTaskResponse(
            problem_path=PROBLEM_PATH, cwd=WORKSPACE, agent_timeout=TIMEOUT, resources=RESOURCES
        )

    async def setup_task(
        self, task_id: str, sandbox: Sandbox, dataset: str | None = None
    ) -> AsyncGenerator[StreamChunk, None]:
        task = await self.task(task_id, dataset)
        yield StreamMessageChunk(type="message", data=f"setting {task_id} up: {task.function}()")
        await sandbox.upload_file(PROBLEM_PATH, task.statement.encode())
        await sandbox.upload_file(SOLUTION, task.starter.encode())
        yield StreamResultChunk(type="result", data={"status": "ok"})

    async def evaluate_instance(
        self, task_id: str, sandbox: Sandbox, dataset: str | None = None
    ) -> AsyncGenerator[StreamChunk, None]:
        task = await self.task(task_id, dataset)
        solution = await read_solution(sandbox)
        # From here on the agent's sandbox is not needed: should grading break off, it goes on from this.
        yield StreamEvalResumeStateChunk(type="eval_resume_state", data={"solution": solution})
        yield StreamMessageChunk(type="message", data=f"the solution has {len(solution)} characters")
        async with aclosing(graded(task, sandbox, solution)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def evaluate_response(
        self, request: EvaluateResponseRequest, dataset: str | None = None
    ) -> dict[str, Any]:
        """Grade a solution given as text, or saved earlier, in a fresh sandbox."""
        task = await self.task(request.task_id, dataset or request.dataset)
        saved = (request.eval_resume_state or {}).get("solution")
        solution = request.response if request.response is not None else saved
        if not isinstance(solution, str):
            raise ValueError("eval_resume_state holds no solution")
        if request.sandbox_provider is None:
            raise ValueError("solutions are run in a sandbox: give sandbox_provider")
        async with request.sandbox_provider.create_provider() as provider:
            name = f"pycode-{uuid.uuid4().hex[:12]}"
            sandbox = await provider.create_sandbox(SandboxCreateRequest(name=name, resources=RESOURCES))
            try:
                async with aclosing(graded(task, sandbox, solution)) as chunks:
                    async for chunk in chunks:
                        if isinstance(chunk, StreamResultChunk):
                            result: dict[str, Any] = chunk.data
                            return result
            finally:
                await provider.delete_sandbox(sandbox.id)
        raise RuntimeError("grading ended without a result")

    async def list_tasks(self, dataset: str | None = None) -> list[V1Task]:
        return [
            V1Task(id=task_id, question=task.statement, timeout=TIMEOUT)
            for task_id, task in self.get_dataset(dataset).items()
        ]

    async def calculate_final_score(
        self, evaluation_results: dict[str, Any], dataset: str | None = None
    ) -> FinalScoreResult:
        """The percentage of hidden tests passed; those of a task without a result (None) count as failed."""
        tasks = self.get_dataset(dataset)
        tests = sum(len(tasks[task_id].expected) for task_id in evaluation_results)
        graded = {task_id: result for task_id, result in evaluation_results.items() if result is not None}
        passed = sum(result["tests_passed"] for result in graded.values())
        return FinalScoreResult(
            score=round(100 * passed / tests, 2) if tests else 0.0,
            metadata={
                "tests": tests,
                "tests_passed": passed,
                "resolved_tasks": [task_id for task_id, result in graded.items() if result["resolved"]],
            },
        )


async def read_solution(sandbox: Sandbox) -> str:
    """What the agent left, of limited size; nothing at all is an empty solution."""
    done = await sandbox.exec(f"test ! -f {SOLUTION} || head -c {SOLUTION_LIMIT} {SOLUTION}", timeout=30)
    if done.exit_code != 0:
        raise SandboxCommandError(f"{SOLUTION} cannot be read: {done.output}", exit_code=done.exit_code)
    return done.output


async def graded(task: Task, sandbox: Sandbox, solution: str) -> AsyncGenerator[StreamChunk, None]:
    """Run the hidden tests on a solution; yields a message for each and the result."""
    await sandbox.upload_file(f"{GRADING}/solution.py", solution.encode())
    await sandbox.upload_file(f"{GRADING}/runner.py", RUNNER.read_bytes())
    await sandbox.upload_file(f"{GRADING}/cases.json", json.dumps(task.arguments).encode())
    run = shlex.join(["python3", "-I", "runner.py", "solution.py", task.function, "cases.json"])
    command = f"timeout -k 5 {GRADE_SECONDS} {run}"
    returned: dict[int, Any] = {}
    async with aclosing(stream_command(sandbox, command, GRADING, ignore_error=True)) as output:
        async for line in output:
            number, said = parsed(line)
            # Once per test: the agent's code may print lines of this form too, without end.
            if number in range(len(task.expected)) and number not in returned:
                returned[number] = said
                yield StreamMessageChunk(type="message", data=f"hidden test {number + 1} ran")
    yield StreamResultChunk(type="result", data=task.grade(returned))


app = BenchmarkServiceApp(PyCode)

if __name__ == "__main__":
    serve(app, port=int(os.environ.get("PORT", "8001")))
