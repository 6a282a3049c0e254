"""Many tasks at once: how many, in which context, and how they are stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

from benchmark_runner import (
    BenchmarkRunner,
    EvalResult,
    EvalStatus,
    GenerationResult,
    GenerationStatus,
    RunArtifacts,
    Task,
)
from benchmark_runner.artifacts import ArtifactError
from benchmark_runner.task_loop import LoopSettings, RunCounts, TaskLoop

SEEN: ContextVar[str] = ContextVar("seen", default="")


class Counting(BenchmarkRunner):
    """Remembers how many of each were at work at once."""

    NAME = "counting"

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.generating = self.evaluating = self.most_generating = self.most_evaluating = 0
        self.stop_after: tuple[int, RunCounts] | None = None
        self.generated: list[str] = []
        self.meet = (0, 0)
        """So many generate, and evaluate, at one time before any is done."""

    def load_tasks(self, dataset_file: Path) -> list[Task]:
        return []

    async def generate(
        self, task: Any, model: str, llm_config: Any = None, log_dir: Any = None
    ) -> GenerationResult:
        seen = SEEN.get()
        SEEN.set(task.id)
        self.generated.append(task.id)
        self.generating += 1
        self.most_generating = max(self.most_generating, self.generating)
        await self._together(lambda: self.most_generating >= self.meet[0])
        self.generating -= 1
        if self.stop_after and len(self.generated) >= self.stop_after[0]:
            self.stop_after[1].stopping = True
        return GenerationResult(task_id="other", status=GenerationStatus.SUCCESS, data=seen)

    async def _together(self, met: Callable[[], bool]) -> None:
        """Stay until as many are here as are to meet, and a moment longer for those who must not come."""
        while not met():
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.001)

    async def evaluate(self, task_id: str, generation: GenerationResult) -> EvalResult:
        self.evaluating += 1
        self.most_evaluating = max(self.most_evaluating, self.evaluating)
        await self._together(lambda: self.most_evaluating >= self.meet[1])
        self.evaluating -= 1
        return EvalResult(task_id="other", status=EvalStatus.EVALUATED, result=1)


def work(
    tmp_path: Path, runner: Counting, **how: Any
) -> tuple[TaskLoop, RunCounts, RunArtifacts, list[Task]]:
    tasks = [Task(id=f"t{n}", question=f"{n}?") for n in range(40)]
    watch, artifacts = RunCounts(total=40), RunArtifacts(tmp_path, "r")
    return (
        TaskLoop(runner, artifacts, LoopSettings("m", **how), watch, lambda text: text),
        watch,
        artifacts,
        tasks,
    )


async def test_no_more_at_once_than_allowed(tmp_path: Path) -> None:
    runner = Counting(eval_concurrency=3)
    runner.meet = (7, 3)
    passing, watch, artifacts, tasks = work(tmp_path, runner, parallelism=7)
    await passing.run(tasks)
    assert (runner.most_generating, runner.most_evaluating) == (7, 3)
    assert (watch.done, watch.worked, watch.in_flight, watch.errors) == (40, 40, 0, 0)
    kept = [artifacts.read_generation(task.id) for task in tasks]
    assert all(one and one.task_id == task.id for one, task in zip(kept, tasks, strict=True))
    evals = [artifacts.read_eval(task.id) for task in tasks]
    assert all(one and one.task_id == task.id for one, task in zip(evals, tasks, strict=True))


async def test_one_tasks_context_does_not_reach_the_next(tmp_path: Path) -> None:
    runner = Counting()
    passing, _, artifacts, tasks = work(tmp_path, runner, parallelism=1)
    await passing.run(tasks)
    assert {one.data for task in tasks if (one := artifacts.read_generation(task.id))} == {""}


async def test_stopping_finishes_what_is_in_flight_and_begins_nothing(tmp_path: Path) -> None:
    runner = Counting(eval_concurrency=2)
    passing, watch, artifacts, tasks = work(tmp_path, runner, parallelism=4)
    runner.stop_after = (9, watch)
    await passing.run(tasks)
    assert 9 <= len(runner.generated) <= 13
    assert watch.done == len(runner.generated)
    assert all(artifacts.read_eval(task_id) for task_id in runner.generated)
    assert [task.id for task in tasks if passing.is_due(task)] == [
        task.id for task in tasks if task.id not in runner.generated
    ]


async def test_generating_alone_and_grading_alone(tmp_path: Path) -> None:
    runner = Counting()
    passing, watch, artifacts, tasks = work(tmp_path, runner, evaluate=False)
    await passing.run(tasks)
    assert (watch.done, runner.most_evaluating) == (40, 0)
    assert artifacts.read_eval("t1") is None and not passing.is_due(tasks[1])
    runner = Counting()
    passing, watch, artifacts, tasks = work(tmp_path, runner, generate=False)
    await passing.run(tasks)
    assert (watch.done, runner.generated) == (40, [])
    assert artifacts.read_eval("t1") is not None and not passing.is_due(tasks[1])


async def test_a_folder_in_the_way_ends_the_run(tmp_path: Path) -> None:
    runner = Counting()
    passing, _, artifacts, tasks = work(tmp_path, runner, parallelism=2)
    artifacts.root.mkdir()
    artifacts.eval_path("t3").mkdir(parents=True)
    artifacts.drop_eval = lambda task_id: None  # type: ignore[method-assign]
    with pytest.raises(ArtifactError, match=r"eval.json cannot be written: Is a directory"):
        await passing.run(tasks)


async def test_nothing_to_do(tmp_path: Path) -> None:
    passing, watch, _, _ = work(tmp_path, Counting())
    await passing.run([])
    assert watch.done == 0
