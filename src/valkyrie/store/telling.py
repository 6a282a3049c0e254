"""What may be told about a run to the outside, as it stood at a moment. Nothing that is not named here is."""

from __future__ import annotations

import json
from typing import Any

from valkyrie.nouns import Json, RunState
from valkyrie.store.schema import ERROR_COUNTERS
from valkyrie.store.scores import run_scores, state_counts

NAMES = ("benchmark", "dataset", "agent", "model", "label", "started_by", "created_at")
"""Columns of a run that stay as they are."""
MOST_ERROR = 2000


def progress(row: Any) -> tuple[int, int]:
    """(trials that ended, however; all trials)."""
    done = row.n_finished + row.n_error + row.n_stopped + row.n_skipped
    return done, done + row.n_pending + row.n_building + row.n_in_progress + row.n_evaluating


def snapshot(row: Any, now: float) -> Json:
    """A run's state, counts and score at this moment: it may have moved on when the message is sent."""
    done, total = progress(row)
    errors = {category.value: getattr(row, name) for category, name in ERROR_COUNTERS.items()}
    score = run_scores(row)
    return {
        "at": now,
        "state": row.state,
        "done": done,
        "total": total,
        "repeated": row.arguments.get("trials", 1) > 1,
        "counts": state_counts(row),
        "score": {
            "final_score": score.final_score,
            "score_graded": score.score_graded,
            "score_confirmed": score.score_confirmed,
            "score_low": score.score_low,
            "score_high": score.score_high,
            "graded": score.graded,
            "planned": total,
            "ungraded": score.ungraded,
            "coverage": score.coverage,
            "confirmed": score.confirmed,
            "unconfirmed": score.unconfirmed,
            "open_to_tampering": score.open_to_tampering,
            "errors": {name: number for name, number in errors.items() if number},
            "fraction": bool(row.fraction),
        },
        "error": row.error[:MOST_ERROR] if row.error else None,
        "stop_reason": row.note if row.state == RunState.STOPPED else None,
        "exit_codes": row.exit_codes or {},
        "worked_s": row.worked_s + (now - row.working_since if row.working_since else 0.0),
        "started_at": row.started_at,
        "finished_at": row.finished_at,
    }


def packed(told: Json, note: str | None) -> str:
    """What a pending row's `detail` holds: what it will tell, and why it has not yet."""
    return json.dumps({"told": told, "note": note}, separators=(",", ":"))


def unpacked(detail: str | None) -> tuple[Json, str | None]:
    """(what it will tell, why it has not yet) of a pending row."""
    held = json.loads(detail or "{}")
    return held.get("told", {}), held.get("note")
