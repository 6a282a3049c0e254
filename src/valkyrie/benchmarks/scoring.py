"""A run's scores, from its trials: over every planned task, and over what was graded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from valkyrie.benchmarks.protocol import Benchmark
from valkyrie.nouns import Grade, Json, TrialState

Grades = Mapping[str, Sequence[Grade | None]]


def grades_of(trials: Iterable[Any]) -> dict[str, list[Grade | None]]:
    """Grades by task, one per trial, None where there is none; `trials` are trial rows in order."""
    found: dict[str, list[Grade | None]] = {}
    for row in trials:
        graded = row.state == TrialState.FINISHED
        grade = Grade(row.score, row.passed, row.result or {}) if graded else None
        found.setdefault(row.task_id, []).append(grade)
    return found


async def computed(benchmark: Benchmark, grades: Grades, dataset: str) -> tuple[Json, float | None]:
    """The benchmark's own verdict as data, and its score over graded trials only."""
    final = await benchmark.final_score(grades, dataset)
    evaluation = {"final_score": final.score, "properties": final.properties}
    if all(all(found) for found in grades.values()):
        return evaluation, final.score
    only = {task: [grade for grade in found if grade] for task, found in grades.items()}
    only = {task: found for task, found in only.items() if found}
    graded = await benchmark.final_score(only, dataset) if only else None
    return evaluation, graded.score if graded else None
