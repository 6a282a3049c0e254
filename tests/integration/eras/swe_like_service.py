"""A service built like the one for SWE-bench: patches are taken out, kept, and graded by a script."""

import json
import os
import uuid
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from benchmark_service import BenchmarkService, BenchmarkServiceApp
from benchmark_service.sandbox import (
    ImageSource,
    Sandbox,
    SandboxCommandError,
    SandboxCreateRequest,
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

INSTANCES = {
    "calc__calc-1": {"commit": "add", "expected": {"test_add": "f2p", "test_zero": "p2p"}},
    "calc__calc-2": {"commit": "mul", "expected": {"test_mul": "f2p", "test_zero": "p2p"}},
}
TESTS = {"test_add": "calc.add(2, 3) == 5", "test_mul": "calc.mul(2, 3) == 6", "test_zero": "calc.ZERO == 0"}
EVAL = """#!/bin/bash
exec > >(tee /root/eval_output.log) 2>&1
cd /testbed
echo '>>>>> Start Test Output'
for name in {names}; do
    if python3 -c "import calc; from tests import cases; assert eval(cases['$name'])"; then
        echo "PASSED $name"
    else
        echo "FAILED $name"
    fi
done
echo '>>>>> End Test Output'
"""


class SweLikeBenchmark(BenchmarkService):
    async def load_datasets(self) -> dict[str, dict[str, Any]]:
        return {"default": INSTANCES, "vals_index": {"calc__calc-1": INSTANCES["calc__calc-1"]}}

    def _image(self, task_id: str) -> str:
        return f"swebench/sweb.eval.x86_64.{task_id.replace('__', '_1776_')}:latest"

    async def retrieve_task(
        self, task_id: str, skip_validation: bool = False, dataset: str | None = None
    ) -> RetrieveTaskResponse:
        if not skip_validation:
            await self.validate_task_ids([task_id], dataset=dataset)
        resources = Resources(vcpu=1, memory=1, disk=1)
        if task_id == "calc__calc-2":
            resources.vcpu, resources.memory = 2, 2
        return RetrieveTaskResponse(
            source=ImageSource(image=self._image(task_id)),
            problem_path="/tmp/problem_statement.txt",
            cwd="/testbed",
            agent_timeout=None,
            resources=resources,
        )

    async def setup_task(
        self, task_id: str, sandbox: Sandbox, dataset: str | None = None
    ) -> AsyncGenerator[StreamChunk, None]:
        instance = self.get_dataset(dataset)[task_id]
        await sandbox.upload_file("/tmp/problem_statement.txt", f"Write {instance['commit']}().".encode())
        await sandbox.upload_file("/setup.sh", Path("setup.sh").read_bytes())
        try:
            async for piece in sandbox.command(
                f"chmod +x /setup.sh && bash /setup.sh {instance['commit']}", cwd="/"
            ):
                yield StreamMessageChunk(type="message", data=piece)
        except SandboxCommandError:
            yield StreamMessageChunk(type="message", data="setup.sh complained")
        yield StreamResultChunk(type="result", data={"status": "success"})

    async def evaluate_instance(
        self, task_id: str, sandbox: Sandbox, dataset: str | None = None
    ) -> AsyncGenerator[StreamChunk, None]:
        run_id = str(uuid.UUID(getattr(sandbox, "_sandbox").labels["Id"]))  # noqa: B009
        diff = await sandbox.exec("git add -A && git diff --cached HEAD > /root/patch.diff", cwd="/testbed")
        if diff.exit_code != 0:
            raise RuntimeError(f"git diff failed: {diff.output}")
        patch = (await sandbox.download_file("/root/patch.diff")).decode()
        state = {
            "run_id": run_id,
            "key": self._persist(run_id, task_id, patch),
            "image": self._image(task_id),
        }
        yield StreamEvalResumeStateChunk(type="eval_resume_state", data=state)
        async for chunk in self._grade(task_id, sandbox, patch, dataset):
            yield chunk

    def _persist(self, run_id: str, task_id: str, patch: str) -> str:
        folder = Path(os.environ["SWEBENCH_EVAL_STATE_LOCAL_DIR"]) / run_id
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"{task_id}.json"
        file.write_text(json.dumps({"patch": patch}))
        return str(file)

    async def evaluate_response(self, request: EvaluateResponseRequest, dataset: str | None = None) -> Any:
        if request.eval_resume_state is None or request.sandbox_provider is None:
            raise ValueError("SWE-bench grades sandboxes, not answers")
        state = request.eval_resume_state
        patch = json.loads(Path(state["key"]).read_text())["patch"]
        async with request.sandbox_provider.create_provider() as provider:
            sandbox = await provider.create_sandbox(
                SandboxCreateRequest(
                    source=ImageSource(image=state["image"]),
                    resources=Resources(vcpu=1, memory=1, disk=1),
                    labels={"Id": state["run_id"], "Task": request.task_id},
                )
            )
            try:
                async for _ in self.setup_task(request.task_id, sandbox, dataset):
                    pass
                await sandbox.upload_file("/root/patch.diff", patch.encode())
                if patch:
                    await sandbox.exec("git apply /root/patch.diff", cwd="/testbed")
                async for chunk in self._grade(request.task_id, sandbox, patch, dataset):
                    if isinstance(chunk, StreamResultChunk):
                        return {**chunk.data, "resumed": True}
            finally:
                await provider.delete_sandbox(sandbox.id)

    async def _grade(
        self, task_id: str, sandbox: Sandbox, patch: str, dataset: str | None
    ) -> AsyncGenerator[StreamChunk, None]:
        expected = self.get_dataset(dataset)[task_id]["expected"]
        await sandbox.upload_file("/root/eval.sh", EVAL.replace("{names}", " ".join(expected)).encode())
        yield StreamMessageChunk(type="message", data="running eval.sh")
        async for piece in sandbox.command("bash /root/eval.sh", cwd="/testbed", timeout=1800):
            yield StreamMessageChunk(type="message", data=piece)
        log = (await sandbox.exec("cat /root/eval_output.log")).output
        status_map = {line.split()[1]: line.split()[0] for line in log.splitlines() if "test_" in line}
        passed = {name for name, status in status_map.items() if status == "PASSED"}
        by_kind = {
            kind: {
                "success": [name for name, of in expected.items() if of == kind and name in passed],
                "failure": [name for name, of in expected.items() if of == kind and name not in passed],
            }
            for kind in ("f2p", "p2p")
        }
        resolved = passed == set(expected)
        yield StreamResultChunk(
            type="result",
            data={
                "prediction": patch,
                "patch_successfully_applied": True,
                "resolved": resolved,
                "resolution_status": "FULL" if resolved else "NO",
                "fail_to_pass": by_kind["f2p"],
                "pass_to_pass": by_kind["p2p"],
                "f2p_score": float(not by_kind["f2p"]["failure"]),
                "p2p_score": float(not by_kind["p2p"]["failure"]),
                "status_map": status_map,
            },
        )

    async def calculate_final_score(
        self, evaluation_results: dict[str, Any], dataset: str | None = None
    ) -> FinalScoreResult:
        resolved = [task for task, result in evaluation_results.items() if result and result["resolved"]]
        total = len(evaluation_results)
        return FinalScoreResult(
            score=round(len(resolved) / total * 100, 6) if total else 0.0,
            metadata={
                "resolved_tasks": resolved,
                "unresolved_tasks": [task for task in evaluation_results if task not in resolved],
            },
        )


app = BenchmarkServiceApp(SweLikeBenchmark)
