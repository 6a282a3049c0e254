"""A benchmark service of the middle era: the framework's own sandboxes, checkpoints, two datasets."""

from collections.abc import AsyncGenerator
from typing import Any

from benchmark_service import BenchmarkService, BenchmarkServiceApp
from benchmark_service.context import current_sandbox_provider
from benchmark_service.sandbox import (
    ImageSource,
    Sandbox,
    SandboxCommandError,
    SandboxCreateRequest,
    SandboxError,
    SandboxNotFoundError,
)
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

IMAGE = ImageSource(image="ubuntu:24.04")
DATASETS = {
    "default": {"sum": "1 + 2", "power": "2 ** 10"},
    "hard": {"remainder": "10 ** 6 % 17", "sum": "1 + 2", "unwritten": "0"},
}


class MidBenchmark(BenchmarkService):
    async def load_datasets(self) -> dict[str, dict[str, Any]]:
        return DATASETS

    def get_service_version(self) -> str | None:
        return "2.3.4"

    async def retrieve_task(
        self, task_id: str, skip_validation: bool = False, dataset: str | None = None
    ) -> RetrieveTaskResponse:
        if not skip_validation:
            await self.validate_task_ids([task_id], dataset)
        resources = Resources(vcpu=1, memory=1, disk=1)
        if dataset == "hard":
            resources.vcpu = 2
        return RetrieveTaskResponse(
            source=IMAGE,
            problem_path="/tmp/problem_statement.txt",
            cwd="/workspace",
            agent_timeout=60,
            resources=resources,
        )

    async def setup_task(
        self, task_id: str, sandbox: Sandbox, dataset: str | None = None
    ) -> AsyncGenerator[StreamChunk, None]:
        formula = self.get_dataset(dataset)[task_id]
        await sandbox.upload_file("/tmp/problem_statement.txt", f"Print {formula}\n".encode())
        made = await sandbox.exec("mkdir -p /workspace && pwd", cwd="/tmp")
        if made.exit_code != 0:
            raise SandboxError(made.output)
        yield StreamMessageChunk(type="message", data=f"in {made.stdout.strip()} of {sandbox.name}")
        try:
            async for piece in sandbox.command("echo $GREETING; exit 3", env_vars={"GREETING": "hello"}):
                yield StreamMessageChunk(type="message", data=piece)
        except SandboxCommandError as error:
            yield StreamMessageChunk(type="message", data=f"left with {error.exit_code}")
        yield StreamResultChunk(type="result", data={"status": "success"})

    async def evaluate_response(self, request: EvaluateResponseRequest, dataset: str | None = None) -> Any:
        raise NotImplementedError("answers are streamed")

    async def stream_evaluate_response(
        self, request: EvaluateResponseRequest, dataset: str | None = None
    ) -> AsyncGenerator[StreamChunk, None]:
        if request.eval_resume_state is not None:
            answer, how = request.eval_resume_state["answer"], "resumed"
        else:
            answer, how = request.response, "answered"
        yield StreamMessageChunk(type="message", data=how)
        yield StreamResultChunk(type="result", data=self._grade(request.task_id, answer, dataset))

    async def evaluate_instance(
        self, task_id: str, sandbox: Sandbox, dataset: str | None = None
    ) -> AsyncGenerator[StreamChunk, None]:
        try:
            program = await sandbox.download_file("/workspace/answer.py")
        except SandboxNotFoundError:
            raise
        except SandboxError:
            yield StreamMessageChunk(type="message", data="there is no answer.py")
            yield StreamResultChunk(type="result", data=self._grade(task_id, None, dataset))
            return
        provider = current_sandbox_provider()
        clean = await provider.create_sandbox(
            SandboxCreateRequest(
                source=IMAGE,
                resources=Resources(vcpu=1, memory=1, disk=1),
                name=f"grade-{sandbox.id}",
                labels={"Task": task_id},
                network_block_all=True,
            )
        )
        try:
            await clean.upload_file("/tmp/answer.py", program)
            ran = await clean.exec("python3 answer.py", cwd="/tmp", timeout=30)
        finally:
            await provider.delete_sandbox(clean.id)
        yield StreamEvalResumeStateChunk(type="eval_resume_state", data={"answer": ran.output})
        yield StreamResultChunk(type="result", data=self._grade(task_id, ran.output, dataset))

    def _grade(self, task_id: str, answer: str | None, dataset: str | None) -> dict[str, Any]:
        expected = str(eval(self.get_dataset(dataset)[task_id]))
        return {"answer": answer, "score": 1.0 if answer is not None and answer.strip() == expected else 0.0}

    async def calculate_final_score(
        self, evaluation_results: dict[str, Any], dataset: str | None = None
    ) -> FinalScoreResult:
        scores = [result["score"] if result else 0.0 for result in evaluation_results.values()]
        return FinalScoreResult(score=sum(scores), metadata={"dataset": dataset, "tasks": len(scores)})


app = BenchmarkServiceApp(MidBenchmark)
