"""Runs compared: what each agent is worth, and which differences are more than chance. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import TYPE_CHECKING

from benchmark_runner.terminal import safe
from valkyrie.compare.anytime import as_it_goes, with_anytime_interval
from valkyrie.compare.pairs import (
    OfTask,
    PairSide,
    ScoredTrial,
    ScoredTrials,
    TaskTrials,
    compared,
    corrected,
)
from valkyrie.compare.views import (
    AgentSummary,
    Comparison,
    Estimate,
    Metric,
    RepeatScores,
    Scores,
    Summary,
    TaskResult,
    summary_json,
)
from valkyrie.compare.words import sentence
from valkyrie.domain import Json, RunState, TrialState, ended_by_agent, worst_score
from valkyrie.errors import UsageError
from valkyrie.report.formats import run_mark, short_id
from valkyrie.report.statistics.intervals import Interval, mean_interval, means_interval
from valkyrie.report.statistics.power import (
    disagreement,
    pass_all,
    pass_all_interval,
    pass_at,
    pass_at_interval,
)

if TYPE_CHECKING:
    from valkyrie.views import RunView, TrialView


Tasks = Mapping[str, TaskTrials]


def side(
    run: RunView,
    trials: Iterable[TrialView] | ScoredTrials,
    metric: Metric,
    name: str,
    worst: float = 0.0,
    *,
    families: Mapping[str, str] | None = None,
    scale: Interval = (0.0, 1.0),
) -> PairSide:
    """Make a run ready to be compared; `worst` is what counts for each end the agent itself brought about.

    `families` names the family of each task that has one, `scale` is the range of possible scores.
    """
    scored = trials if isinstance(trials, ScoredTrials) else ScoredTrials(trials)
    families = families or scored.families
    fraction = metric == "pass" or run.score.fraction
    made = {own: _task(own, metric, run.score.fraction, worst) for own in scored.kinds}
    tasks = {task: made[own] for task, own in scored.by_task.items()}
    results = {task: found.result for task, found in tasks.items()}
    counts = _Counts.of(scored, fraction=run.score.fraction)
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
        planned=counts.planned,
        graded=counts.graded,
        passed=counts.passed[True] if counts.says_passed else None,
        errors=dict(sorted(counts.errors.items())),
        not_run=counts.planned - counts.graded - counts.errors.total(),
        repeats=_repeats(results if counts.says_passed else {}, families),
        tasks=results,
        ungraded=counts.ungraded,
        score_low=_mean(_means(tasks, lambda found: found.planned)) if fraction else None,
        score_high=_mean(_means(tasks, lambda found: found.passing)) if fraction else None,
        score_confirmed=_confirmed(tasks) if fraction else None,
        confirmed=counts.passes_confirmed[True],
        unconfirmed=None if counts.passes_confirmed[None] else counts.passes_confirmed[False],
        open_to_tampering=counts.open_to_tampering,
        second_tries=run.score.second_tries,
        ingested=run.ingested,
        exit_codes=dict(run.exit_codes),
        families=len({families.get(task, task) for task in tasks}) if families else None,
    )
    return PairSide(summary, tasks, _recipe(run), scored, families or {}, scale)


@dataclass(slots=True)
class _Counts:
    """How many trials of a run are what."""

    planned: int = 0
    graded: int = 0
    ungraded: int = 0
    open_to_tampering: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    passed: Counter[bool | None] = field(default_factory=Counter)
    passes_confirmed: Counter[bool | None] = field(default_factory=Counter)
    """Passes, by whether a fresh sandbox saw them; None: not known."""

    @property
    def says_passed(self) -> bool:
        """Whether the benchmark speaks of passing."""
        return self.passed[True] + self.passed[False] > 0 or not self.graded

    @classmethod
    def of(cls, trials: ScoredTrials, *, fraction: bool) -> _Counts:
        found = cls()
        for trial, count in trials.counted():
            passed = _passed(trial, fraction)
            found.planned += count
            found.graded += count * (trial.state == TrialState.FINISHED)
            found.ungraded += count * _is_ungraded(trial)
            found.open_to_tampering += count * trial.is_open
            found.passed[passed] += count
            if trial.state == TrialState.ERROR:
                found.errors[str(trial.category)] += count
            if passed:
                found.passes_confirmed[trial.confirmed] += count
        return found


def _task(trials: OfTask, metric: Metric, fraction: bool, worst: float) -> TaskTrials:
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
    return TaskTrials(
        graded,
        counted,
        planned=[counts.get(trial.k) or 0.0 if value is None else value for trial, value in both],
        passing=[float(_is_ungraded(trial)) if value is None else value for trial, value in both],
        confirmed=[_seen_fresh(trial, value, metric) for trial, value in both],
        values=counts,
        result=result,
    )


def _seen_fresh(trial: ScoredTrial, value: float | None, metric: Metric) -> float | None:
    """Return what a fresh sandbox saw of a trial; None: not known. A 0 needs no confirmation."""
    if not value:
        return 0.0
    if trial.confirmed is None:
        return None
    if metric == "pass":
        return value if trial.confirmed else 0.0
    return value if trial.confirmed else trial.score_confirmed or 0.0


def _confirmed(tasks: Tasks) -> float | None:
    """The mean over tasks of what fresh sandboxes saw; None where that is not known of a trial."""
    kinds = {id(found): found for found in tasks.values()}.values()
    if any(value is None for found in kinds for value in found.confirmed):
        return None
    return _mean(_means(tasks, lambda found: [value or 0.0 for value in found.confirmed]))


def _is_ungraded(trial: ScoredTrial) -> bool:
    """Return whether it says nothing about the agent."""
    return trial.state != TrialState.FINISHED and not _agent_error(trial)


def _value(trial: ScoredTrial, metric: Metric, fraction: bool) -> float | None:
    """Return what a graded trial is worth; None where it has no number."""
    if trial.state != TrialState.FINISHED:
        return None
    if metric == "pass":
        passed = _passed(trial, fraction)
        return None if passed is None else float(passed)
    return trial.score if trial.score is not None and math.isfinite(trial.score) else None


def _passed(trial: ScoredTrial, fraction: bool) -> bool | None:
    if trial.state != TrialState.FINISHED:
        return None
    if trial.passed is None and trial.score is not None and fraction:
        return trial.score >= 1
    return trial.passed


def _agent_error(trial: ScoredTrial) -> bool:
    return ended_by_agent(trial.state, trial.category)


def _why(trials: OfTask) -> str:
    """Return why none of a task's trials counts: the most frequent error, or that nothing was tried."""
    errors = Counter(str(trial.category) for trial in trials if trial.state == TrialState.ERROR)
    if errors:
        return min(errors, key=lambda category: (-errors[category], category))
    return "no number" if any(trial.state == TrialState.FINISHED for trial in trials) else "not run"


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _means(tasks: Tasks, of: Callable[[TaskTrials], Sequence[float]]) -> list[float]:
    """Return the mean of each task that has values; tasks with the same results share one number."""
    known: dict[int, float | None] = {}
    for found in tasks.values():
        if id(found) not in known:
            known[id(found)] = _mean(of(found))
    return [mean for found in tasks.values() if (mean := known[id(found)]) is not None]


