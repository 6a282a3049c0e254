"""What the verbs take and give: plain frozen data, the same in embedded mode and over HTTP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from valkyrie.nouns import Json

AgentFailureRule = Literal["grade", "error"]


@dataclass(frozen=True, slots=True)
class RunRequest:
    """One agent × model × benchmark × dataset, asked for."""

    agent: str
    benchmark: str
    model: str | None = None
    dataset: str = "default"
    concurrency: int = 5
    trials: int = 1
    """Repetitions of each task."""
    kwargs: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)
    """Environment variable → secret name; over what the contract says."""
    task_ids: Sequence[str] | None = None
    slice: str | None = None
    label: str | None = None
    provider: str = "local"
    headers: Mapping[str, str] = field(default_factory=dict)
    """Sent to a benchmark service with every request; values are handed on, never stored."""
    ignore_custom_services: bool = False
    host_image: bool = False
    on_agent_failure: AgentFailureRule = "grade"
    keep_sandbox: bool = False
    timeout_multiplier: float = 1.0
    max_attempts: int | None = None
    """Attempts per trial where the policy allows retries; None is the policy's own number."""


@dataclass(frozen=True, slots=True)
class ScoreView:
    """The three numbers, always named (see docs/concepts/score)."""

    final_score: float | None
    """The benchmark's own function over every planned task; null until the run ended."""
    score_graded: float | None
    """The same over graded trials only; known while the run goes on."""
    graded: int
    planned: int
    coverage: float
    """graded / planned."""
    errors: Mapping[str, int]
    """Open errors by category."""
    provisional: bool
    """An infrastructure error is open: lead with score_graded."""
    fraction: bool
    """Scores are 0..1 and print as per cent."""
    passed: int
    """Graded trials that passed."""
    interval: tuple[float, float] | None = None
    """95 % interval of score_graded."""
    interval_method: str | None = None


@dataclass(frozen=True, slots=True)
class RunView:
    """One run as it stands."""

    id: str
    benchmark: str
    dataset: str
    agent: str
    model: str | None
    label: str | None
    provider: str
    state: str
    counts: Mapping[str, int]
    """Trials by state, all seven states present."""
    total: int
    concurrency: int
    created_at: float
    """Seconds since the epoch, as all times here."""
    started_at: float | None
    finished_at: float | None
    started_by: str | None
    score: ScoreView
    error: str | None
    note: str | None
    """What the run is waiting for, and the command that goes on, if anything."""
    executor: Literal["alive", "none"]
    """Whether an executor is at work on this store."""
    folder: str
    """Where its logs and artifacts are kept."""
    arguments: Json
    """Everything it was asked with, secrets by name only."""
    enforcement: Mapping[str, str]
    """Which isolation and limits were in force."""
    version: int
    """Grows with every change."""

    @property
    def done(self) -> int:
        """Trials that ended, however."""
        return self.counts["FINISHED"] + self.counts["ERROR"] + self.counts["STOPPED"]


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


@dataclass(frozen=True, slots=True)
class PlanView:
    """What would run: the answer of --dry-run."""

    agent: str
    agent_digest: str
    model: str | None
    benchmark: str
    dataset: str
    provider: str
    isolation: str
    enforcement: Mapping[str, str]
    trials: Sequence[tuple[str, int, str]]
    """(task id, k, digest)."""
    secrets: Sequence[str]
    """Environment variables that will be filled."""
    problems: Sequence[str]
    """All that stands in the way, in one list; empty means it would start."""
    notices: Sequence[str]


@dataclass(frozen=True, slots=True)
class StartedRun:
    """A run that was stored and handed to an executor."""

    run: RunView
    notices: Sequence[str]


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Which runs to list."""

    agent: str | None = None
    benchmark: str | None = None
    model: str | None = None
    dataset: str | None = None
    state: str | None = None
    label: str | None = None
    newest_first: bool = True
    limit: int = 50
    cursor: str | None = None


@dataclass(frozen=True, slots=True)
class RunPage:
    """Some runs, how many match in all, and where to go on."""

    runs: Sequence[RunView]
    total: int
    cursor: str | None


@dataclass(frozen=True, slots=True)
class TrialFilter:
    """Which trials of a run to list."""

    states: Sequence[str] = ()
    search: str | None = None
    sort: Literal["position", "task_id", "started_at", "duration", "status"] = "position"
    descending: bool = False
    limit: int = 50
    offset: int = 0


@dataclass(frozen=True, slots=True)
class DiskView:
    """Where the bytes are."""

    data_folder: str
    total_bytes: int
    free_bytes: int
    parts: Sequence[tuple[str, int]]
    """(what, bytes): database, runs, agents, caches, …"""
    runs: Sequence[tuple[str, str, int]]
    """(run id, state, bytes), largest first."""


def to_json(view: Any) -> Json:
    """A view as plain JSON data."""
    data: Json = asdict(view)
    return data
