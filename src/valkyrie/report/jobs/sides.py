"""The sides of a job: each agent with its model, what became of its trials, what it used."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from valkyrie.report.formats import agent_name, elapsed, safe

if TYPE_CHECKING:
    from valkyrie.job_views import JobView
    from valkyrie.report.scored_trials import ScoredTrial
    from valkyrie.views import RunView, TrialView

Trials = Mapping[str, Sequence["TrialView"]]
"""Of a job, by run id."""
ACTIVE = ("BUILDING", "IN_PROGRESS", "EVALUATING")


@dataclass(frozen=True, slots=True)
class Side:
    """One agent with its model: a run, or one on each benchmark."""

    name: str
    """`agent:model`, unlike any other of the job."""
    runs: Sequence[RunView]


def sides(job: JobView) -> list[Side]:
    """In the order the agents were named; two that share a name (folders of another place) stay apart."""
    found: dict[str, list[RunView]] = {}
    for run in job.runs:
        plain = agent_name(run.agent, run.model)
        name, number = plain, 1
        while any(_same_tasks(other, run) for other in found.get(name, ())):
            number += 1
            name = f"{plain} ({number})"
        found.setdefault(name, []).append(run)
    return [Side(name, runs) for name, runs in found.items()]


def _same_tasks(one: RunView, other: RunView) -> bool:
    return (one.benchmark, one.dataset) == (other.benchmark, other.dataset)


def run_names(job: JobView) -> dict[str, str]:
    """What to call each run of a job: its side, and its benchmark where there are several."""
    several = len({(run.benchmark, run.dataset) for run in job.runs}) > 1
    names = {}
    for side in sides(job):
        for run in side.runs:
            dataset = "" if run.dataset == "default" else f"@{safe(run.dataset)}"
            names[run.id] = side.name + (f" on {safe(run.benchmark)}{dataset}" if several else "")
    return names


def verdict(trial: TrialView | ScoredTrial, *, fraction: bool = True) -> str:
    """passed, partial, failed, error, skipped, or open: what has neither grade nor error (yet).

    Where a benchmark does not say what passed, a full score of 1 does if scores are fractions.
    """
    if trial.state in ("ERROR", "SKIPPED"):
        return trial.state.lower()
    if trial.state != "FINISHED":
        return "open"
    if trial.passed or (trial.passed is None and fraction and (trial.score or 0.0) >= 1.0):
        return "passed"
    return "partial" if trial.score else "failed"


@dataclass(slots=True)
class Tally:
    """What became of some trials."""

    verdicts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("passed", "partial", "failed", "error", "open", "skipped"), 0)
    )

    @property
    def total(self) -> int:
        """Without those that were skipped."""
        return sum(count for verdict, count in self.verdicts.items() if verdict != "skipped")


def tally(trials: Iterable[TrialView | ScoredTrial], *, fraction: bool = True) -> Tally:
    """Count trials by verdict."""
    found = Tally()
    for trial in trials:
        found.verdicts[verdict(trial, fraction=fraction)] += 1
    return found


def seconds(runs: Sequence[RunView], now: float | None = None) -> float | None:
    """How long the run of them worked that worked longest, up to its end or now."""
    now = time.time() if now is None else now
    return max((took for run in runs if (took := elapsed(run, now)) is not None), default=None)


def trials_done(runs: Sequence[RunView]) -> tuple[int, int]:
    """How many trials came to an end, and how many there are."""
    return sum(run.done for run in runs), sum(run.total for run in runs)
