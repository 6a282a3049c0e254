"""The numbers of an eval: pass rates, repeats, intervals, usage; and evals as views of runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from itertools import count, islice
from typing import Any

from valkyrie.compare.summary import AgentSummary, Metric, summarise
from valkyrie.domain import COUNTED_AS_ZERO, RunState, TrialState
from valkyrie.evals.results import SpecResult, StimulusResult, TrialResult
from valkyrie.report.statistics.power import (
    disagreement,
    pass_all,
    pass_all_interval,
    pass_at,
    pass_at_interval,
)
from valkyrie.views import RunView, ScoreView, TrialView

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


def eval_views(evals: Sequence[SpecResult]) -> list[TrialView]:
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


# The numbers of an eval: how often it passed, how steadily, how sure that is, and what it used.

Interval = tuple[float, float]


class EvalOutcome(StrEnum):
    """What a trial, or a stimulus, came to. Only FAILED is a wrong answer."""

    PASSED = "passed"
    FAILED = "failed"
    GRADER_ERROR = "grader error"
    EXECUTION_ERROR = "execution error"
    NOT_RUN = "not run"
    NOT_GRADED = "not graded"
    SKIPPED = "skipped"


def trial_outcome(trial: TrialResult) -> EvalOutcome:
    """Of one trial that ended."""
    if trial.fault is not None:
        return EvalOutcome.GRADER_ERROR if trial.fault.kind == "grader" else EvalOutcome.EXECUTION_ERROR
    if trial.passed is None:
        return EvalOutcome.NOT_GRADED
    return EvalOutcome.PASSED if trial.passed else EvalOutcome.FAILED


def stimulus_outcome(stimulus: StimulusResult) -> EvalOutcome:
    """Of all its trials: a wrong answer first, then what keeps it from a verdict."""
    if not stimulus.planned and not stimulus.trials:
        return EvalOutcome.SKIPPED
    answered = replace(stimulus, trials=[trial for trial in stimulus.trials if trial.fault is None])
    if answered.graded and not answered.passed:
        return EvalOutcome.FAILED
    if stimulus.faults:
        found = {trial_outcome(trial) for trial in stimulus.faults}
        return (
            EvalOutcome.EXECUTION_ERROR if EvalOutcome.EXECUTION_ERROR in found else EvalOutcome.GRADER_ERROR
        )
    if len(stimulus.trials) < stimulus.planned:
        return EvalOutcome.NOT_RUN
    return EvalOutcome.PASSED if stimulus.graded else EvalOutcome.NOT_GRADED


@dataclass(frozen=True, slots=True)
class StimulusRepeats:
    """Several graded trials of one stimulus; trials without a verdict are not among them."""

    passes: int
    trials: int

    @property
    def rate(self) -> float:
        return self.passes / self.trials

    @property
    def flakiness(self) -> float:
        """The chance that two trials disagree; it does not grow with their number."""
        return disagreement([(self.passes, self.trials)]) or 0.0

    @property
    def flaky(self) -> bool:
        """Both outcomes were seen."""
        return 0 < self.passes < self.trials

    def pass_at(self, k: int) -> float | None:
        """The chance that at least one of k trials passes, unbiased (Chen 2021)."""
        return pass_at([(self.passes, self.trials)], k)

    def pass_all(self, k: int) -> float | None:
        """pass^k, unbiased: the share of all choices of k trials in which every one passed."""
        return pass_all([(self.passes, self.trials)], k)


def repeats_of(stimulus: StimulusResult) -> StimulusRepeats | None:
    """None where nothing was graded."""
    return StimulusRepeats(stimulus.passes, len(stimulus.graded)) if stimulus.graded else None


@dataclass(frozen=True, slots=True)
class Point:
    """The curves at one k, as means over stimuli."""

    k: int
    pass_at: float
    pass_at_interval: Interval | None
    """95 %, over stimuli."""
    pass_all: float
    pass_all_interval: Interval | None


def curve(stimuli: Sequence[StimulusResult]) -> list[Point]:
    """k from 1 to the number of graded trials every graded stimulus has."""
    tallies = [(one.passes, one.trials) for stimulus in stimuli if (one := repeats_of(stimulus))]
    most = min((trials for _, trials in tallies), default=0)
    return [
        Point(
            k,
            pass_at(tallies, k) or 0.0,
            pass_at_interval(tallies, k),
            pass_all(tallies, k) or 0.0,
            pass_all_interval(tallies, k),
        )
        for k in range(1, most + 1)
    ]


@dataclass(frozen=True, slots=True)
class Used:
    """Tokens and US dollars, as agents and judges reported them."""

    input_tokens: int = 0
    output_tokens: int = 0
    judge_tokens: int = 0
    cost: float | None = None
    judge_cost: float | None = None

    @property
    def total_cost(self) -> float | None:
        known = [cost for cost in (self.cost, self.judge_cost) if cost is not None]
        return sum(known) if known else None


@dataclass(frozen=True)
class Figures:
    """One or several evals with one model, or everything of a command."""

    trials: Counter[EvalOutcome]
    stimuli: Counter[EvalOutcome]
    views: Sequence[TrialView]
    """All trials, planned ones that did not run included, as of a run; stimuli are its tasks."""
    fraction: bool
    """Scores are 0..1."""
    flaky: int
    """Stimuli that both passed and failed."""
    used: Used

    @property
    def counted(self) -> int:
        """Trials that count: graded, or ended by the agent's doing."""
        return self._scores.scores.infrastructure_excluded.trials

    @property
    def by_agent(self) -> int:
        """Trials without a verdict of their graders that ended by the agent's doing."""
        return sum(trial.counts_as_zero for trial in self.views)

    @property
    def score(self) -> float | None:
        """The mean over stimuli of the mean of their trials."""
        return self._scores.scores.infrastructure_excluded.mean

    @property
    def pass_rate(self) -> float | None:
        """The mean over stimuli of their share of passed trials."""
        return self._passes.scores.infrastructure_excluded.mean

    @property
    def score_interval(self) -> tuple[Interval | None, str]:
        """95 %, and how it was found, or why there is none."""
        found = self._scores.scores.infrastructure_excluded
        return found.interval, found.method

    @property
    def pass_interval(self) -> tuple[Interval | None, str]:
        """The same of the pass rate."""
        found = self._passes.scores.infrastructure_excluded
        return found.interval, found.method

    @property
    def ungraded(self) -> int:
        """Trials that say nothing about the agent: they failed for other reasons, or did not run."""
        return self._scores.ungraded

    @property
    def score_range(self) -> Interval | None:
        """The score if all ungraded trials had failed, and if all had passed; None where there are none."""
        low, high = self._scores.score_low, self._scores.score_high
        return (low, high) if self.ungraded and low is not None and high is not None else None

    @cached_property
    def _scores(self) -> AgentSummary:
        return self._summary("score")

    @cached_property
    def _passes(self) -> AgentSummary:
        return self._summary("pass")

    def _summary(self, metric: Metric) -> AgentSummary:
        """By the rules of runs: an end by the agent's doing counts as the worst score, others nowhere."""
        run = run_of("", agent="", model=None, trials=self.views, fraction=self.fraction)
        return summarise([(run, self.views)], metric=metric).agents[0]


