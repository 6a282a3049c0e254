"""Two sides as if they were two runs, so that one set of tables, tests and sentences serves both."""

from __future__ import annotations

from valkyrie.evals.comparing.outcomes import Outcome
from valkyrie.evals.comparing.record import FolderComparison
from valkyrie.evals.comparing.sides import ResultSide
from valkyrie.evals.results import TrialResult
from valkyrie.nouns import RunState, TrialState
from valkyrie.report.comparing import Metric, Summary, summarise
from valkyrie.views import RunView, ScoreView, TrialView

BASELINE, TREATMENT = "baseline", "treatment"


def summary_of(compared: FolderComparison, metric: Metric) -> Summary:
    """Each side's numbers, over the pairs that count and its own errors, and the paired comparison."""
    sides = (BASELINE, compared.baseline), (TREATMENT, compared.treatment)
    names = [side.name for _, side in sides]
    outcomes = compared.numbers.outcomes
    paired = summarise(
        [(_run(id, side), [_trial(one, id) for one in outcomes]) for id, side in sides],
        metric=metric,
        names=names,
    )
    own = summarise(
        [
            (_run(id, side), [_trial(one, id) for one in outcomes if not _sound_half(one, id)])
            for id, side in sides
        ],
        metric=metric,
        names=names,
        pairs=[],
    )
    return Summary(metric, own.agents, paired.comparisons)


def _run(id: str, side: ResultSide) -> RunView:
    first = side.trials[0]
    score = ScoreView(None, None, 0, len(side.trials), 0.0, {}, False, True, 0)
    return RunView(
        id=id,
        benchmark="results",
        dataset="default",
        agent=first.executor or side.name,
        model=first.model,
        label=None,
        provider="",
        state=RunState.FINISHED,
        counts={},
        total=len(side.trials),
        concurrency=1,
        created_at=0.0,
        started_at=None,
        finished_at=None,
        started_by=None,
        score=score,
        error=None,
        note=None,
        executor="none",
        folder=str(side.folder),
        arguments={},
        enforcement={},
        version=0,
    )


def _of(outcome: Outcome, id: str) -> TrialResult:
    return outcome.pair.baseline if id == BASELINE else outcome.pair.treatment


def _sound_half(outcome: Outcome, id: str) -> bool:
    """The other side of the pair broke: this one counts nowhere, and is no error either."""
    return outcome.errored in ("execution", "grader") and _of(outcome, id).fault is None


def _trial(outcome: Outcome, id: str) -> TrialView:
    """A pair that counts nowhere is an error on both sides: half of it would be unfair to one."""
    trial = _of(outcome, id)
    broken = outcome.errored not in (None, "ungraded")
    return TrialView(
        task_id=outcome.pair.task,
        k=outcome.pair.index,
        state=TrialState.ERROR if broken else TrialState.FINISHED,
        attempts=trial.attempts,
        score=None if broken else trial.score,
        passed=None if broken else trial.passed,
        category=outcome.errored if broken else None,
        cause=None,
        message=None,
        exit_code=None,
        exit_reason=None,
        retry_at=None,
        started_at=None,
        finished_at=None,
        timing={},
        digest="",
    )
