"""One run's trials as the numbers of its agent."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from valkyrie.nouns import Json, RunState, TrialState, ended_by_agent
from valkyrie.report.comparison_views import AgentSummary, Estimate, Metric, Repeats, Scores, TaskResult
from valkyrie.report.pairing import Side
from valkyrie.report.statistics import (
    Interval,
    disagreement,
    mean_interval,
    pass_all,
    pass_all_interval,
    pass_at,
    pass_at_interval,
)
from valkyrie.report.tables import is_open

if TYPE_CHECKING:
    from valkyrie.views import RunView, TrialView

ByTask = Mapping[str, Sequence[float]]


@dataclass(frozen=True, slots=True)
class _Task:
    """The trials of one task, by what they are worth."""

    graded: list[float]
    counted: list[float]
    """Graded, and the worst for each error of the agent's own."""
    planned: list[float]
    """One for every trial, 0 where there is no grade."""
    passing: list[float]
    """The same, 1 where there is no grade and the agent did not bring that about."""
    confirmed: list[float | None]
    """What a fresh sandbox saw of every trial; None: not known."""
    values: Mapping[int, float | None]
    """What each repetition counts; None: ungraded."""
    result: TaskResult


def side(
    run: RunView,
    trials: Sequence[TrialView],
    metric: Metric,
    name: str,
    worst: float = 0.0,
    *,
    families: Mapping[str, str] | None = None,
    scale: Interval = (0.0, 1.0),
) -> Side:
    """Make a run ready to be compared; `worst` is what counts for each end the agent itself brought about.

    `families` names the family of each task that has one, `scale` is the range of possible scores.
    """
    by_task: dict[str, list[TrialView]] = {}
    for trial in trials:
        by_task.setdefault(trial.task_id, []).append(trial)
    families = families or {one.task_id: one.family for one in trials if one.family is not None}
    fraction = metric == "pass" or run.score.fraction
    tasks = {task: _task(own, metric, run.score.fraction, worst) for task, own in by_task.items()}
    results = {task: found.result for task, found in tasks.items()}
    counted = {task: found.counted for task, found in tasks.items()}
    errors = Counter(str(trial.category) for trial in trials if trial.state == TrialState.ERROR)
    graded = sum(trial.state == TrialState.FINISHED for trial in trials)
    passed = [_passed(trial, run.score.fraction) for trial in trials]
    says_passed = any(found is not None for found in passed) or not graded
    summary = AgentSummary(
        run_id=run.id,
        name=name,
        agent=run.agent,
        model=run.model,
        benchmark=run.benchmark,
        dataset=run.dataset,
        state=run.state,
        ended=RunState(run.state).terminal,
        fraction=fraction,
        scores=_scores(tasks, families, scale),
        planned=len(trials),
        graded=graded,
        passed=passed.count(True) if says_passed else None,
        errors=dict(sorted(errors.items())),
        not_run=len(trials) - graded - errors.total(),
        repeats=_repeats(results if says_passed else {}, families),
        tasks=results,
        ungraded=sum(map(_is_ungraded, trials)),
        score_low=_mean_of_means(found.planned for found in tasks.values()) if fraction else None,
        score_high=_mean_of_means(found.passing for found in tasks.values()) if fraction else None,
        score_confirmed=_confirmed(tasks.values()) if fraction else None,
        confirmed=sum(
            one is True and trial.confirmed is True for one, trial in zip(passed, trials, strict=True)
        ),
        unconfirmed=_unconfirmed(trials, passed),
        open_to_tampering=sum(map(is_open, trials)),
        second_tries=run.score.second_tries,
        ingested=run.ingested,
        families=len({families.get(task, task) for task in tasks}) if families else None,
    )
    return Side(
        summary,
        counted,
        _recipe(run),
        {(trial.task_id, trial.k): trial.digest for trial in trials},
        {task: found.values for task, found in tasks.items()},
        families or {},
        scale,
    )


def _task(trials: Sequence[TrialView], metric: Metric, fraction: bool, worst: float) -> _Task:
    values = [_value(trial, metric, fraction) for trial in trials]
    graded = [value for value in values if value is not None]
    counted = graded + [worst] * sum(map(_agent_error, trials))
    passed = sum(
        _passed(trial, fraction) is True
        for trial, value in zip(trials, values, strict=True)
        if value is not None
    )
    result = TaskResult(_mean(counted), len(counted), passed, None if counted else _why(trials))
    counts = {
        trial.k: worst if _agent_error(trial) else value
        for trial, value in zip(trials, values, strict=True)
        if value is not None or trial.state != TrialState.FINISHED
    }
    both = list(zip(trials, values, strict=True))
    return _Task(
        graded,
        counted,
        planned=[counts.get(trial.k) or 0.0 if value is None else value for trial, value in both],
        passing=[float(_is_ungraded(trial)) if value is None else value for trial, value in both],
        confirmed=[_seen_fresh(trial, value, metric) for trial, value in both],
        values=counts,
        result=result,
    )


