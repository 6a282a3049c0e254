"""What the verbs take and give: plain frozen data, the same in embedded mode and over HTTP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from valkyrie.nouns import DEFAULT_ORG, DEFAULT_PRIORITY, Json

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
    priority: int = DEFAULT_PRIORITY
    """0 (first) to 4 (last)."""
    max_cost: float | None = None
    """US dollars; when reported costs reach it, what has not begun is stopped."""
    lambda_function: str | None = None
    """AWS Lambda function called after the run ended."""
    webhook: str | None = None
    """Name of the secret that holds a Slack webhook's URL."""
    intervals: Sequence[int] = ()
    """Progress percentages that send a message."""
    webhook_url: str | None = None
    """Where signed JSON messages are sent."""
    webhook_key: str | None = None
    """Name of the secret those messages are signed with."""
    benchmark_url: str | None = None
    """Where the benchmark's service is, as the caller has it configured."""
    store_secrets: bool = True
    """Values only the caller's own environment has may be kept, encrypted, by the tracker."""
    provider_secret: str | None = None
    """Name of the secret that says how to reach the provider, as the caller has it configured."""
    env_vars: Mapping[str, str] = field(default_factory=dict)
    """Environment of the agent's commands; not for secrets."""
    agent_timeout: float | None = None
    """Seconds an agent may take, whatever the task says."""
    default_agent_timeout: float | None = None
    """The same for tasks that say nothing."""
    model_url: str | None = None
    """Where the agent's model is served, if not at its vendor's."""
    benchmark_options: Mapping[str, Any] = field(default_factory=dict)
    """What an eval spec is read with; other benchmarks take none."""
    in_turn: bool = False
    """Trials of one task follow one another."""


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
class CostView:
    """US dollars, as agents reported them."""

    total: float
    reports: int
    """Attempts that reported; others are not in the total."""
    limit: float | None = None
    """`--max-cost`."""


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

    @property
    def done(self) -> int:
        """Trials that came to an end; stopped ones may go on."""
        return self.counts["FINISHED"] + self.counts["ERROR"]


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
    disposition: Literal["retryable", "chronic", "fix first"] = "retryable"
    """chronic: failed alike in two passes or more; fix first: something must be changed before a retry."""
    passes: int = 1
    """In how many passes (start, each retry or resume) the worst of them failed alike."""


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
    started_by: Sequence[str] = ()
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
class AgentView:
    """One pushed agent."""

    name: str
    modified_at: float
    bytes: int
    digest: str | None
    """None where its archive is damaged, or only its name and size are known."""
    origin: str | None = None
    """Where it was installed from, commit included."""


@dataclass(frozen=True, slots=True)
class SecretView:
    """A secret that is kept; never its value."""

    name: str
    created_at: float | None = None
    created_by: str | None = None


@dataclass(frozen=True, slots=True)
class BenchmarkView:
    """A benchmark that can be named."""

    name: str
    description: str
    tasks: int | None
    url: str | None = None
    """Of a service."""
    source: str = "shipped"
    """Who says so: shipped, plugin, custom, registry, or `added: ` and what it was made from."""


@dataclass(frozen=True, slots=True)
class TasksRequest:
    """Which tasks of a benchmark: the question behind `benchmark tasks`."""

    benchmark: str
    dataset: str = "default"
    headers: Mapping[str, str] = field(default_factory=dict)
    ignore_custom_services: bool = False
    benchmark_url: str | None = None


@dataclass(frozen=True, slots=True)
class TasksView:
    """Task ids in the benchmark's own order."""

    task_ids: Sequence[str]
    datasets: Sequence[str]


@dataclass(frozen=True, slots=True)
class ResultsLink:
    """Where a results file was uploaded to."""

    url: str
    """s3://bucket/key, or a file's address."""
    download_url: str | None
    """Good for a day, for whoever has it."""
    console_url: str | None = None


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """One open run in the queue."""

    run_id: str
    agent: str
    benchmark: str
    priority: int
    state: str
    pending: int
    active: int
    concurrency: int
    created_at: float
    started_by: str | None
    note: str | None


@dataclass(frozen=True, slots=True)
class ExecutorView:
    """One executor that lives."""

    id: str
    host: str
    pid: int
    version: str
    started_at: float
    heartbeat_at: float
    active: int
    """Trials it holds."""


@dataclass(frozen=True, slots=True)
class QueueView:
    """What waits, what runs, and who works."""

    entries: Sequence[QueueEntry]
    """In the order they are served."""
    executors: Sequence[ExecutorView]


@dataclass(frozen=True, slots=True)
class LogLine:
    """One piece of a run's logs."""

    task_id: str
    k: int
    attempt: int
    text: str


@dataclass(frozen=True, slots=True)
class LogQuery:
    """Which logs of a run."""

    task_ids: Sequence[str] | None = None
    k: int | None = None
    attempt: int | None = None
    search: str | None = None
    """Only lines that contain this."""
    follow: bool = False


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
