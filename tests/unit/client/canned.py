"""Views as a tracker sends them."""

from __future__ import annotations

from typing import Any

from valkyrie.views import RunView, ScoreView, TrialView, to_json

STATES = ("PENDING", "BUILDING", "IN_PROGRESS", "EVALUATING", "FINISHED", "ERROR", "STOPPED")
RUN = "3f2a0000-0000-4000-8000-000000000001"


def run(version: int = 1, state: str = "IN_PROGRESS", **changed: Any) -> dict[str, Any]:
    view = RunView(
        id=RUN,
        benchmark="quickstart",
        dataset="default",
        agent="oracle",
        model=None,
        label=None,
        provider="null",
        state=state,
        counts=dict.fromkeys(STATES, 0),
        total=2,
        concurrency=5,
        created_at=1_700_000_000.0,
        started_at=None,
        finished_at=None,
        started_by="ann",
        score=ScoreView(None, None, 0, 2, 0.0, {}, False, True, 0, (0.1, 0.9), "wilson"),
        error=None,
        note=None,
        executor="alive",
        folder="/data/runs/x",
        arguments={"agent": "oracle"},
        enforcement={},
        version=version,
    )
    return {**to_json(view), **changed}


def trial(task_id: str = "a", **changed: Any) -> dict[str, Any]:
    view = TrialView(
        task_id=task_id,
        k=0,
        state="FINISHED",
        attempts=1,
        score=1.0,
        passed=True,
        category=None,
        cause=None,
        message=None,
        exit_code=0,
        exit_reason=None,
        retry_at=None,
        started_at=1.0,
        finished_at=2.0,
        timing={"agent": 1.0},
        digest="d" * 64,
    )
    return {**to_json(view), **changed}


def attempt(number: int = 1, outcome: str | None = "graded") -> dict[str, Any]:
    empty = (
        "category",
        "cause",
        "message",
        "exit_code",
        "exit_reason",
        "score",
        "finished_at",
        "log",
        "artifacts",
    )
    plain: dict[str, Any] = dict.fromkeys(empty)
    return {**plain, "number": number, "outcome": outcome, "phase": "grade", "started_at": 1.0, "timing": {}}
