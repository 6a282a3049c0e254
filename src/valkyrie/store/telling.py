"""What may be told about a run to the outside, as it stood at a moment. Nothing that is not named here is."""

from __future__ import annotations

import json
import math
from typing import Any

from valkyrie.nouns import Json, RunState
from valkyrie.store.schema import ERROR_COUNTERS, STATE_COUNTERS

NAMES = ("benchmark", "dataset", "agent", "model", "label", "started_by", "created_at")
"""Columns of a run that stay as they are."""
MOST_ERROR = 2000


def progress(row: Any) -> tuple[int, int]:
    """(trials that ended, however; all trials)."""
    done = row.n_finished + row.n_error + row.n_stopped
    return done, done + row.n_pending + row.n_building + row.n_in_progress + row.n_evaluating


def snapshot(row: Any, now: float) -> Json:
    """A run's state, counts and score at this moment: it may have moved on when the message is sent."""
    done, total = progress(row)
    ended = RunState(row.state).terminal
    errors = {category.value: getattr(row, name) for category, name in ERROR_COUNTERS.items()}
    graded = row.n_finished
    so_far = row.score_sum / graded if graded and row.fraction else None
    return {
        "at": now,
        "state": row.state,
        "done": done,
        "total": total,
        "repeated": row.arguments.get("trials", 1) > 1,
        "counts": {state.value: getattr(row, name) for state, name in STATE_COUNTERS.items()},
        "score": {
            "final_score": _finite(row.final_score) if ended else None,
            "score_graded": _finite(row.score_graded if ended and row.score_graded is not None else so_far),
            "graded": graded,
            "planned": total,
            "coverage": graded / total if total else 0.0,
            "errors": {name: number for name, number in errors.items() if number},
            "fraction": bool(row.fraction),
        },
        "error": row.error[:MOST_ERROR] if row.error else None,
        "started_at": row.started_at,
        "finished_at": row.finished_at,
    }


def _finite(number: float | None) -> float | None:
    """JSON has no other numbers."""
    return number if number is not None and math.isfinite(number) else None


def packed(told: Json, note: str | None) -> str:
    """What a pending row's `detail` holds: what it will tell, and why it has not yet."""
    return json.dumps({"told": told, "note": note}, separators=(",", ":"))


def unpacked(detail: str | None) -> tuple[Json, str | None]:
    """(what it will tell, why it has not yet) of a pending row."""
    held = json.loads(detail or "{}")
    return held.get("told", {}), held.get("note")
