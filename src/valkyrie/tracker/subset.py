"""The score of some of a run's tasks; the run's own stays as it is."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from sandboxes.masker import Masker
from valkyrie import benchmarks
from valkyrie.benchmarks.scores import computed, confirmed_score, grades_of
from valkyrie.domain import Category, Json, RunState, TrialState, ended_by_agent, worst_score
from valkyrie.errors import ValkyrieError
from valkyrie.report.presentation import score_view
from valkyrie.secrets.delivery import unspeakable, with_headers
from valkyrie.store.counters import add_grade
from valkyrie.store.schema import ERROR_COUNTERS, STATE_COUNTERS
from valkyrie.tracker.secrets import service_headers
from valkyrie.views import ScoreView

if TYPE_CHECKING:
    from valkyrie.tenants import Organisation

TIMEOUT_S = 60.0


def rescored(
    row: Any, trials: Sequence[Any], organisation: Organisation, headers: Mapping[str, str]
) -> tuple[Json, ScoreView]:
    """Return the benchmark's verdict on these trials of a run, and the named numbers over them.

    Only a benchmark's own service can compute its score: where it cannot be asked, there is none, and the
    verdict says why.
    """
    try:
        final, graded, confirmed = asyncio.run(_asked(row, trials, organisation, headers))
    except (ValkyrieError, TimeoutError) as error:
        why = str(error) or f"no answer within {TIMEOUT_S:g} s"
        final, graded, confirmed = {"final_score": None, "properties": {"not_computed": why}}, None, None
    return final, _numbers(row, trials, final, graded, confirmed)


async def _asked(
    row: Any, trials: Sequence[Any], organisation: Organisation, headers: Mapping[str, str]
) -> tuple[Json, float | None, float | None]:
    source: Json = row.benchmark_source
    asks_a_service = source.get("kind") == "service"
    handed = with_headers(service_headers(row, headers, organisation) if asks_a_service else {})
    benchmark = benchmarks.open_frozen(source, handed)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            grades = grades_of(trials)
            final, graded = await computed(benchmark, grades, row.dataset)
            confirmed = await confirmed_score(benchmark, grades, row.dataset)
    finally:
        await benchmark.close()
    # A service is not to get its own credential into a file that is passed around.
    return Masker(unspeakable(handed)).data(final), graded, confirmed


def _numbers(
    row: Any, trials: Sequence[Any], final: Json, graded: float | None, confirmed: float | None
) -> ScoreView:
    """Return the numbers of a run that has these trials only."""
    scores: dict[str, list[float | None]] = {}
    counters: dict[str, float] = defaultdict(int)
    worst = worst_score(trial.score for trial in trials if trial.state == TrialState.FINISHED)
    for trial in trials:
        counters[STATE_COUNTERS[TrialState(trial.state)]] += 1
        score = worst if ended_by_agent(trial.state, trial.category) else None
        if trial.state == TrialState.FINISHED:
            add_grade(counters, trial, +1)
            score = trial.score
        elif trial.state == TrialState.ERROR and trial.category:
            counters[ERROR_COUNTERS[Category(trial.category)]] += 1
        if trial.state != TrialState.SKIPPED:
            scores.setdefault(trial.task_id, []).append(score)
    names = (*STATE_COUNTERS.values(), *ERROR_COUNTERS.values(), *_COUNTERS)
    smaller = SimpleNamespace(
        state=RunState.FINISHED,
        fraction=row.fraction,
        arguments=row.arguments,
        final_evaluation=final,
        final_score=final["final_score"],
        score_graded=graded,
        score_confirmed=confirmed,
        **{name: counters[name] for name in names},
    )
    families = {trial.task_id: trial.family for trial in trials if trial.family is not None}
    return score_view(smaller, scores, families)


_COUNTERS = (
    *("n_passed", "n_partial", "score_sum"),
    *("n_confirmed", "confirmed_sum", "n_verified", "n_open"),
)
