"""The results file: everything a run found, in one JSON document (docs/reference/results-file)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pydantic_core import PydanticSerializationError, to_jsonable_python
from pydantic_core import to_json as to_json_bytes

from valkyrie.domain import COUNTED_AS_ZERO, Json, TrialState, ended_by_agent
from valkyrie.views import HookView, RunView, to_json

if TYPE_CHECKING:
    from valkyrie.store.rows import RunRow

_CONTRACT = (
    *("name", "model", "install_cmd", "run_cmd", "final_output", "output_artifacts"),
    *("egress_allowlist", "secrets", "kwargs"),
)


def told_arguments(row: RunRow) -> Json:
    """The arguments of a run's row, secrets by name only; agent and benchmark by their names."""
    arguments: Json = row.arguments
    frozen: Json = row.agent_frozen
    contract: Json = frozen.get("contract") or {
        "name": row.agent,
        "model": row.model,
        "kwargs": arguments.get("kwargs", {}),
        "secrets": arguments.get("secrets", {}),
    }
    return {
        **arguments,
        "agent": row.agent,
        "benchmark": row.benchmark,
        "contract": {name: contract[name] for name in _CONTRACT if name in contract},
        "concurrency": row.concurrency,
        "slice_str": arguments.get("slice"),
        "sandbox_provider": row.provider,
        "sandbox_provider_secret_name": arguments.get("provider_secret"),
    }


# The results file: everything a run found, in one JSON document (docs/reference/results-file).

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
    found = _Gathered()
    graded = dict(found.graded(trials))
    return {
        **_about(run, final_evaluation, passes),
        "evaluation_results": graded,
        **found.others(subset=subset),
    }


def results_text(
    run: RunView, final_evaluation: Json | None, trials: Iterable[Any], *, passes: int | None = None
) -> Iterator[str]:
    """The same document of a whole run as it is written, piece by piece: trials are never all in memory.

    No string is cut between two pieces.
    """
    found = _Gathered()
    yield "{"
    for name, value in _about(run, final_evaluation, passes).items():
        yield f"\n  {document_text(name)}: {document_text(value, 2)},"
    opening = '\n  "evaluation_results": {'
    for key, value in found.graded(trials):
        yield f"{opening}\n    {document_text(key)}: {document_text(value, 4)}"
        opening = ","
    yield "\n  }" if opening == "," else f"{opening}}}"
    for name, value in found.others().items():
        yield f",\n  {document_text(name)}: {document_text(value, 2)}"
    yield "\n}\n"


def document_text(value: Any, indent: int = 0) -> str:
    """Return a value as indented JSON, inside a document that is indented so far."""
    try:
        text = to_json_bytes(value, indent=2, inf_nan_mode="null").decode()
    except PydanticSerializationError:  # a name that is no Unicode; json can say it in escapes
        text = json.dumps(to_jsonable_python(value, inf_nan_mode="constants"), indent=2)
    return text.replace("\n", "\n" + " " * indent)


class _Gathered:
    """What is found out about a run while its trials are gone through."""

    def __init__(self) -> None:
        self._errors: dict[str, str] = {}
        self._zeroed: dict[str, str] = {}
        self._stopped: list[str] = []
        self._skipped: list[str] = []
        self._timings: dict[str, tuple[float, int]] = {}
        self._tasks: dict[str, None] = {}

    def graded(self, trials: Iterable[Any]) -> Iterator[tuple[str, Json]]:
        """Yield the trials that have a grade, each by its key."""
        for row in trials:
            self._tasks[row.task_id] = None
            key = row.task_id if row.k == 0 else f"{row.task_id}#{row.k}"
            if row.state == TrialState.FINISHED:
                if row.cause in COUNTED_AS_ZERO:
                    self._zeroed[key] = row.cause
                self._add_timing(row.timing or {})
                yield key, _graded(row)
            elif row.state == TrialState.ERROR:
                self._errors[key] = f"{row.category} ({row.cause}): {row.message}"
                if ended_by_agent(row.state, row.category):
                    self._zeroed[key] = row.cause
            elif row.state == TrialState.STOPPED:
                self._stopped.append(key)
            elif row.state == TrialState.SKIPPED:
                self._skipped.append(key)

    def _add_timing(self, timing: Json) -> None:
        for name, seconds in _breakdown(timing).items():
            if seconds is not None:
                total, count = self._timings.get(name, (0.0, 0))
                self._timings[name] = (total + seconds, count + 1)

    def others(self, *, subset: bool = False) -> Json:
        """Return what is known when all of them were seen."""
        known: Json = {
            "task_errors": self._errors,
            "average_task_breakdown": {name: total / count for name, (total, count) in self._timings.items()},
            "tasks_stopped": self._stopped or None,
            "tasks_skipped": self._skipped or None,
            "subset": list(self._tasks) if subset else None,
            "counted_as_zero": self._zeroed or None,
        }
        return {name: value for name, value in known.items() if value is not None}


def _about(run: RunView, final_evaluation: Json | None, passes: int | None) -> Json:
    """Return what is known before any trial is looked at."""
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
        "exit_codes": dict(run.exit_codes) or None,
        "worked_s": run.worked_s,
        "stop_reason": run.note if run.state == "STOPPED" else None,
        "passes": passes,
        "benchmark_arguments": run.arguments,
        "enforcement": dict(run.enforcement),
        "final_evaluation": final_evaluation,
        "score": to_json(run.score),
        "cost": to_json(run.cost) if run.cost else None,
        "tokens": to_json(run.tokens) if run.tokens else None,
        "job_id": run.job_id,
        "hooks": [_told(hook) for hook in run.hooks] or None,
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
    """Return what was told to others, and how that went; never where to."""
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


def _time(at: float | None) -> str | None:
    return None if at is None else datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
