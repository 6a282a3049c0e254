"""A benchmark whose tasks are set up as ever and graded with the tests, or the judge, of another one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from sandboxes.protocol import Sandbox
from sandboxes.types import OutputSink
from valkyrie.benchmarks.protocol import Benchmark, Grading
from valkyrie.errors import BenchmarkError, UserError
from valkyrie.nouns import FinalScore, Grade, Json, TaskSpec


class OtherTests:
    """The run's own benchmark, but `grader` judges."""

    def __init__(self, own: Benchmark, grader: Benchmark) -> None:
        self._own = own
        self._grader = grader
        self._stands_in: dict[str, TaskSpec] = {}
        """Tasks that are set up as `grader` has them: the run's own are not what they were."""
        self._planned: dict[str, TaskSpec] = {}

    @property
    def name(self) -> str:
        return self._own.name

    @property
    def source(self) -> Json:
        return self._own.source

    @property
    def fraction(self) -> bool:
        return self._own.fraction

    async def datasets(self) -> list[str]:
        return await self._own.datasets()

    async def list_tasks(self, dataset: str = "default") -> list[str]:
        return await self._own.list_tasks(dataset)

    async def describe(self, task_id: str, dataset: str = "default") -> TaskSpec:
        """Return the run's own task; if it is gone or broken by now, the other's."""
        try:
            return await self._own.describe(task_id, dataset)
        except (UserError, BenchmarkError):
            return await self._grader.describe(task_id)

    async def combined(self, task: TaskSpec, *, planned: bool) -> TaskSpec:
        """Return the task with the other's verifier settings.

        If it is not what was planned, because its tests were changed in place, all of it is the other's.
        """
        other = await self._grader.describe(task.id)
        base = task if planned else other
        (self._planned if planned else self._stands_in)[task.id] = base
        return replace(
            base,
            digest=other.digest,
            of_image=base.of_image - {"grading_user"} | other.of_image & {"grading_user"},
            grading_user=other.grading_user,
            grading_folders=other.grading_folders,
            timeouts=replace(base.timeouts, grade=other.timeouts.grade),
        )

    async def setup(self, task: TaskSpec, sandbox: Sandbox, log: OutputSink, start: Path) -> None:
        if task.id in self._stands_in:
            await self._grader.setup(task, sandbox, log, start)
        else:
            digest = self._planned[task.id].digest
            await self._own.setup(replace(task, digest=digest), sandbox, log, start)

    def solution(self, task: TaskSpec) -> Path | None:
        return self._own.solution(task)

    async def evaluate(self, grading: Grading) -> Grade:
        return await self._grader.evaluate(grading)

    async def final_score(
        self, grades: Mapping[str, Sequence[Grade | None]], dataset: str = "default"
    ) -> FinalScore:
        return await self._own.final_score(grades, dataset)

    async def close(self) -> None:
        """Leave both to whoever opened them."""
