"""The numbers of an eval: how often it passed, how steadily, how sure that is, and what it used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import Any

from valkyrie.evals.results import EvalResult, StimulusResult, TrialResult
from valkyrie.evals.run_views import eval_views, is_fraction, run_of
from valkyrie.report.comparing import AgentSummary, Metric, summarise
from valkyrie.report.statistics import (
    disagreement,
    pass_all,
    pass_all_interval,
    pass_at,
    pass_at_interval,
)
from valkyrie.report.tables import counts_as_zero
from valkyrie.views import TrialView

Interval = tuple[float, float]


class Outcome(StrEnum):
    """What a trial, or a stimulus, came to. Only FAILED is a wrong answer."""

    PASSED = "passed"
    FAILED = "failed"
    GRADER_ERROR = "grader error"
    EXECUTION_ERROR = "execution error"
    NOT_RUN = "not run"
    NOT_GRADED = "not graded"
    SKIPPED = "skipped"


def trial_outcome(trial: TrialResult) -> Outcome:
    """Of one trial that ended."""
    if trial.fault is not None:
        return Outcome.GRADER_ERROR if trial.fault.kind == "grader" else Outcome.EXECUTION_ERROR
    if trial.passed is None:
        return Outcome.NOT_GRADED
    return Outcome.PASSED if trial.passed else Outcome.FAILED


def stimulus_outcome(stimulus: StimulusResult) -> Outcome:
    """Of all its trials: a wrong answer first, then what keeps it from a verdict."""
    if not stimulus.planned and not stimulus.trials:
        return Outcome.SKIPPED
    answered = replace(stimulus, trials=[trial for trial in stimulus.trials if trial.fault is None])
    if answered.graded and not answered.passed:
        return Outcome.FAILED
    if stimulus.faults:
        found = {trial_outcome(trial) for trial in stimulus.faults}
        return Outcome.EXECUTION_ERROR if Outcome.EXECUTION_ERROR in found else Outcome.GRADER_ERROR
    if len(stimulus.trials) < stimulus.planned:
        return Outcome.NOT_RUN
    return Outcome.PASSED if stimulus.graded else Outcome.NOT_GRADED


@dataclass(frozen=True, slots=True)
class Repeats:
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


def repeats_of(stimulus: StimulusResult) -> Repeats | None:
    """None where nothing was graded."""
    return Repeats(stimulus.passes, len(stimulus.graded)) if stimulus.graded else None


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

    trials: Counter[Outcome]
    stimuli: Counter[Outcome]
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
        return sum(map(counts_as_zero, self.views))

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


def figures(evals: Sequence[EvalResult]) -> Figures:
    """All numbers of these evals together."""
    stimuli = [one for result in evals for one in result.stimuli]
    trials = Counter(trial_outcome(trial) for one in stimuli for trial in one.trials)
    trials[Outcome.NOT_RUN] = sum(max(0, one.planned - len(one.trials)) for one in stimuli)
    return Figures(
        trials=trials,
        stimuli=Counter(map(stimulus_outcome, stimuli)),
        views=eval_views(evals),
        fraction=is_fraction(trial for one in stimuli for trial in one.trials),
        flaky=sum(1 for one in stimuli if (found := repeats_of(one)) and found.flaky),
        used=used_by(trial for one in stimuli for trial in one.trials),
    )


def used_by(trials: Iterable[TrialResult]) -> Used:
    """What these trials and their judges reported; what was not reported counts as nothing."""
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