def _scores(tasks: Tasks, families: Mapping[str, str] | None, scale: Interval) -> Scores:
    kinds = {id(found): found for found in tasks.values()}.values()
    leading = _estimate(tasks, lambda found: found.counted, families, scale)
    same_planned = all(found.planned == found.counted for found in kinds)
    same_graded = all(found.graded == found.counted for found in kinds)
    return Scores(
        all_trials=leading if same_planned else _estimate(tasks, lambda one: one.planned, families, scale),
        graded_only=leading if same_graded else _estimate(tasks, lambda one: one.graded, families, scale),
        infrastructure_excluded=leading,
    )


def _estimate(
    tasks: Tasks,
    of: Callable[[TaskTrials], Sequence[float]],
    families: Mapping[str, str] | None,
    scale: Interval,
) -> Estimate:
    means = _means(tasks, of)
    if families:
        by_task = {task: values for task, found in tasks.items() if (values := of(found))}
        interval, method = mean_interval(by_task, scale=scale, families=families)
    else:
        interval, method = means_interval(means, scale) if means else (None, "nothing was graded")
    return Estimate(_mean(means), interval, method, len(means), sum(len(of(one)) for one in tasks.values()))


def _repeats(results: Mapping[str, TaskResult], families: Mapping[str, str] | None) -> RepeatScores:
    counting = {task: result for task, result in results.items() if result.trials}
    kinds: dict[tuple[int, int], tuple[int, int]] = {}  # tasks with the same tally share one tuple
    tallies = [
        kinds.setdefault(tally, tally) for one in counting.values() if (tally := (one.passed, one.trials))
    ]
    least = min((trials for _, trials in tallies), default=0)
    most = max((trials for _, trials in tallies), default=0)
    repeated = [task for task, result in counting.items() if result.trials > 1]
    counts = range(1, least + 1)
    of = [families.get(task, task) for task in counting] if families else None
    told = {least, *(1 << power for power in range(least.bit_length()))}
    return RepeatScores(
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
    """Return all that a trial's digest is made of but the task; None where a run does not say."""
    digest = run.arguments.get("agent_digest")
    if not digest:
        return None
    variant = run.arguments.get("variant")
    return {"agent": digest, "model": run.model, "variant": variant, **run.arguments.get("settings", {})}


# Runs compared: what each agent is worth, and which differences are more than chance. Pure.

Runs = Sequence[tuple["RunView", "Iterable[TrialView] | ScoredTrials"]]
"""Each with all of its trials, which are read once."""


def summarise(
    runs: Runs,
    *,
    metric: Metric = "score",
    names: Sequence[str] | None = None,
    pairs: Sequence[tuple[int, int]] | None = None,
    margin: float | None = None,
) -> Summary:
    """Return every run's numbers, and the paired comparisons of those on the same benchmark and dataset.

    `pairs` are positions of the runs to compare; all of them unless said. `names` is what runs are called,
    `agent:model` unless said. `margin` is the difference that counts as none, 2 points unless said.
    """
    planned = [
        (run, trials if isinstance(trials, ScoredTrials) else ScoredTrials(trials)) for run, trials in runs
    ]
    needed = [(run, trials.without_skipped()) for run, trials in planned]
    called = _distinct([run for run, _ in needed], names)
    sides = [
        side(run, trials, metric, name, _worst(run, needed, metric), families=_families(run, needed))
        for (run, trials), name in zip(needed, called, strict=True)
    ]
    # All of a table by one method: where one run ended early, that is the one that allows it.
    early = any(run.arguments.get("stop_rule") for run, _ in needed)
    if early or not all(RunState(run.state).terminal for run, _ in needed):
        sides = [
            with_anytime_interval(one, run, early=early) for one, (run, _) in zip(sides, needed, strict=True)
        ]
    wanted = list(combinations(range(len(needed)), 2)) if pairs is None else pairs
    wanted = [(a, b) for a, b in wanted if _alike(needed[a][0], needed[b][0])]
    found = [compared(sides[a], sides[b], together=len(wanted), margin=margin) for a, b in wanted]
    made = [
        as_it_goes(one, planned[a], planned[b], metric)
        for one, (a, b) in zip(corrected(found), wanted, strict=True)
    ]
    return Summary(metric, _ranked([one.summary for one in sides]), made)


def _worst(run: RunView, runs: Sequence[tuple[RunView, ScoredTrials]], metric: Metric) -> float:
    """Return what an end counts that the agent itself brought about; never more than a grade beside it."""
    if metric == "pass" or run.score.fraction:
        return 0.0
    alike = [trials for other, trials in runs if _alike(run, other)]
    return worst_score(trial.score for trials in alike for trial, _ in trials.counted())


def _families(run: RunView, runs: Sequence[tuple[RunView, ScoredTrials]]) -> dict[str, str]:
    """Return the family of each task, as any run on the same benchmark knows it: one method for all."""
    found: dict[str, str] = {}
    for other, trials in runs:
        if _alike(run, other):
            found |= trials.families
    return found


def _ranked(agents: Sequence[AgentSummary]) -> list[AgentSummary]:
    """Each with its rank among those on the same benchmark, by the lower end of the score."""
    return [
        replace(one, rank=1 + sum(_level(other) > _level(one) for other in agents if _same_place(one, other)))
        for one in agents
    ]


def _same_place(one: AgentSummary, other: AgentSummary) -> bool:
    return (one.benchmark, one.dataset) == (other.benchmark, other.dataset)


def _level(agent: AgentSummary) -> float:
    """The lower end of a score; below all others where there is none."""
    known = agent.scores.infrastructure_excluded.mean if agent.score_low is None else agent.score_low
    return -math.inf if known is None else round(known, 12)


def to_json(summary: Summary, *, tasks: bool = False) -> Json:
    """Plain JSON data, the sentences included; with `tasks` every task of every agent."""
    return summary_json(summary, [sentence(one) for one in summary.comparisons], tasks=tasks)


def check_alike(a: RunView, b: RunView) -> None:
    """UsageError unless two runs are on the same benchmark and dataset."""
    if not _alike(a, b):
        raise UsageError(
            f"Run {short_id(a.id)} is on {_place(a)} and run {short_id(b.id)} on {_place(b)}: "
            "only runs on the same benchmark and dataset can be compared."
        )


def _alike(a: RunView, b: RunView) -> bool:
    return (a.benchmark, a.dataset) == (b.benchmark, b.dataset)


def _place(run: RunView) -> str:
    return safe(run.benchmark) + ("" if run.dataset == "default" else f" ({safe(run.dataset)})")


def _distinct(runs: Sequence[RunView], names: Sequence[str] | None) -> list[str]:
    """Return what each run is called; its benchmark, or its id, tells those apart that would be called
    alike."""
    said = [*names] if names else [f"{run.agent}:{run.model}" if run.model else run.agent for run in runs]
    said = [safe(name) + run_mark(run) for name, run in zip(said, runs, strict=True)]
    placed = [f"{name} on {_place(run)}" for name, run in zip(said, runs, strict=True)]
    if len(set(said)) < len(said) and len(set(placed)) == len(placed):
        return placed
    twice = Counter(said)
    return [
        f"{name} ({short_id(run.id)})" if twice[name] > 1 else name
        for name, run in zip(said, runs, strict=True)
    ]


__all__ = [
    "AgentSummary",
    "Comparison",
    "Metric",
    "Summary",
    "check_alike",
    "sentence",
    "summarise",
    "to_json",
]
