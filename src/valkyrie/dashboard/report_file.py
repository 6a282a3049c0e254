"""A run or job as one HTML file that opens from a disk, without a server or a network."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from benchmark_runner.archive import new_file
from benchmark_runner.terminal import safe
from valkyrie.dashboard import charts, pages
from valkyrie.dashboard.app import HERE, make_templates
from valkyrie.errors import UsageError
from valkyrie.report.formats import agent_name, moment, score_rows
from valkyrie.report.tables import ended, run_rows, trial_notes
from valkyrie.report.trial_details import evidence_tables, trial_rows
from valkyrie.tracker.local import LocalTracker
from valkyrie.tracker.protocol import each_trial
from valkyrie.views import RunView, TrialView

MOST_BYTES = 4 << 20
"""Of trials' own sections; those behind it are in the table only."""
LONGEST_STEP = 2_000
"""Characters of one text of a step."""
MOST_STEPS = 200
"""Steps of one trial, half of them its first and half its last."""


def write_report(tracker: LocalTracker, ref: str, *, everything: bool = False) -> str:
    """Return the file's text. Trials without a pass have their steps in it; `everything` has all of them."""
    runs, values = _runs(tracker, ref)
    templates = make_templates()
    budget = _Budget(None if everything else MOST_BYTES)
    sections = [_section(tracker, run, budget, everything=everything) for run in runs]
    shown = {
        **values,
        "style": Markup((HERE / "static" / "dashboard.css").read_text()),  # noqa: S704 - our own file
        "sections": sections,
        "made": moment(time.time()),
        "left_out": budget.left_out,
    }
    return templates.get_template("report.html").render(shown)


def _runs(tracker: LocalTracker, ref: str) -> tuple[Sequence[RunView], dict[str, Any]]:
    """Return the runs a word names, and how they compare where it names a job of several."""
    try:
        run = tracker.fetch(ref)
    except UsageError:
        job = tracker.fetch_job(ref)  # says itself that there is no such thing
        found = pages.job_page(tracker, job.id, {}).values
        return job.runs, {**found, "title": safe(job.name), "compared": "forest" in found}
    return [run], {"title": f"{agent_name(run.agent, run.model)} on {safe(run.benchmark)}", "compared": False}


class _Budget:
    """How much more fits into the file."""

    def __init__(self, left: int | None) -> None:
        self._left = left
        self.left_out = 0

    def takes(self, size: int) -> bool:
        if self._left is None:
            return True
        if size > self._left:
            self.left_out += 1
            return False
        self._left -= size
        return True


def _section(tracker: LocalTracker, run: RunView, budget: _Budget, *, everything: bool) -> dict[str, Any]:
    run, now = tracker.fetch(run.id), time.time()
    trials = list(each_trial(tracker, run.id))
    told: dict[int, Mapping[str, Any]] = {}
    for trial in trials:
        if trial.attempts and (everything or not trial.passed):
            found = _trial(tracker, run, trial)
            if budget.takes(sum(map(len, _texts(found)))):
                told[trial.position] = found
    return {
        "run": run,
        "name": agent_name(run.agent, run.model),
        "bar": charts.state_bar(run.counts, run.score.passed, long=True),
        "scores": score_rows(run.score, ended=ended(run)),
        "details": [row for row in run_rows(run, now=now) if row[0] not in pages.SHOWN_ELSEWHERE],
        "lines": [pages.trial_line(run, trial, now) for trial in trials],
        "notes": trial_notes(trials),
        "told": told,
    }


def _trial(tracker: LocalTracker, run: RunView, trial: TrialView) -> Mapping[str, Any]:
    """Return what the file says of one trial."""
    accounts, printed = pages.read_kept(tracker, run, trial)
    steps = [*pages.each_step(accounts)]
    cut = max(0, len(steps) - MOST_STEPS)
    if cut:
        steps = [*steps[: MOST_STEPS // 2], *steps[-MOST_STEPS // 2 :]]
    return {
        "trial": trial,
        "rows": trial_rows(run, trial),
        "evidence": evidence_tables(trial.evidence),
        "printed": _short(printed),
        "steps": [_shortened(one) for one in steps],
        "cut": cut,
    }


def _shortened(step: pages.StepView) -> pages.StepView:
    return step._replace(
        thinking=_short(step.thinking),
        message=_short(step.message),
        calls=[(name, _short(given)) for name, given in step.calls],
        results=[_short(one) for one in step.results],
    )


def _short(text: str) -> str:
    return (
        text
        if len(text) <= LONGEST_STEP
        else f"{text[:LONGEST_STEP]}\n… {len(text) - LONGEST_STEP:,} characters more"
    )


def _texts(told: Mapping[str, Any]) -> Iterator[str]:
    yield told["printed"]
    for step in told["steps"]:
        yield from (step.thinking, step.message, *(given for _, given in step.calls), *step.results)


def save_report(tracker: LocalTracker, ref: str, file: Path, *, everything: bool = False) -> int:
    """Write the file, whole or not at all; return its size."""
    text = write_report(tracker, ref, everything=everything).encode("utf-8", "replace")
    with new_file(file, f"The report {file}") as sink:
        sink.write(text)
    return len(text)
