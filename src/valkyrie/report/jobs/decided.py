"""Jobs that stop when they are decided, in words and as data: the rule, who is ahead, what was saved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from valkyrie.nouns import Json
from valkyrie.report.formats import dollars, number, plural
from valkyrie.report.jobs.sides import run_names

if TYPE_CHECKING:
    from valkyrie.job_views import JobView
    from valkyrie.views import RunView


def rule_text(rule: Mapping[str, Any]) -> str:
    """`when it is decided: wrong in at most 5 % of jobs, …`."""
    pairs = int(rule["comparisons"])
    shared = f", {pairs} comparisons together" if pairs > 1 else ""
    margin = rule["margin"]
    alike = "" if margin is None else f"; no further apart than {100 * margin:g} points is an answer too"
    return f"when it is decided who is ahead (wrong in at most {100 * rule['error']:g} %{shared}{alike})"


def decision_lines(job: JobView) -> list[str]:
    """What to say of a job that stops when it is decided; nothing of others."""
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
    """Who is ahead while a job goes on, and whether that is decided."""
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
