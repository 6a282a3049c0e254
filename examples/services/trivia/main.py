"""A text-graded benchmark service: a dozen questions and the ways to write their answers."""

from __future__ import annotations

import json
import os
import re
import unicodedata
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmark_service import BenchmarkService, BenchmarkServiceApp, EvalMode, Sandbox
from benchmark_service.app import serve
from benchmark_service.schemas import (
    EvaluateResponseRequest,
    FinalScoreResult,
    Resources,
    RetrieveTaskResponse,
    StreamChunk,
    StreamResultChunk,
)
from benchmark_service.v1_schemas import V1Task

QUESTIONS = Path(__file__).parent / "questions.json"
PROBLEM_PATH = "/tmp/question.txt"
WORKSPACE = "/workspace"
ANSWER_PATH = f"{WORKSPACE}/answer.txt"
ANSWER_LIMIT = 1000
"""Characters of an answer that are looked at; it comes from an agent, which may write anything."""
TIMEOUT = 60.0

_ARTICLES = re.compile(r"^(the|a|an) ")


@dataclass(frozen=True)
class Question:
    """What is asked, every answer that is right, and whether it is a number or a name."""

    question: str
    answers: tuple[str, ...]
    kind: str = "name"

    def grade(self, answer: str) -> dict[str, Any]:
        """Whether an answer is one of the right ones, however it is written."""
        given = answer.strip()[:ANSWER_LIMIT]
        right = {normalised(known) for known in self.answers}
        return {"correct": normalised(given) in right, "answer": given}


def normalised(text: str) -> str:
    """The text without accents, case, punctuation, articles and extra spaces."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    words = re.sub(r"[^a-z0-9]+", " ", plain.lower()).strip()
    return _ARTICLES.sub("", words)


class Trivia(BenchmarkService):
    """Twelve questions. The agent's answer is text; no sandbox is looked into to grade it."""

    eval_mode = EvalMode.TEXT

    async def load_datasets(self) -> dict[str, dict[str, Any]]:
        entries = json.loads(QUESTIONS.read_text(encoding="utf-8"))
        return {
            "default": {
                task_id: Question(entry["question"], tuple(entry["answers"]), entry.get("kind", "name"))
                for task_id, entry in entries.items()
            }
        }

    async def question(self, task_id: str, dataset: str | None) -> Question:
        """The question of that id; a ValueError, which callers see as 400, when there is none."""
        await self.validate_task_ids([task_id], dataset)
        found: Question = self.get_dataset(dataset)[task_id]
        return found

    async def retrieve_task(
        self, task_id: str, skip_validation: bool = False, dataset: str | None = None
    ) -> RetrieveTaskResponse:
        _ = skip_validation
        await self.question(task_id, dataset)
        return RetrieveTaskResponse(
            problem_path=PROBLEM_PATH,
            cwd=WORKSPACE,
            agent_timeout=TIMEOUT,
            resources=Resources(vcpu=1, memory=1, disk=1),
        )

    async def setup_task(
        self, task_id: str, sandbox: Sandbox, dataset: str | None = None
    ) -> AsyncGenerator[StreamChunk, None]:
        task = await self.question(task_id, dataset)
        await sandbox.exec(f"mkdir -p {WORKSPACE}", timeout=30)
        statement = f"{task.question}\n\nWrite the answer, and nothing else, to {ANSWER_PATH}.\n"
        await sandbox.upload_file(PROBLEM_PATH, statement.encode())
        yield StreamResultChunk(type="result", data={"status": "ok"})

    async def evaluate_response(
        self, request: EvaluateResponseRequest, dataset: str | None = None
    ) -> dict[str, Any]:
        task = await self.question(request.task_id, dataset or request.dataset)
        return task.grade(request.response or "")

    async def evaluate_instance(
        self, task_id: str, sandbox: Sandbox, dataset: str | None = None
    ) -> AsyncGenerator[StreamChunk, None]:
        """The same grading, for callers that leave the answer in the sandbox."""
        task = await self.question(task_id, dataset)
        read = await sandbox.exec(f"test ! -f {ANSWER_PATH} || head -c 4096 {ANSWER_PATH}", timeout=30)
        yield StreamResultChunk(type="result", data=task.grade(read.output))

    async def list_tasks(self, dataset: str | None = None) -> list[V1Task]:
        return [
            V1Task.model_validate(
                {"id": task_id, "question": task.question, "timeout": TIMEOUT, "kind": task.kind}
            )
            for task_id, task in self.get_dataset(dataset).items()
        ]

    async def calculate_final_score(
        self, evaluation_results: dict[str, Any], dataset: str | None = None
    ) -> FinalScoreResult:
        """The percentage of right answers; a task without a result (None) counts as not answered."""
        _ = dataset
        graded = [result for result in evaluation_results.values() if result is not None]
        correct = sum(result["correct"] is True for result in graded)
        total = len(evaluation_results)
        return FinalScoreResult(
            score=round(100 * correct / total, 2) if total else 0.0,
            metadata={"questions": total, "answered": len(graded), "correct": correct},
        )


app = BenchmarkServiceApp(Trivia)

if __name__ == "__main__":
    serve(app, port=int(os.environ.get("PORT", "8001")))
