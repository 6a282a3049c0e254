"""Results to export: of a folder with a results.jsonl, or of runs and jobs a tracker knows."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from valkyrie.errors import UnknownError, UserError
from valkyrie.evals.results import (
    EvalResult,
    Invocation,
    StimulusResult,
    TrialFault,
    TrialResult,
    Verification,
    fault_kind,
)
from valkyrie.grade.protocol import GraderResult
from valkyrie.nouns import Json, TrialState, worst_score
from valkyrie.report.tables import counts_as_zero

if TYPE_CHECKING:
    from valkyrie.tracker.protocol import Tracker
    from valkyrie.views import RunView, TrialView


def from_folders(folders: Sequence[Path]) -> Invocation:
    """Everything the results.jsonl files in or below these folders say."""
    from valkyrie.evals.gathering import invocation_of
    from valkyrie.evals.ingested_trials import Times
    from valkyrie.evals.ingesting import find_results
    from valkyrie.evals.records import RecordError, read_lines

    trials: list[TrialResult] = []
    files = list(dict.fromkeys(path for folder in folders for path in find_results(folder)))
    for file in files:
        try:
            trials += read_lines(file)
        except RecordError as error:
            raise UserError(f"{file}: {error}", cause=error.cause) from error
    found = invocation_of(trials, name=", ".join(folder.name for folder in folders))
    return replace(found, started_at=iso(min(Times.of(file).at for file in files)))


def iso(at: float) -> str:
    """A point in time, as reports have it."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")


def from_tracker(opened: Tracker, refs: Sequence[str]) -> Invocation:
    """The runs these words name; a job stands for all of its runs."""
    runs = [run for ref in refs for run in _runs(opened, ref)]
    started = [run.started_at for run in runs if run.started_at is not None]
    return Invocation(
        [_eval(opened, run) for run in runs],
        name=", ".join(refs),
        started_at=iso(min(started)) if started else "",
    )


def _runs(opened: Tracker, ref: str) -> list[RunView]:
    try:
        return list(opened.fetch_job(ref).runs)
    except UnknownError as no_job:
        try:
            return [opened.fetch(ref)]
        except UnknownError:
            raise UnknownError(f"{no_job} No run's id begins so either, and it is no folder.") from None


def _eval(opened: Tracker, run: RunView) -> EvalResult:
    found: Json = opened.results(run.id).get("evaluation_results", {})
    from valkyrie.tracker.trial_pages import each_trial

    views = [view for view in each_trial(opened, run.id) if view.state != TrialState.SKIPPED]
    planned = Counter(view.task_id for view in views)
    worst = worst_score(view.score for view in views if view.state == TrialState.FINISHED)
    by_task: dict[str, list[TrialResult]] = {}
    for view in views:
        by_task.setdefault(view.task_id, [])
        if view.state in (TrialState.FINISHED, TrialState.ERROR):
            key = view.task_id if view.k == 0 else f"{view.task_id}#{view.k}"
            trial = _trial(run, view, found.get(key) or {}, worst)
            by_task[view.task_id].append(replace(trial, planned=planned[view.task_id]))
    return EvalResult(
        name=run.benchmark,
        file=str(run.arguments.get("benchmark") or ""),
        model=run.model,
        executor=run.agent,
        stimuli=[StimulusResult(name, "", trials, planned[name]) for name, trials in by_task.items()],
        variant=_variant(run),
        run_id=run.id,
        score=run.score,
    )


def _trial(run: RunView, view: TrialView, result: Json, worst: float) -> TrialResult:
    zero = counts_as_zero(view)
    failed = view.state == TrialState.ERROR and not zero
    threshold = result.get("threshold")
    passed = view.passed if view.passed is not None else None if view.score is None else view.score >= 1.0
    return TrialResult(
        eval_name=run.benchmark,
        stimulus=view.task_id,
        index=view.k,
        model=run.model,
        executor=run.agent,
        variant=_variant(run),
        duration_ms=round(1000 * float(view.timing.get("agent") or 0.0), 1),
        score=None if failed else worst if zero else view.score,
        passed=None if failed else False if zero else passed,
        graders=_graders(result),
        fault=_fault(view) if failed else None,
        attempts=view.attempts,
        run_id=run.id,
        threshold=threshold if isinstance(threshold, int | float) else None,
        verification=_verification(view, zero=zero),
        fraction=run.score.fraction,
        family=view.family,
        ingested=run.ingested,
    )


def _verification(view: TrialView, *, zero: bool) -> Verification | None:
    found = Verification(view.confirmed, view.score_confirmed, view.evidence)
    if zero:
        found = replace(found, category=view.category, cause=view.cause or "agent", message=view.message)
    return found if found != Verification() else None


def _graders(result: Json) -> list[GraderResult]:
    """Return what graders found; a service may call something else so, which says nothing here."""
    from valkyrie.evals.records import grader_of

    listed = result.get("graders")
    found: list[GraderResult] = []
    for one in listed if isinstance(listed, list) else ():
        with contextlib.suppress(ValueError, OverflowError):
            found += [grader_of(one)] if isinstance(one, dict) else []
    return found


def _fault(view: TrialView) -> TrialFault:
    cause = view.cause or "internal"
    return TrialFault(fault_kind(cause), view.message or cause, view.category or "internal", cause)


def _variant(run: RunView) -> str:
    return str(run.arguments.get("variant") or "main")