def figures(evals: Sequence[SpecResult]) -> Figures:
    """Return all numbers of these evals together."""
    stimuli = [one for result in evals for one in result.stimuli]
    trials = Counter(trial_outcome(trial) for one in stimuli for trial in one.trials)
    trials[EvalOutcome.NOT_RUN] = sum(max(0, one.planned - len(one.trials)) for one in stimuli)
    return Figures(
        trials=trials,
        stimuli=Counter(map(stimulus_outcome, stimuli)),
        views=eval_views(evals),
        fraction=is_fraction(trial for one in stimuli for trial in one.trials),
        flaky=sum(1 for one in stimuli if (found := repeats_of(one)) and found.flaky),
        used=used_by(trial for one in stimuli for trial in one.trials),
    )


def used_by(trials: Iterable[TrialResult]) -> Used:
    """Return what these trials and their judges reported; what was not reported counts as nothing."""
    given = taken = judged = 0
    costs: list[float] = []
    judge_costs: list[float] = []
    for trial in trials:
        metrics = trial.metrics
        tokens = _mapping(metrics, "tokenUsage")
        given += _whole(tokens, "inputTokens")
        taken += _whole(tokens, "outputTokens")
        costs += _amount(metrics, "cost")
        for grader in trial.graders:
            usage = grader.usage or {}
            judged += _whole(usage, "inputTokens") + _whole(usage, "outputTokens")
            judge_costs += _amount(usage, "cost")
    return Used(
        given, taken, judged, sum(costs) if costs else None, sum(judge_costs) if judge_costs else None
    )


def _mapping(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = data.get(key)
    return found if isinstance(found, Mapping) else {}


def _amount(data: Mapping[str, Any], key: str) -> list[float]:
    """A number that can be added up, or nothing: records may come from anywhere."""
    value = data.get(key)
    countable = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf")
    return [float(value)] if countable and value is not None else []


def _whole(data: Mapping[str, Any], key: str) -> int:
    return int(sum(_amount(data, key)))
