"""The score of some of a run's tasks; the run's own stays as it is."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from valkyrie import benchmarks
from valkyrie.benchmarks.scoring import computed, grades_of
from valkyrie.errors import ValkyrieError
from valkyrie.handed import unspeakable, with_headers
from valkyrie.nouns import Json, RunState, TrialState
from valkyrie.report.present import score_view
from valkyrie.secrets.mask import Masker
from valkyrie.store.schema import ERROR_COUNTERS
from valkyrie.tracker.supplying import service_headers
from valkyrie.views import ScoreView

if TYPE_CHECKING:
    from valkyrie.organisation import Organisation

TIMEOUT_S = 60.0


def rescored(
    row: Any, trials: Sequence[Any], organisation: Organisation, headers: Mapping[str, str]
) -> tuple[Json, ScoreView]:
    """The benchmark's verdict on these trials of a run, and the three numbers over them.

    Only a benchmark's own service can compute its score: where it cannot be asked, there is none, and the
    verdict says why.
    """
    try:
        final, graded = asyncio.run(_asked(row, trials, organisation, headers))
    except (ValkyrieError, TimeoutError) as error:
        why = str(error) or f"no answer within {TIMEOUT_S:g} s"
        final, graded = {"final_score": None, "properties": {"not_computed": why}}, None
    return final, _numbers(row, trials, _finite(final["final_score"]), _finite(graded))


async def _asked(
    row: Any, trials: Sequence[Any], organisation: Organisation, headers: Mapping[str, str]
) -> tuple[Json, float | None]:
    source: Json = row.benchmark_source
    asks_a_service = source.get("kind") == "service"
    handed = with_headers(service_headers(row, headers, organisation) if asks_a_service else {})
    benchmark = benchmarks.open_frozen(source, handed)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            final, graded = await computed(benchmark, grades_of(trials), row.dataset)
    finally:
        await benchmark.close()
    # A service is not to get its own credential into a file that is passed around.
    return Masker(unspeakable(handed)).data(final), graded


def _numbers(row: Any, trials: Sequence[Any], final: float | None, graded: float | None) -> ScoreView:
    """The numbers of a run that has these trials only."""
    scores: dict[str, list[float]] = {}
    for trial in trials:
        if trial.state == TrialState.FINISHED and trial.score is not None:
            scores.setdefault(trial.task_id, []).append(trial.score)
    every = [score for found in scores.values() for score in found]
    errors = Counter(trial.category for trial in trials if trial.state == TrialState.ERROR)
    smaller = SimpleNamespace(
        state=RunState.FINISHED,
        fraction=row.fraction,
        arguments=row.arguments,
        score_sum=sum(every),
        final_score=final,
        score_graded=graded,
        n_passed=sum(1 for trial in trials if trial.state == TrialState.FINISHED and trial.passed),
        n_partial=sum(1 for score in every if score not in (0.0, 1.0)),
        **{name: errors[category.value] for category, name in ERROR_COUNTERS.items()},
    )
    states = Counter(trial.state for trial in trials)
    return score_view(smaller, {state.value: states[state.value] for state in TrialState}, scores)


def _finite(score: float | None) -> float | None:
    """What is no number is no score."""
    return score if score is not None and math.isfinite(score) else None
