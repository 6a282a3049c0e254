"""Runs as they stand: score, cost, progress, whom they told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from valkyrie.nouns import DEFAULT_ORG, DEFAULT_PRIORITY, INGESTED, Json


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
