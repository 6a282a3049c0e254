"""Results of evals as runs and their trials, so that one set of rules, numbers and sentences serves both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import count, islice
from typing import TYPE_CHECKING

from valkyrie.nouns import COUNTED_AS_ZERO, RunState, TrialState
from valkyrie.views import RunView, ScoreView, TrialView

if TYPE_CHECKING:
    from valkyrie.evals.results import EvalResult, TrialResult

MOST_TRIALS = 100_000
"""Of one task; a record with a number beyond it was numbered in some other way, and tells of no gaps."""


def run_of(
    id: str, *, agent: str, model: str | None, trials: Sequence[TrialView], fraction: bool, folder: str = ""
) -> RunView:
    """Return a run of these trials. It has ended, whatever became of them."""
    complete = all(trial.state in (TrialState.FINISHED, TrialState.ERROR) for trial in trials)
    return RunView(
        id=id,
        benchmark="results",
        dataset="default",
        agent=agent,
        model=model,
        label=None,
        provider="",
        state=RunState.FINISHED if complete else RunState.STOPPED,
        counts={},
        total=len(trials),
        concurrency=1,
        created_at=0.0,
        started_at=None,
        finished_at=None,
        started_by=None,
        score=ScoreView(None, None, 0, len(trials), 0.0, {}, False, fraction, 0),
        error=None,
        note=None,
        executor="none",
        folder=folder,
        arguments={},
        enforcement={},
        version=0,
    )


def is_fraction(trials: Iterable[TrialResult]) -> bool:
    """Return whether scores are 0..1: nobody says otherwise, and none is beyond that."""
    return all(trial.fraction and (trial.score is None or 0 <= trial.score <= 1) for trial in trials)


def views_of(trials: Mapping[str, Sequence[TrialResult]], planned: Mapping[str, int]) -> list[TrialView]:
    """Return the trials of each task; planned ones that have not ended are among them, as stopped."""
    found: list[TrialView] = []
    for task, own in trials.items():
        found += [trial_view(trial, task) for trial in own]
        known = {trial.index for trial in own}
        wanted = max(planned.get(task, 0), max(known, default=-1) + 1)
        lacking = (wanted if wanted <= MOST_TRIALS else 0) - len(known)
        free = (k for k in count() if k not in known)
        found += [_view(task, k, TrialState.STOPPED) for k in islice(free, max(0, lacking))]
    return found


def eval_views(evals: Sequence[EvalResult]) -> list[TrialView]:
    """Return the trials of these evals; each stimulus is a task, named by its place.

    What was not graded on purpose has no trials that could count.
    """
    stimuli = [stimulus for result in evals if result.graded for stimulus in result.stimuli]
    trials = {str(number): stimulus.trials for number, stimulus in enumerate(stimuli)}
    planned = {str(number): stimulus.planned for number, stimulus in enumerate(stimuli)}
    return views_of(trials, planned)


def trial_view(trial: TrialResult, task: str) -> TrialView:
    """Return a trial as the store would have it."""
    fault = trial.fault or (trial.verification.fault if trial.verification else None)
    if fault is None or (fault.by_agent and fault.cause in COUNTED_AS_ZERO):
        cause = fault.cause if fault else None
        return _view(task, trial.index, TrialState.FINISHED, trial, category=None, cause=cause)
    return _view(task, trial.index, TrialState.ERROR, trial, category=fault.category, cause=fault.cause)


def _view(
    task: str,
    k: int,
    state: TrialState,
    trial: TrialResult | None = None,
    *,
    category: str | None = None,
    cause: str | None = None,
) -> TrialView:
    graded = trial if state is TrialState.FINISHED else None
    verified = trial.verification if trial else None
    return TrialView(
        task_id=task,
        k=k,
        state=state,
        attempts=trial.attempts if trial else 0,
        score=graded.score if graded else None,
        passed=graded.passed if graded else None,
        category=category,
        cause=cause,
        message=None,
        exit_code=None,
        exit_reason=None,
        retry_at=None,
        started_at=None,
        finished_at=None,
        timing={},
        digest="",
        confirmed=verified.confirmed if verified else None,
        score_confirmed=verified.score_confirmed if verified else None,
        evidence=verified.evidence if verified else None,
        family=trial.family if trial else None,
    )
