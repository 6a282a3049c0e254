"""The agents of a job: what became of their trials, who is ahead, and what a decision saved."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from benchmark_runner.terminal import safe
from valkyrie.domain import Json
from valkyrie.report.formats import agent_name, dollars, elapsed, number, plural

if TYPE_CHECKING:
    from valkyrie.compare.pairs import ScoredTrial
    from valkyrie.views import RunView, TrialView
    from valkyrie.views.jobs import JobView


Trials = Mapping[str, Sequence["TrialView"]]
"""Of a job, by run id."""
ACTIVE = ("BUILDING", "IN_PROGRESS", "EVALUATING")


@dataclass(frozen=True, slots=True)
class JobSide:
    """One agent with its model: a run, or one on each benchmark."""

    name: str
    """`agent:model`, unlike any other of the job."""
    runs: Sequence[RunView]


def sides(job: JobView) -> list[JobSide]:
    """In the order the agents were named; two that share a name (folders of another place) stay apart."""
    found: dict[str, list[RunView]] = {}
    for run in job.runs:
        plain = agent_name(run.agent, run.model)
        name, number = plain, 1
        while any(_same_tasks(other, run) for other in found.get(name, ())):
            number += 1
            name = f"{plain} ({number})"
        found.setdefault(name, []).append(run)
    return [JobSide(name, runs) for name, runs in found.items()]


def _same_tasks(one: RunView, other: RunView) -> bool:
    return (one.benchmark, one.dataset) == (other.benchmark, other.dataset)


def run_names(job: JobView) -> dict[str, str]:
    """Return what to call each run of a job: its side, and its benchmark where there are several."""
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
    """Return how long the run of them worked that worked longest, up to its end or now."""
    now = time.time() if now is None else now
    return max((took for run in runs if (took := elapsed(run, now)) is not None), default=None)


def trials_done(runs: Sequence[RunView]) -> tuple[int, int]:
    """Return how many trials came to an end, and how many there are."""
    return sum(run.done for run in runs), sum(run.total for run in runs)


# Jobs that stop when they are decided, in words and as data: the rule, who is ahead, what was saved.


def rule_text(rule: Mapping[str, Any]) -> str:
    """`when it is decided: wrong in at most 5 % of jobs, …`."""
    pairs = int(rule["comparisons"])
    shared = f", {pairs} comparisons together" if pairs > 1 else ""
    margin = rule["margin"]
    alike = "" if margin is None else f"; no further apart than {100 * margin:g} points is an answer too"
    return f"when it is decided who is ahead (wrong in at most {100 * rule['error']:g} %{shared}{alike})"


def decision_lines(job: JobView) -> list[str]:
    """Return what to say of a job that stops when it is decided; nothing of others."""
    if job.stop_rule is None:
        return []
    decided, pairs = len((job.decision or {}).get("pairs", [])), int(str(job.stop_rule["comparisons"]))
    if job.decision is None or not any(map(sum_skipped, job.decision["skipped"].values())):
        how = "every trial was run" if job.ended else "no trial was skipped yet"
        said = f"Not decided; {how}." if not decided else f"Decided: {decided} of {pairs} pairs; {how}."
        return [f"Stops {rule_text(job.stop_rule)}. {said}"]
    found = savings(job)
    money = f", about {dollars(found['saved_cost'])} saved" if found["saved_cost"] is not None else ""
    aside = found["trials_set_aside"]
    begun = f"; {aside} that had begun already {'does' if aside == 1 else 'do'} not count" if aside else ""
    which = "Decided" if decided == pairs else f"Decided in {decided} of {pairs} pairs"
    return [f"{which}: {plural(found['trials_not_run'], 'trial')} not run{money}{begun}."]


def sum_skipped(one: Mapping[str, Any]) -> int:
    """Return how many trials of a run were skipped."""
    return int(one["not_run"]) + int(one["set_aside"])


def savings(job: JobView) -> Json:
    """Return how many trials a decision spared a job, and about how much money."""
    skipped = list((job.decision or {}).get("skipped", {}).values())
    costs = [one["saved_cost"] for one in skipped if one["saved_cost"] is not None]
    return {
        "trials_not_run": sum(one["not_run"] for one in skipped),
        "trials_set_aside": sum(one["set_aside"] for one in skipped),
        "saved_cost": sum(costs) if costs else None,
    }


def decision_document(job: JobView) -> Json | None:
    """Return what was decided of a job, and what that saved; None where nothing was."""
    if job.decision is None:
        return None
    names = run_names(job)
    pairs = [
        {
            "a": names.get(one["a_run"]),
            "b": names.get(one["b_run"]),
            **{name: value for name, value in one.items() if name != "ends"},
        }
        for one in job.decision["pairs"]
    ]
    return {"pairs": pairs, "skipped": dict(job.decision["skipped"]), **savings(job)}


def standing_lines(job: JobView) -> list[str]:
    """Return who is ahead while a job goes on, and whether that is decided."""
    if job.ended:
        return []
    names = run_names(job)
    lines = []
    of_place: dict[tuple[str, str], list[RunView]] = {}
    for run in job.runs:
        of_place.setdefault((run.benchmark, run.dataset), []).append(run)
    decided = (job.decision or {}).get("pairs", [])
    for runs in of_place.values():
        if len(runs) < 2:
            continue
        pairs = len(runs) * (len(runs) - 1) // 2
        done = sum(one["a_run"] in {run.id for run in runs} for one in decided)
        how = "decided" if done == pairs else f"{done} of {pairs} pairs decided" if done else "not decided"
        known = [(run.score.score_graded, run) for run in runs if run.score.score_graded is not None]
        if len(known) < 2:
            continue
        best, leader = max(known, key=lambda item: item[0])
        level = sum(score == best for score, _ in known) > 1
        said = "level so far" if level else f"{names[leader.id]} is ahead so far"
        lines.append(f"{said} ({number(best, fraction=leader.score.fraction)}), {how}")
    return lines
