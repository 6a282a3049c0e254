"""Runs, trials and jobs as views, for what is printed of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from valkyrie.views import RunView, ScoreView, TrialView
from valkyrie.views.jobs import JobView

STATES = ("PENDING", "BUILDING", "IN_PROGRESS", "EVALUATING", "FINISHED", "ERROR", "STOPPED")
FULL = ScoreView(1.0, 1.0, 12, 12, 1.0, {}, False, True, 12, (0.757, 1.0), "wilson", 1.0, 12, 0)
PROVISIONAL = ScoreView(
    0.75, 0.9, 10, 12, 10 / 12, {"infrastructure": 2}, True, True, 9, (0.596, 0.982), "wilson", 0.75, 9, 0
)
HALFWAY = ScoreView(None, 0.8, 5, 12, 5 / 12, {}, False, True, 4, (0.376, 0.964), "wilson")


def make_run(run_id: str = "run-aaaa1111", **changed: Any) -> RunView:
    counts = dict.fromkeys(STATES, 0) | changed.pop("counts", {"FINISHED": 12})
    run = RunView(
        id=run_id,
        benchmark="quickstart",
        dataset="default",
        agent="oracle",
        model=None,
        label=None,
        provider="local",
        state="FINISHED",
        counts=counts,
        total=12,
        concurrency=5,
        created_at=1_700_000_000.0,
        started_at=1_700_000_001.0,
        finished_at=1_700_000_066.0,
        started_by=None,
        score=FULL,
        error=None,
        note=None,
        executor="alive",
        folder="/data/runs/" + run_id,
        arguments={"agent": "oracle"},
        enforcement={"memory": "cgroup v2"},
        version=1,
    )
    return replace(run, **changed)


def make_trial(task_id: str = "fix-the-bug", **changed: Any) -> TrialView:
    trial = TrialView(
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
        started_at=1_700_000_001.0,
        finished_at=1_700_000_004.2,
        timing={},
        digest="d" * 64,
    )
    return replace(trial, **changed)


LOST = ScoreView(0.0, 0.0, 3, 4, 0.75, {"infrastructure": 1}, True, True, 0, (0.0, 0.56), "wilson")


def make_job(job_id: str = "job-aaaa1111", **changed: Any) -> JobView:
    runs = changed.pop("runs", None) or [
        make_run("run-one", agent="codex", model="gpt-5", total=4, counts={"FINISHED": 4}),
        make_run("run-two", agent="nop", total=4, counts={"FINISHED": 3, "ERROR": 1}, score=LOST),
    ]
    job = JobView(
        id=job_id,
        name="nightly",
        state="completed",
        created_at=1_700_000_000.0,
        started_by=None,
        concurrency=10,
        metadata={},
        source={"type": "benchmark", "benchmark_name": "quickstart"},
        trials=2,
        agent_timeout=None,
        timeout_multiplier=1.0,
        ends_at=None,
        runs=runs,
        version=1,
    )
    return replace(job, **changed)


def trials_of_two() -> dict[str, list[TrialView]]:
    """codex passes 3 of 4 and half of one; nop fails 3 and has an error."""
    return {
        "run-one": [
            make_trial("add", k=0),
            make_trial("fix/it", k=0, score=0.5, passed=False),
            make_trial("add", k=1),
            make_trial("fix/it", k=1),
        ],
        "run-two": [
            make_trial("add", k=0, score=0.0, passed=False),
            make_trial("fix/it", k=0, score=0.0, passed=False, exit_reason="TIMEOUT", exit_code=124),
            make_trial("add", k=1, score=0.0, passed=False),
            make_trial(
                "fix/it", k=1, state="ERROR", score=None, passed=None, category="infrastructure",
                cause="sandbox_failed", message="no room", exit_code=None,
            ),
        ],
    }  # fmt: skip
