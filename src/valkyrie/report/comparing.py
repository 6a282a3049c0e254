"""Runs compared: what each agent is worth, and which differences are more than chance. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING

from valkyrie.errors import UsageError
from valkyrie.nouns import Json, worst_score
from valkyrie.report.agent_summary import side
from valkyrie.report.anytime_comparison import as_it_goes, with_anytime_interval
from valkyrie.report.comparison_views import AgentSummary, Comparison, Metric, Summary, summary_json
from valkyrie.report.comparison_words import sentence
from valkyrie.report.formats import run_mark, safe, short_id
from valkyrie.report.pairing import compared, corrected
from valkyrie.report.scored_trials import ScoredTrials

if TYPE_CHECKING:
    from valkyrie.views import RunView, TrialView

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
    """Every run's numbers, and the paired comparisons of those on the same benchmark and dataset.

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
    """What an end counts that the agent itself brought about; never more than a grade beside it."""
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
    """What each run is called; its benchmark, or its id, tells those apart that would be called alike."""
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
