"""Runs, their trials and attempts, and gradings of runs, as people see them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from valkyrie.domain import DEFAULT_ORG, DEFAULT_PRIORITY, INGESTED, Json


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
    missing: Mapping[str, str] = field(default_factory=dict)
    """Secrets without a value, among the problems: environment variable → name."""
    shows: Json | None = None
    """Which true gaps between agents it shows 4 times in 5: `low` to `high`, of 1, and with `more` tasks."""
    variables: Sequence[str] = ()
    """Variables of the user's that tasks ask for and are given; the agent may see them."""
    destinations: Mapping[str, str] = field(default_factory=dict)
    """Secret → the address it is sent to, or who gets it."""


@dataclass(frozen=True, slots=True)
class StartedRun:
    """A run that was stored and handed to an executor."""

    run: RunView
    notices: Sequence[str]


@dataclass(frozen=True, slots=True)
class ResultsLink:
    """Where a results file was uploaded to."""

    url: str
    """s3://bucket/key, or a file's address."""
    download_url: str | None
    """Good for a day, for whoever has it."""
    console_url: str | None = None


@dataclass(frozen=True, slots=True)
class IngestedRun:
    """What became of one run that came about elsewhere."""

    run_id: str
    """Here."""
    name: str
    """For people."""
    status: str
    """`stored`, `known` (it was here already) or `replaced`; `would be …` where nothing was to be stored."""
    trials: int
    errors: int
    """Trials that ended without a grade."""
    file: str
    """The file that says so."""
    notices: Sequence[str] = ()


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


# Gradings of a run: kept work graded again, which of them is in use, how two of them differ.


@dataclass(frozen=True, slots=True)
class RegradeRequest:
    """How kept work is graded again; without `tests` and `judge` as it was graded before."""

    tests: str | None = None
    """A folder of task directories, or a benchmark: its tests are used for the tasks of the same id."""
    judge: str | None = None
    """The model that judges the trials of an eval instead."""
    task_ids: Sequence[str] | None = None
    dry_run: bool = False
    """Say what would be graded again, and change nothing."""


@dataclass(frozen=True, slots=True)
class TrialLeftOut:
    """A trial that keeps its verdict, and why it cannot be graded again."""

    task_id: str
    k: int
    reason: str


@dataclass(frozen=True, slots=True)
class RegradeView:
    """What is graded again."""

    run: RunView
    number: int
    """Of the grading; 0 is the one the run's own trials made."""
    base: int
    """The grading in use before, whose verdicts the other trials keep."""
    trials: Sequence[tuple[str, int]]
    """(task id, k) of those that are graded again."""
    left_out: Sequence[TrialLeftOut]
    notices: Sequence[str]
    started: bool
    """False where nothing was to be changed."""


@dataclass(frozen=True, slots=True)
class GradingView:
    """One grading of a run."""

    number: int
    created_at: float
    finished_at: float | None
    started_by: str | None
    tests: str | None
    judge: str | None
    trials: int | None
    """How many trials it graded again; None for grading 0."""
    base: int | None
    """The grading whose verdicts the other trials keep."""
    in_use: bool
    state: Literal["ended", "under way", "dropped", "outdated"]
    """outdated: agents ran again after it, so that it is not of the run's present work."""
    final_score: float | None
    score_graded: float | None
    score_confirmed: float | None


@dataclass(frozen=True, slots=True)
class GradingChange:
    """One trial that two gradings judge differently."""

    task_id: str
    k: int
    kind: Literal["now passes", "now fails", "score", "now graded", "no longer graded"]
    score_a: float | None
    score_b: float | None
    passed_a: bool | None
    passed_b: bool | None
    attempt_a: int | None
    attempt_b: int | None


@dataclass(frozen=True, slots=True)
class GradingComparison:
    """Two gradings of one run beside each other."""

    run_id: str
    a: GradingView
    b: GradingView
    trials: int
    same: int
    """Trials with the same verdict in both."""
    changes: Sequence[GradingChange]
    fraction: bool
    """Scores are 0..1 and print as per cent."""
