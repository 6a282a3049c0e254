"""A benchmark service that is going to be killed: `python crash_service.py PORT TASKS text|sandbox JOURNAL`.

Every answer it is given to grade is appended to the journal before it is graded.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import uvicorn

from benchmark_service import BenchmarkService, BenchmarkServiceApp, EvalMode, Sandbox
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

PORT, TASKS, MODE, JOURNAL = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4])
GRADING_S = 0.2


class CrashService(BenchmarkService):
    async def load_datasets(self) -> dict[str, dict[str, Any]]:
        return {"default": {f"task-{number}": number for number in range(TASKS)}}

    async def retrieve_task(
        self, task_id: str, skip_validation: bool = False, dataset: str | None = None
    ) -> RetrieveTaskResponse:
        return RetrieveTaskResponse(
            problem_path="/tmp/problem.txt",
            cwd="/workspace",
            agent_timeout=60,
            resources=Resources(vcpu=1, memory=1, disk=1),
        )

    async def setup_task(
        self, task_id: str, sandbox: Sandbox, dataset: str | None = None
    ) -> AsyncIterator[StreamChunk]:
        await sandbox.upload_file("/tmp/problem.txt", b"write a random number to /workspace/answer.txt")
        yield StreamResultChunk(type="result", data={"status": "success"})

    async def evaluate_instance(
        self, task_id: str, sandbox: Sandbox, dataset: str | None = None
    ) -> AsyncIterator[StreamChunk]:
        answer = (await sandbox.download_file("/workspace/answer.txt")).decode().strip()
        write(task_id, answer)
        yield StreamEvalResumeStateChunk(type="eval_resume_state", data={"answer": answer})
        yield StreamMessageChunk(type="message", data="checkpoint is safe")
        await asyncio.sleep(GRADING_S)
        yield StreamResultChunk(type="result", data={"resolved": bool(answer), "answer": answer})

    async def evaluate_response(
        self, request: EvaluateResponseRequest, dataset: str | None = None
    ) -> dict[str, Any]:
        state = request.eval_resume_state
        answer = state["answer"] if state is not None else (request.response or "").strip()
        if state is None:
            write(request.task_id, answer)
        await asyncio.sleep(GRADING_S)
        return {"resolved": bool(answer), "answer": answer}

    async def calculate_final_score(
        self, evaluation_results: Mapping[str, Any], dataset: str | None = None
    ) -> FinalScoreResult:
        good = sum(1 for found in evaluation_results.values() if found and found["resolved"])
        return FinalScoreResult(score=100 * good / len(evaluation_results))


if MODE == "text":
    CrashService.eval_mode = EvalMode.TEXT


def write(task_id: str, answer: str) -> None:
    line = json.dumps([task_id, answer]) + "\n"
    descriptor = os.open(JOURNAL, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(descriptor, line.encode())
    os.close(descriptor)


if __name__ == "__main__":
    uvicorn.run(BenchmarkServiceApp(CrashService), host="127.0.0.1", port=PORT, log_level="error")
