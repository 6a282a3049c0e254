"""The benchmark of a run that was stored from elsewhere: it knows its name and how to score, nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from sandboxes.protocol import Sandbox
from sandboxes.types import OutputSink
from valkyrie.benchmarks.protocol import Grading
from valkyrie.errors import UserError
from valkyrie.nouns import INGESTED, FinalScore, Grade, Json, TaskSpec

KIND = INGESTED


def not_runnable(run_id: str) -> UserError:
    """Why nothing of such a run can go on."""
    return UserError(
        f"Run {run_id[:8]} was ingested: its trials ran elsewhere and cannot go on here. "
        "`valkyrie eval` runs its spec anew.",
        cause=KIND,
    )


class IngestedBenchmark:
    """Tasks that ran elsewhere."""

    def __init__(self, name: str, *, fraction: bool = True) -> None:
        self.name = name
        self._fraction = fraction

    @property
    def source(self) -> Json:
        return {"kind": KIND, "name": self.name}

    @property
    def fraction(self) -> bool:
        return self._fraction

    async def datasets(self) -> list[str]:
        return ["default"]

    async def list_tasks(self, dataset: str = "default") -> list[str]:
        raise self._nothing_runs(f"listing dataset {dataset}")

    async def describe(self, task_id: str, dataset: str = "default") -> TaskSpec:
        raise self._nothing_runs(f"task {task_id} of {dataset}")

    async def setup(self, task: TaskSpec, sandbox: Sandbox, log: OutputSink, start: Path) -> None:
        _ = sandbox, log, start
        raise self._nothing_runs(f"task {task.id}")

    def solution(self, task: TaskSpec) -> Path | None:
        _ = task
        return None

    async def evaluate(self, grading: Grading) -> Grade:
        raise self._nothing_runs(f"task {grading.task.id}")

    async def final_score(
        self, grades: Mapping[str, Sequence[Grade | None]], dataset: str = "default"
    ) -> FinalScore:
        """Mean over tasks of the mean over their trials; what was not graded counts 0."""
        _ = dataset
        means = [
            sum((grade.score or 0.0) if grade else 0.0 for grade in trials) / len(trials)
            for trials in grades.values()
            if trials
        ]
        ungraded = sum(1 for trials in grades.values() if not any(trials))
        return FinalScore(
            score=sum(means) / len(means) if means else None,
            properties={"tasks": len(grades), "ungraded": ungraded},
        )

    async def close(self) -> None:
        return

    def _nothing_runs(self, what: str) -> UserError:
        return UserError(
            f"{what}: {self.name} was ingested from elsewhere, and nothing of it can run here.", cause=KIND
        )
