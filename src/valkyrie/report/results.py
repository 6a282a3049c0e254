"""The results file: everything a run found, in one JSON document (docs/reference/results-file)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from valkyrie.nouns import COUNTED_AS_ZERO, Json, TrialState, ended_by_agent
from valkyrie.views import HookView, RunView, to_json

SCHEMA_VERSION = 1


def results_document(
    run: RunView,
    final_evaluation: Json | None,
    trials: Iterable[Any],
    *,
    passes: int | None = None,
    subset: bool = False,
) -> Json:
    """The document of one run; `trials` are its trial rows, in order, `passes` how often it was set going.

    A `subset` says which tasks it is about: those, and no others, are in its score.
    """
    found: dict[str, Json | list[Json]] = {}
    errors: dict[str, str] = {}
    zeroed: dict[str, str] = {}
    stopped: list[str] = []
    skipped: list[str] = []
    timings: dict[str, list[float]] = defaultdict(list)
    tasks: dict[str, None] = {}
    for row in trials:
        tasks[row.task_id] = None
        key = row.task_id if row.k == 0 else f"{row.task_id}#{row.k}"
        if row.state == TrialState.FINISHED:
            found[key] = _graded(row)
            if row.cause in COUNTED_AS_ZERO:
                zeroed[key] = row.cause
            _add_timing(timings, row.timing or {})
        elif row.state == TrialState.ERROR:
            errors[key] = f"{row.category} ({row.cause}): {row.message}"
            if ended_by_agent(row.state, row.category):
                zeroed[key] = row.cause
        elif row.state == TrialState.STOPPED:
            stopped.append(key)
        elif row.state == TrialState.SKIPPED:
            skipped.append(key)
    document: Json = {
        "schema_version": SCHEMA_VERSION,
        "benchmark_id": run.id,
        "benchmark_name": run.benchmark,
        "dataset": run.dataset,
        "agent": run.agent,
        "model": run.model,
        "label": run.label,
        "organisation": run.org,
        "started_by": run.started_by,
        "started_at": _time(run.started_at),
        "finished_at": _time(run.finished_at),
        "status": run.state,
        "ingested": run.ingested or None,
        "error_message": run.error,
        "passes": passes,
        "benchmark_arguments": run.arguments,
        "enforcement": dict(run.enforcement),
        "tasks_stopped": stopped or None,
        **({"tasks_skipped": skipped} if skipped else {}),
        "subset": list(tasks) if subset else None,
        "final_evaluation": final_evaluation,
        "score": to_json(run.score),
        "cost": to_json(run.cost) if run.cost else None,
        "tokens": to_json(run.tokens) if run.tokens else None,
        "job_id": run.job_id,
        "hooks": [_told(hook) for hook in run.hooks] or None,
        "average_task_breakdown": {name: sum(values) / len(values) for name, values in timings.items()},
        "evaluation_results": found,
        "task_errors": errors,
        "counted_as_zero": zeroed or None,
    }
    return {name: value for name, value in document.items() if value is not None}


def _graded(row: Any) -> Json:
    result = dict(row.result or {})
    result["score"] = row.score
    if row.passed is not None:
        result["passed"] = row.passed
    if row.confirmed is not None:
        result |= {"confirmed": row.confirmed, "score_confirmed": row.score_confirmed}
    if row.evidence:
        result["evidence"] = row.evidence
    if row.exit_reason:
        result["agent_caused_exit_reason"] = row.exit_reason
    result["agent_exit_code"] = row.exit_code
    result["attempts"] = row.attempts
    if row.cost is not None:
        result["cost"] = row.cost
    if row.usage:
        result["usage"] = row.usage
    if row.cause:
        result["agent_trouble"] = {"cause": row.cause, "message": row.message}
    result["task_breakdown"] = _breakdown(row.timing or {})
    return result


def _told(hook: HookView) -> Json:
    """What was told to others, and how that went; never where to."""
    return {
        "kind": hook.kind,
        "trigger": hook.trigger,
        "state": hook.state,
        "detail": hook.detail,
        "attempts": hook.attempts,
        "finished_at": _time(hook.finished_at),
    }


def _breakdown(timing: Json) -> Json:
    """The four durations every reader of such files knows, in seconds."""
    return {
        "sandbox_build_duration": timing.get("build"),
        "agent_run_duration": timing.get("agent"),
        "evaluation_run_duration": timing.get("grade"),
        "sandbox_run_duration": timing.get("total"),
    }


def _add_timing(timings: dict[str, list[float]], timing: Json) -> None:
    for name, seconds in _breakdown(timing).items():
        if seconds is not None:
            timings[name].append(seconds)


def _time(at: float | None) -> str | None:
    return None if at is None else datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
