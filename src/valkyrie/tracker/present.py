"""Rows of the store as the views people see."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from valkyrie.nouns import Category, RunState, TrialState
from valkyrie.report.statistics import bootstrap, wilson
from valkyrie.schedule.policy import policy_for
from valkyrie.store.schema import ERROR_COUNTERS, STATE_COUNTERS
from valkyrie.views import AttemptView, ErrorGroup, RunView, ScoreView, TrialView


def run_view(
    row: Any,
    *,
    executor: Literal["alive", "none"],
    folder: str,
    scores: Mapping[str, Sequence[float]] | None = None,
) -> RunView:
    """One run; `scores` by task, where given, allow an interval for partial credit."""
    counts = {state.value: getattr(row, name) for state, name in STATE_COUNTERS.items()}
    return RunView(
        id=row.id,
        benchmark=row.benchmark,
        dataset=row.dataset,
        agent=row.agent,
        model=row.model,
        label=row.label,
        provider=row.provider,
        state=row.state,
        counts=counts,
        total=sum(counts.values()),
        concurrency=row.concurrency,
        created_at=row.created_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        started_by=row.started_by,
        score=score_view(row, counts, scores),
        error=row.error,
        note=_note(row, executor),
        executor=executor,
        folder=folder,
        arguments=row.arguments,
        enforcement=row.enforcement,
        version=row.version,
    )


def _note(row: Any, executor: str) -> str | None:
    if row.note is None and executor == "none" and not RunState(row.state).terminal:
        return f"no executor is at work; `valk run resume {row.id[:8]}` goes on"
    note: str | None = row.note
    return note


def score_view(
    row: Any, counts: Mapping[str, int], scores: Mapping[str, Sequence[float]] | None
) -> ScoreView:
    """The three numbers. While a run goes on, `score_graded` is the mean of what is graded so far."""
    graded, planned = counts[TrialState.FINISHED], sum(counts.values())
    errors = {category.value: getattr(row, name) for category, name in ERROR_COUNTERS.items()}
    ended = RunState(row.state).terminal
    running = row.score_sum / graded if graded and row.fraction else None
    score_graded = row.score_graded if ended and row.score_graded is not None else running
    interval, method = _interval(row, graded, scores) if row.fraction and graded else (None, None)
    return ScoreView(
        final_score=row.final_score if ended else None,
        score_graded=score_graded,
        graded=graded,
        planned=planned,
        coverage=graded / planned if planned else 0.0,
        errors={name: number for name, number in errors.items() if number},
        provisional=errors[Category.INFRASTRUCTURE] > 0,
        fraction=bool(row.fraction),
        passed=row.n_passed,
        interval=interval,
        interval_method=method if interval else None,
    )


def _interval(
    row: Any, graded: int, scores: Mapping[str, Sequence[float]] | None
) -> tuple[tuple[float, float] | None, str | None]:
    """Wilson where every task simply passed or failed, else by resampling tasks."""
    if row.n_partial == 0 and int(row.arguments.get("trials", 1)) == 1:
        return wilson(row.n_passed, graded), "Wilson"
    if scores is None:
        return None, None
    means = [sum(found) / len(found) for found in scores.values()]
    if all(mean in (0.0, 1.0) for mean in means):
        return wilson(int(sum(means)), len(means)), "Wilson over tasks"
    return bootstrap(scores), "bootstrap over tasks"


def trial_view(row: Any) -> TrialView:
    """One trial."""
    return TrialView(
        task_id=row.task_id,
        k=row.k,
        state=row.state,
        attempts=row.attempts,
        score=row.score,
        passed=row.passed,
        category=row.category,
        cause=row.cause,
        message=row.message,
        exit_code=row.exit_code,
        exit_reason=row.exit_reason,
        retry_at=row.not_before,
        started_at=row.started_at,
        finished_at=row.finished_at,
        timing=row.timing or {},
        digest=row.digest,
    )


def attempt_view(row: Any, *, current: str, log: str | None, artifacts: str | None) -> AttemptView:
    """One attempt; while it runs its phase is the trial's state."""
    return AttemptView(
        number=row.number,
        outcome=row.outcome,
        phase=row.phase if row.outcome else current,
        category=row.category,
        cause=row.cause,
        message=row.message,
        exit_code=row.exit_code,
        exit_reason=row.exit_reason,
        score=row.score,
        started_at=row.started_at,
        finished_at=row.finished_at,
        timing=row.timing or {},
        log=log,
        artifacts=artifacts,
    )


_VARIES = re.compile(
    r"[0-9a-f]{8}-[0-9a-f-]{27}|\b[0-9a-f]{12,64}\b|\b\d+(?:\.\d+)?\b|/[^\s:'\"]+", re.IGNORECASE
)


def group_errors(rows: Iterable[Any]) -> list[ErrorGroup]:
    """Alike errors together, whatever ids, numbers and paths they name; open ones first, then by number."""
    groups: dict[tuple[str, str, str, bool], list[Any]] = {}
    for row in rows:
        message = str(row.message or "")
        shape = " ".join(_VARIES.sub("·", message.replace(row.task_id, "·")).split())
        retrying = row.state != TrialState.ERROR
        groups.setdefault((row.category, row.cause, shape, retrying), []).append(row)
    found = [
        ErrorGroup(
            category=category,
            cause=cause,
            message=str(rows[0].message or ""),
            count=len(rows),
            retryable=policy_for(Category(category), cause).retryable,
            task_ids=list(dict.fromkeys(row.task_id for row in rows))[:5],
            retrying=retrying,
        )
        for (category, cause, _shape, retrying), rows in groups.items()
    ]
    return sorted(found, key=lambda group: (group.retrying, -group.count))
