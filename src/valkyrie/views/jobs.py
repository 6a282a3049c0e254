"""What the verbs about jobs take and give: several runs started together and compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from valkyrie.domain import DEFAULT_ORG, Json
from valkyrie.views.requests import AtLeastOne, ErrorCategory, PlanView, RunRequest
from valkyrie.views.runs import RunView

DEFAULT_TIMEOUT_S = 7200.0
DEFAULT_CONCURRENCY = 10
DEFAULT_ERROR_RATE = 0.05


@dataclass(frozen=True, slots=True)
class JobAgent:
    """One of the agents of a job, `agent[:model]`."""

    agent: str
    model: str | None = None
    kwargs: Mapping[str, str] = field(default_factory=dict)
    """Parameters of this agent alone, over those of all."""

    @property
    def said(self) -> str:
        """As it is written on a command line."""
        return self.agent if self.model is None else f"{self.agent}:{self.model}"


@dataclass(frozen=True, slots=True)
class JobRequest:
    """Agents × tasks × trials, asked for."""

    agents: Sequence[JobAgent]
    template: RunRequest
    """What all its runs have in common; its agent, model and (for scenarios) benchmark are left out."""
    scenarios: Sequence[str] = ()
    """`task` or `benchmark[@dataset]/task`, instead of the template's benchmark."""
    name: str | None = None
    concurrency: int = DEFAULT_CONCURRENCY
    """Trials at once, of all its runs together."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    time_limit: float | None = None
    """Seconds after which nothing more of the job begins; None is no limit."""
    stop_when_decided: bool = False
    """Run no trials that cannot change who is ahead: see docs/how-to/run-a-benchmark-job."""
    margin: float | None = None
    """With stop_when_decided: that agents are no further apart than this, of 1, is an answer as well."""
    error_rate: float = DEFAULT_ERROR_RATE
    """With stop_when_decided: how often an answer may be wrong, over all looks and pairs together."""
    benchmarks: Sequence[str] = ()
    """Several benchmarks instead of the template's one; each agent has a run on each."""


@dataclass(frozen=True, slots=True)
class JobChange:
    """What is different when a job goes on. Everything left out stays as it was."""

    agents: Sequence[JobAgent] = ()
    """Added to those it has."""
    scenarios: Sequence[str] = ()
    """Tasks added to those it has; `all` is every task of its benchmark."""
    trials: int | None = None
    """Trials of each task; never fewer than before."""
    concurrency: int | None = None
    agent_timeout: float | None = None
    timeout_multiplier: float | None = None
    time_limit: float | None = None
    """Counted from now."""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobStop:
    """How to stop a job."""

    force: bool = False
    """Trials under way are killed, not finished."""


@dataclass(frozen=True, slots=True)
class JobRetry:
    """Which errors are tried again."""

    category: ErrorCategory | None = None
    concurrency: AtLeastOne | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    """For the benchmark's service; given again, because they are not stored."""


@dataclass(frozen=True, slots=True)
class JobView:
    """One job as it stands."""

    id: str
    name: str
    state: str
    """initializing, queued, running, completed, failed, cancelled, timeout: derived from its runs."""
    created_at: float
    started_by: str | None
    concurrency: int
    metadata: Mapping[str, str]
    source: Mapping[str, object]
    """`{"type": "benchmark", "benchmark_name": …}`, `{"type": "benchmarks", "benchmark_names": […]}`,
    `{"type": "scenarios", "scenario_ids": […]}` or `{"type": "eval", "evals": […]}`."""
    trials: int
    """Of each task."""
    agent_timeout: float | None
    timeout_multiplier: float
    ends_at: float | None
    """When its time limit is over."""
    runs: Sequence[RunView]
    """In the order their agents were named."""
    version: int
    """Grows with every change of any of its runs."""
    org: str = DEFAULT_ORG
    digest: str | None = None
    """Of its plan: every trial, and when it stops; None where it grew, or an older version planned it."""
    stop_rule: Mapping[str, object] | None = None
    """When it is decided: `error` (rate), `margin`, `comparisons` that share it; None: it runs whole."""
    decision: Json | None = None
    """What was decided by that rule: `pairs`, and what each run was spared in `skipped`; None: nothing."""

    @property
    def ended(self) -> bool:
        """Nothing more happens unless a person asks."""
        return self.state in ENDED


ENDED = ("completed", "failed", "cancelled", "timeout")


@dataclass(frozen=True, slots=True)
class StartedJob:
    """A job that was stored and handed to an executor."""

    job: JobView
    notices: Sequence[str]


@dataclass(frozen=True, slots=True)
class JobPlan:
    """What a job would run: the answer of --dry-run."""

    plans: Sequence[PlanView]
    problems: Sequence[str]
    """Of all its runs, each once."""
    digest: str | None = None
    """Of every trial, and of when it stops."""
    stop_rule: Mapping[str, object] | None = None
    """When it is decided: `error` (rate), `margin`, `comparisons`; None: it runs whole."""


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs to list, newest first."""

    since: float | None = None
    """Created at this time or later."""
    states: Sequence[str] = ()
    name: str | None = None
    limit: int = 50
    cursor: str | None = None


@dataclass(frozen=True, slots=True)
class JobPage:
    """Some jobs, and where to go on."""

    jobs: Sequence[JobView]
    cursor: str | None
