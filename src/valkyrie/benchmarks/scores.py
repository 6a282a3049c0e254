"""Compute a run's scores from its trials, also for runs that were stored from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sandboxes.protocol import Sandbox
from sandboxes.types import OutputSink
from valkyrie.benchmarks.protocol import Benchmark, Grading
from valkyrie.domain import (
    INGESTED,
    FinalScore,
    Grade,
    Json,
    TaskSpec,
    TrialState,
    ended_by_agent,
    worst_score,
)
from valkyrie.errors import UserError

Grades = Mapping[str, Sequence[Grade | None]]
NOT_CONFIRMED = "not_confirmed"
"""The cause of a grade that stands in for one that no fresh sandbox saw."""


def grades_of(trials: Iterable[Any]) -> dict[str, list[Grade | None]]:
    """Grades by task, one per trial, None where there is none; `trials` are trial rows in order.

    A trial that ended by the agent's doing before it could be graded has the worst grade: 0, or the lowest
    of the others where that is below 0. One that was not needed is no part of it.
    """
    found: dict[str, list[Grade | None]] = {}
    by_agent: list[tuple[str, int, str]] = []
    for row in trials:
        if row.state == TrialState.SKIPPED:
            continue
        grades = found.setdefault(row.task_id, [])
        if ended_by_agent(row.state, row.category):
            by_agent.append((row.task_id, len(grades), row.cause))
        grades.append(_grade(row))
    worst = worst_score(grade.score for grades in found.values() for grade in grades if grade)
    for task_id, place, cause in by_agent:
        found[task_id][place] = Grade(worst, False, confirmed=True, score_confirmed=worst, cause=cause)
    return found


def _grade(row: Any) -> Grade | None:
    if row.state != TrialState.FINISHED:
        return None
    return Grade(
        row.score,
        row.passed,
        row.result or {},
        confirmed=row.confirmed,
        score_confirmed=row.score_confirmed,
        cause=row.cause,
        evidence=row.evidence or {},
    )


async def computed(benchmark: Benchmark, grades: Grades, dataset: str) -> tuple[Json, float | None]:
    """The benchmark's own verdict as data, and its score over what counts only.

    Where scores are fractions and trials are ungraded, the verdict has `score_low` and `score_high` too: the
    score if those had failed, and if they had passed.
    """
    final = await benchmark.final_score(grades, dataset)
    evaluation: Json = {"final_score": final.score, "properties": final.properties}
    if all(all(found) for found in grades.values()):
        return evaluation, final.score
    if benchmark.fraction:
        for name, ending in (("score_low", Grade(0.0, False)), ("score_high", Grade(1.0, True))):
            filled = {task: [grade or ending for grade in found] for task, found in grades.items()}
            evaluation[name] = (await benchmark.final_score(filled, dataset)).score
    only = {task: [grade for grade in found if grade] for task, found in grades.items()}
    only = {task: found for task, found in only.items() if found}
    graded = await benchmark.final_score(only, dataset) if only else None
    return evaluation, graded.score if graded else None


async def confirmed_score(benchmark: Benchmark, grades: Grades, dataset: str) -> float | None:
    """The benchmark's score if only what a fresh sandbox saw counts; None where that is not known."""
    every = [grade for found in grades.values() for grade in found if grade]
    if not every or not all(_is_known(grade, fraction=benchmark.fraction) for grade in every):
        return None
    seen = {task: [grade and _seen_fresh(grade) for grade in found] for task, found in grades.items()}
    return (await benchmark.final_score(seen, dataset)).score


def _is_known(grade: Grade, *, fraction: bool) -> bool:
    """Return whether it can be said what a fresh sandbox saw. A 0 needs no confirmation.

    Where only the benchmark can score (it is given results, not scores), partial credit that replaces an
    unconfirmed score has no result.
    """
    if grade.confirmed is None:
        return grade.score == 0
    return bool(grade.confirmed or fraction or not grade.score_confirmed)


def _seen_fresh(grade: Grade) -> Grade:
    if grade.confirmed is not False:
        return grade
    seen = grade.evidence.get("fresh") or {}
    passed = None if grade.passed is None else bool(seen.get("passed"))
    return replace(grade, score=grade.score_confirmed or 0.0, passed=passed, result={}, cause=NOT_CONFIRMED)


# The benchmark of a run that was stored from elsewhere: it knows its name and how to score, nothing else.

KIND = INGESTED


def not_runnable(run_id: str) -> UserError:
    """Return why nothing of such a run can go on."""
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
