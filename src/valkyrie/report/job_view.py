"""A job's rows as the view people see; its state is what its runs say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from valkyrie.job_views import JobView
from valkyrie.nouns import JobState, RunState
from valkyrie.views import RunView


def job_view(row: Any, runs: Sequence[RunView], *, org: str) -> JobView:
    """One job with its runs, in order."""
    asked = row.arguments
    template = asked["template"]
    return JobView(
        id=row.id,
        name=row.name,
        state=job_state(runs, row.ends_at).value,
        created_at=row.created_at,
        started_by=row.started_by,
        concurrency=row.concurrency,
        metadata=row.about,
        source=asked["source"],
        trials=template["trials"],
        agent_timeout=template["agent_timeout"] or template["default_agent_timeout"],
        timeout_multiplier=template["timeout_multiplier"],
        ends_at=row.ends_at,
        runs=runs,
        version=row.version + sum(run.version for run in runs),
        org=org,
        digest=asked.get("digest"),
        stop_rule=row.stop_rule,
        decision=row.decision,
    )


def job_state(runs: Sequence[RunView], ends_at: float | None) -> JobState:
    """Where a job stands, from its runs."""
    states = {RunState(run.state) for run in runs}
    if not states:
        return JobState.CANCELLED  # its runs were deleted one by one
    if not all(state.terminal for state in states):
        begun = any(run.started_at is not None for run in runs)
        return JobState.RUNNING if begun else JobState.QUEUED
    if RunState.ERROR in states:
        return JobState.FAILED
    if RunState.STOPPED in states:
        return JobState.TIMEOUT if _ran_out(runs, ends_at) else JobState.CANCELLED
    return JobState.COMPLETED


def _ran_out(runs: Sequence[RunView], ends_at: float | None) -> bool:
    """Whether what was stopped ended after the job's time was over."""
    ended = [run.finished_at for run in runs if run.state == RunState.STOPPED and run.finished_at]
    return ends_at is not None and bool(ended) and max(ended) >= ends_at
