"""Runs, their trials and attempts as people see them, and which of them are asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from valkyrie.domain import COUNTED_AS_ZERO, DEFAULT_ORG, DEFAULT_PRIORITY, INGESTED, Json, ended_by_agent

TrialDetail = Literal["scores", "trial", "result"]
"""How much is told of each trial: only what scores are compared by, all but the benchmark's own result, or
all of it."""


@dataclass(frozen=True, slots=True)
class ScoreView:
    """The four numbers, always named (see docs/concepts/score)."""

    final_score: float | None
    """The benchmark's own function over every planned task; null until the run ended."""
    score_graded: float | None
    """The same over what counts: graded trials, and those that ended by the agent's doing, which count 0.
    Known while the run goes on."""
    graded: int
    planned: int
    coverage: float
    """(graded + ended by the agent's doing) / planned."""
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
    score_confirmed: float | None = None
    """As final_score, if only what was seen in a fresh sandbox counts; null: not known."""
    confirmed: int = 0
    """Passes that were seen in a fresh sandbox."""
    unconfirmed: int | None = None
    """Passes that were only seen in the sandbox the agent left; null: not known."""
    ungraded: int = 0
    """Trials that say nothing about the agent: they failed for other reasons, or have not ended."""
    score_low: float | None = None
    """The score if every ungraded trial had failed; null where scores are no fractions."""
    score_high: float | None = None
    """The score if every ungraded trial had passed."""
    open_to_tampering: int = 0
    """Graded trials whose tests ran in the sandbox the agent left, or beside its processes."""
    final_interval: tuple[float, float] | None = None
    """95 % interval of final_score; null where it is no mean over tasks."""
    final_interval_method: str | None = None
    second_tries: int = 0
    """Trials that had counted as ended by the agent's doing, and were tried again on demand."""
    spread: Json | None = None
    """How much scores vary between tasks and between trials of a task; null where no task has two."""


@dataclass(frozen=True, slots=True)
class CostView:
    """US dollars, as agents reported them."""

    total: float
    reports: int
    """Attempts that reported; others are not in the total."""
    limit: float | None = None
    """`--max-cost`."""


@dataclass(frozen=True, slots=True)
class TokensView:
    """What all attempts of a run used of its model."""

    input: int
    cached: int
    output: int


@dataclass(frozen=True, slots=True)
class HookView:
    """One message to the outside: a Slack text, a webhook, a Lambda call, an upload."""

    kind: str
    """slack, webhook, lambda, results."""
    trigger: str
    """progress:25, ended:1, …"""
    state: str
    """pending, done, failed."""
    detail: str | None
    """What the other side said, or why it failed."""
    attempts: int
    created_at: float
    finished_at: float | None


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
    """Trials by state, all seven states present; SKIPPED where some are."""
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
    executor: Literal["alive", "away", "none"]
    """Whether an executor is at work on this store."""
    folder: str
    """Where its logs and artifacts are kept on this machine; empty where a tracker keeps them."""
    arguments: Json
    """Everything it was asked with, secrets by name only."""
    enforcement: Mapping[str, str]
    """Which isolation and limits were in force."""
    version: int
    """Grows with every change."""
    org: str = DEFAULT_ORG
    """The organisation it belongs to, by name."""
    priority: int = DEFAULT_PRIORITY
    cost: CostView | None = None
    """What its agents said they cost; None when none said anything."""
    links: Mapping[str, str] = field(default_factory=dict)
    """Where else it can be looked at: artifacts, logs."""
    hooks: Sequence[HookView] = ()
    """What was told to others about it, and how that went."""
    job_id: str | None = None
    """The job it belongs to."""
    tokens: TokensView | None = None
    """What its agents used; None when no log said anything."""
    exit_codes: Mapping[str, int] = field(default_factory=dict)
    """How many agents ended by themselves with each exit code but 0."""
    worked_s: float | None = None
    """Seconds it worked before `working_since`, pauses between its passes left out; null: not known."""
    working_since: float | None = None
    """Since when its present pass works; null while it does not."""

    @property
    def ingested(self) -> bool:
        """Whether its trials ran elsewhere: its scores are what a file said."""
        return self.provider == INGESTED

    @property
    def done(self) -> int:
        """Trials that came to an end, or were not needed; stopped ones may go on."""
        return self.counts["FINISHED"] + self.counts["ERROR"] + self.counts.get("SKIPPED", 0)


@dataclass(frozen=True, slots=True)
class RunPage:
    """Some runs, how many match in all, and where to go on."""

    runs: Sequence[RunView]
    total: int
    cursor: str | None


# Trials and attempts as they stand, their errors and logs.


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

    @property
    def counts_as_zero(self) -> bool:
        """Whether the agent brought about an end without a verdict, which has the score 0."""
        zeroed = self.state == "FINISHED" and self.cause in COUNTED_AS_ZERO
        return zeroed or ended_by_agent(self.state, self.category)


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


# Which of them are asked for.


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Which runs to list."""

    agent: str | None = None
    benchmark: str | None = None
    model: str | None = None
    dataset: str | None = None
    state: str | None = None
    label: str | None = None
    started_by: Sequence[str] = ()
    newest_first: bool = True
    limit: int = 50
    cursor: str | None = None
    job: str | None = None
    """Only runs of this job: its id, a unique beginning of it, its name, or `latest`."""


@dataclass(frozen=True, slots=True)
class TrialFilter:
    """Which trials of a run to list."""

    states: Sequence[str] = ()
    search: str | None = None
    sort: Literal["position", "task_id", "started_at", "duration", "status", "score"] = "position"
    descending: bool = False
    limit: int = 50
    offset: int = 0
    after: int | None = None
    """Only trials behind this position, in the order of positions; how many match in all is not counted."""
    detail: TrialDetail = "trial"
    failed: bool = False
    """Only trials that ended without a pass: in an error, or graded so."""


@dataclass(frozen=True, slots=True)
class LogQuery:
    """Which logs of a run."""

    task_ids: Sequence[str] | None = None
    k: int | None = None
    attempt: int | None = None
    search: str | None = None
    """Only lines that contain this."""
    follow: bool = False


def to_json(view: Any) -> Json:
    """Return a view as plain JSON data."""
    data: Json = asdict(view)
    return data
