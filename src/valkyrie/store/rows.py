"""Types of the rows that are read whole from the store's tables (`schema`). For type checkers only."""

from __future__ import annotations

from typing import Any, Protocol

from valkyrie.domain import Json


class RunRow(Protocol):
    """One run."""

    id: str
    org_id: str
    state: str
    agent: str
    model: str | None
    benchmark: str
    dataset: str
    label: str | None
    provider: str
    started_by: str | None
    key_id: str | None
    concurrency: int
    fraction: bool
    created_at: float
    started_at: float | None
    finished_at: float | None
    leased_at: float | None
    error: str | None
    note: str | None
    priority: int
    max_cost: float | None
    abort_after: int | None
    errors_before: int
    stop_reason: str | None
    worked_s: float
    working_since: float | None
    exit_codes: Json | None
    passes: int
    endings: int
    notify: Json | None
    place: Json | None
    arguments: Json
    agent_frozen: Json
    benchmark_source: Json
    enforcement: Json
    final_score: float | None
    score_graded: float | None
    score_confirmed: float | None
    final_evaluation: Json | None
    n_pending: int
    n_building: int
    n_in_progress: int
    n_evaluating: int
    n_finished: int
    n_error: int
    n_stopped: int
    n_skipped: int
    e_agent: int
    e_benchmark: int
    e_infrastructure: int
    e_user: int
    e_internal: int
    n_passed: int
    n_partial: int
    score_sum: float
    n_confirmed: int
    confirmed_sum: float
    n_verified: int
    n_open: int
    grading: int
    n_costed: int
    cost_sum: float
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    version: int
    job_id: str | None
    job_position: int | None
    bound: str | None
    in_turn: bool


class ViewedTrialRow(Protocol):
    """What people see of a trial."""

    position: int
    task_id: str
    k: int
    digest: str
    family: str | None
    state: str
    attempts: int
    not_before: float | None
    score: float | None
    passed: bool | None
    category: str | None
    cause: str | None
    message: str | None
    exit_code: int | None
    exit_reason: str | None
    result: Json | None
    timing: Json | None
    cost: float | None
    usage: Json | None
    started_at: float | None
    finished_at: float | None
    confirmed: bool | None
    score_confirmed: float | None
    evidence: Json | None

    def __getitem__(self, columns: slice, /) -> tuple[Any, ...]: ...


class TrialRow(ViewedTrialRow, Protocol):
    """All of a trial."""

    id: int
    run_id: str
    failures: int
    executor_id: str | None
    epoch: int
    cpus: float | None
    memory_mb: int | None
    version: int
    saved: Json | None


class AttemptRow(Protocol):
    """One attempt."""

    trial_id: int
    number: int
    executor_id: str
    epoch: int
    phase: str
    outcome: str | None
    category: str | None
    cause: str | None
    message: str | None
    exit_code: int | None
    exit_reason: str | None
    score: float | None
    result: Json | None
    timing: Json | None
    cost: float | None
    usage: Json | None
    passage: int
    passed: bool | None
    confirmed: bool | None
    score_confirmed: float | None
    evidence: Json | None
    grading: int
    started_at: float
    finished_at: float | None


class JobRow(Protocol):
    """One job."""

    id: str
    org_id: str
    name: str
    started_by: str | None
    created_at: float
    concurrency: int
    ends_at: float | None
    about: Json
    arguments: Json
    stop_rule: Json | None
    decision: Json | None
    version: int


class ExecutorRow(Protocol):
    """One executor."""

    id: str
    host: str
    pid: int
    version: str
    started_at: float
    heartbeat_at: float
    expires_at: float
    ended_at: float | None
    home: str
    active: int
    """Trials it holds."""


class RegradeRow(Protocol):
    """One grading of a run."""

    run_id: str
    number: int
    created_at: float
    started_by: str | None
    arguments: Json
    final_score: float | None
    score_graded: float | None
    score_confirmed: float | None
    final_evaluation: Json | None
    finished_at: float | None
