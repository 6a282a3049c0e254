"""The folder a benchmark runner leaves, written with the runner's own words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmark_runner.artifacts import RunArtifacts
from benchmark_runner.checkpoint import RunConfig
from benchmark_runner.schemas import EvalResult, EvalStatus, GenerationResult, GenerationStatus, ScoreResult

CAPITALS = {"france": "Paris", "peru": "Lima", "chad": "N'Djamena"}


def write_run(results: Path, run_id: str = "run-1", **config: Any) -> RunArtifacts:
    """A finished run: two right answers, one wrong one."""
    artifacts = RunArtifacts(results, run_id)
    artifacts.write_config(
        RunConfig(
            **{
                "run_id": run_id,
                "model": "some-model",
                "tasks": list(CAPITALS),
                "benchmark": "capitals",
                "payload_schema": "capitals.text.v1",
                "generation_version": "1.2",
                "service_url": "http://ann:pass-4711@127.0.0.1:9",
                "started_at": "2025-01-15T10:30:00+00:00",
                **config,
            }
        )
    )
    for task_id, answer in CAPITALS.items():
        right = task_id != "chad"
        write_task(artifacts, task_id, answer if right else "Abuja", result={"passed": right, "said": answer})
    score = ScoreResult(tasks_evaluated=list(CAPITALS), final_score=2 / 3, metadata={"n": 3}, complete=True)
    artifacts.write_score(score)
    return artifacts


def write_task(
    artifacts: RunArtifacts,
    task_id: str,
    answer: Any = "",
    *,
    status: EvalStatus = EvalStatus.EVALUATED,
    generated: GenerationStatus = GenerationStatus.SUCCESS,
    result: Any = None,
    error: str | None = None,
) -> None:
    """One task's files."""
    artifacts.write_generation(
        GenerationResult(
            task_id=task_id,
            status=generated,
            data=answer,
            question=f"What is the capital of {task_id}?",
            model="some-model",
            total_turns=2,
            error=error,
        )
    )
    artifacts.write_eval(EvalResult(task_id=task_id, status=status, result=result, error=error))
    logs = artifacts.log_dir(task_id)
    logs.mkdir(exist_ok=True)
    (logs / "session.txt").write_text(f"thinking about {task_id}\n")
