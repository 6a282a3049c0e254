"""Trials and attempts as they stand, their errors and logs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from valkyrie.nouns import Json


@dataclass(frozen=True, slots=True)
class UsageView:
    """What an attempt used of its model, as its agent's log says."""

    input_tokens: int
    """Cached ones included."""
    cached_tokens: int
    output_tokens: int
    cost: float | None
    """US dollars."""
    cost_source: str | None
    """`agent`, or `prices` with the date they are of."""
    model: str | None
    steps: int
    """Times the model was asked."""


@dataclass(frozen=True, slots=True)
class AttemptView:
    """One execution of a trial."""

    number: int
    outcome: str | None
    """graded, failed, lost, stopped; None while it runs."""
    phase: str
    category: str | None
    cause: str | None
    message: str | None
    exit_code: int | None
    exit_reason: str | None
    score: float | None
    started_at: float
    finished_at: float | None
    timing: Mapping[str, float]
    """Seconds: build, setup, install, agent, collect, grade, total."""
    log: str | None
    """Path of its log."""
    artifacts: str | None
    """Folder of what was kept."""
    usage: UsageView | None = None
    passed: bool | None = None
    confirmed: bool | None = None
    score_confirmed: float | None = None
    evidence: Json | None = None
    """How its score was verified (docs/reference/results-file)."""


@dataclass(frozen=True, slots=True)
class TrialView:
    """One trial as it stands; numbers are those of its last attempt."""

    task_id: str
    k: int
    state: str
    attempts: int
    score: float | None
    passed: bool | None
    category: str | None
    cause: str | None
    message: str | None
    exit_code: int | None
    exit_reason: str | None
    retry_at: float | None
    """When the next attempt may start, while backing off."""
    started_at: float | None
    finished_at: float | None
    timing: Mapping[str, float]
    digest: str
    usage: UsageView | None = None
    """Of its last attempt."""
    cost: float | None = None
    """US dollars, of all its attempts."""
    confirmed: bool | None = None
    """The score was seen in a fresh sandbox; False: only in the one the agent left; None: not known."""
    score_confirmed: float | None = None
    """The score that was seen in a fresh sandbox; 0 where none was."""
    evidence: Json | None = None
    """How its score was verified (docs/reference/results-file)."""
    position: int = 0
    """Its place in the run's order."""
    family: str | None = None
    """The family its task belongs to: tasks of one family resemble each other."""
    result: Json | None = None
    """What the benchmark said of it, where that was asked for."""
    reason: str | None = None
    """What the grader said last, where it gave no pass."""


@dataclass(frozen=True, slots=True)
class ErrorGroup:
    """Alike errors of a run."""

    category: str
    cause: str
    message: str
    count: int
    retryable: bool
    task_ids: Sequence[str]
    """At most five."""
    retrying: bool = False
    """Not open yet: these trials are tried again by themselves, after a pause."""
    disposition: Literal["retryable", "chronic", "fix first", "counted as 0"] = "retryable"
    """chronic: failed alike in two passes or more; fix first: something must be changed before a retry;
    counted as 0: no open error, the agent brought it about and these trials have the score 0."""
    passes: int = 1
    """In how many passes (start, each retry or resume) the worst of them failed alike."""
    tasks: int | None = None
    """How many tasks these trials are of; None where an older tracker does not say."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """One piece of a run's logs."""

    task_id: str
    k: int
    attempt: int
    text: str