def _seen_fresh(trial: TrialView, value: float | None, metric: Metric) -> float | None:
    """What a fresh sandbox saw of a trial; None: not known. A 0 needs no confirmation."""
    if not value:
        return 0.0
    if trial.confirmed is None:
        return None
    if metric == "pass":
        return value if trial.confirmed else 0.0
    return value if trial.confirmed else trial.score_confirmed or 0.0


def _confirmed(tasks: Iterable[_Task]) -> float | None:
    """The mean over tasks of what fresh sandboxes saw; None where that is not known of a trial."""
    lists = [found.confirmed for found in tasks]
    if any(value is None for values in lists for value in values):
        return None
    return _mean_of_means([value or 0.0 for value in values] for values in lists)


def _unconfirmed(trials: Sequence[TrialView], passed: Sequence[bool | None]) -> int | None:
    """Passes only the sandbox the agent left saw; None where it is not known of one."""
    found = [trial.confirmed for trial, one in zip(trials, passed, strict=True) if one]
    return None if any(one is None for one in found) else found.count(False)


def _is_ungraded(trial: TrialView) -> bool:
    """Whether it says nothing about the agent."""
    return trial.state != TrialState.FINISHED and not _agent_error(trial)


def _value(trial: TrialView, metric: Metric, fraction: bool) -> float | None:
    """What a graded trial is worth; None where it has no number."""
    if trial.state != TrialState.FINISHED:
        return None
    if metric == "pass":
        passed = _passed(trial, fraction)
        return None if passed is None else float(passed)
    return trial.score if trial.score is not None and math.isfinite(trial.score) else None


def _passed(trial: TrialView, fraction: bool) -> bool | None:
    if trial.state != TrialState.FINISHED:
        return None
    if trial.passed is None and trial.score is not None and fraction:
        return trial.score >= 1
    return trial.passed


def _agent_error(trial: TrialView) -> bool:
    return ended_by_agent(trial.state, trial.category)


def _why(trials: Sequence[TrialView]) -> str:
    """Why none of a task's trials counts: the most frequent error, or that nothing was tried."""
    errors = Counter(str(trial.category) for trial in trials if trial.state == TrialState.ERROR)
    if errors:
        return min(errors, key=lambda category: (-errors[category], category))
    return "no number" if any(trial.state == TrialState.FINISHED for trial in trials) else "not run"


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _mean_of_means(lists: Iterable[Sequence[float]]) -> float | None:
    return _mean([math.fsum(values) / len(values) for values in lists if values])


def _scores(tasks: Mapping[str, _Task], families: Mapping[str, str] | None, scale: Interval) -> Scores:
    planned = {task: found.planned for task, found in tasks.items()}
    graded = {task: found.graded for task, found in tasks.items()}
    counted = {task: found.counted for task, found in tasks.items()}
    leading = _estimate(counted, families, scale)
    return Scores(
        all_trials=leading if planned == counted else _estimate(planned, families, scale),
        graded_only=leading if graded == counted else _estimate(graded, families, scale),
        infrastructure_excluded=leading,
    )


def _estimate(by_task: ByTask, families: Mapping[str, str] | None, scale: Interval) -> Estimate:
    means = [math.fsum(values) / len(values) for values in by_task.values() if values]
    interval, method = mean_interval(by_task, scale=scale, families=families)
    return Estimate(_mean(means), interval, method, len(means), sum(map(len, by_task.values())))


def _repeats(results: Mapping[str, TaskResult], families: Mapping[str, str] | None) -> Repeats:
    counting = {task: result for task, result in results.items() if result.trials}
    tallies = [(result.passed, result.trials) for result in counting.values()]
    least = min((trials for _, trials in tallies), default=0)
    most = max((trials for _, trials in tallies), default=0)
    repeated = [task for task, result in counting.items() if result.trials > 1]
    counts = range(1, least + 1)
    of = [families.get(task, task) for task in counting] if families else None
    told = {least, *(1 << power for power in range(least.bit_length()))}
    return Repeats(
        pass_at=[pass_at(tallies, k) or 0.0 for k in counts],
        pass_all=[pass_all(tallies, k) or 0.0 for k in counts],
        fewest=[task for task, found in counting.items() if found.trials == least] if least < most else [],
        excluded=[task for task, result in results.items() if not result.trials],
        flaky=[task for task in repeated if 0 < counting[task].passed < counting[task].trials],
        flaky_of=len(repeated),
        pass_at_intervals=[pass_at_interval(tallies, k, of) if k in told else None for k in counts],
        pass_all_intervals=[pass_all_interval(tallies, k, of) if k in told else None for k in counts],
        flakiness=disagreement(tallies),
    )


def _recipe(run: RunView) -> Json | None:
    """All that a trial's digest is made of but the task; None where a run does not say."""
    digest = run.arguments.get("agent_digest")
    if not digest:
        return None
    variant = run.arguments.get("variant")
    return {"agent": digest, "model": run.model, "variant": variant, **run.arguments.get("settings", {})}
