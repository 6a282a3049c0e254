"""The requests of the verbs: what the command line, the Python client, the HTTP API and the tracker share.

A verb's parameters are spelled here and as options of its command, nowhere else. The HTTP API reads these
classes as bodies; bounds that go beyond a type are part of the annotation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from valkyrie.domain import ABORT_AFTER, DEFAULT_PRIORITY, Category, Json
from valkyrie.views.runs import RunView

AgentFailureRule = Literal["grade", "error"]
VerifyChoice = Literal["fresh", "shared", "both"]


@dataclass(frozen=True, slots=True)
class Between:
    """Bounds of a number that comes over HTTP; pydantic asks for them, which is not imported here."""

    least: int
    most: int = 1_000_000

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return {**handler(source), "ge": self.least, "le": self.most}


class ByValue:
    """An enumeration that comes over HTTP as the text of its value, although types are read strictly."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        schema = handler(source)
        handler.resolve_ref_schema(schema)["strict"] = False
        return schema


AtLeastOne = Annotated[int, Between(1)]
ErrorCategory = Annotated[Category, ByValue()]


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
    abort_after: int = ABORT_AFTER
    """The run stops by itself when so many trials (or 5 % of them, if that is more) ended, all in errors that
    trying again does not mend; 0 is never."""
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
    verify: VerifyChoice | None = None
    """Where tests run, whatever the tasks and the benchmark's lock file say."""
    family: str | None = None
    """Key of the tasks' metadata (or tags) that names the family each belongs to; None is `family`."""
    pass_env: Sequence[str] = ()
    """Variables of the user that may be given to what asks for them by name."""
    allow_paths: Sequence[str] = ()
    """Files and folders outside a benchmark that its tasks may read."""


@dataclass(frozen=True, slots=True)
class TasksRequest:
    """Which tasks of a benchmark: the question behind `benchmark tasks`."""

    benchmark: str
    dataset: str = "default"
    headers: Mapping[str, str] = field(default_factory=dict)
    ignore_custom_services: bool = False
    benchmark_url: str | None = None


@dataclass(frozen=True, slots=True)
class StopRequest:
    """How to stop a run."""

    force: bool = False
    """Trials under way are killed, not finished."""
    task_ids: Sequence[str] | None = None
    """Only these tasks; the run goes on with the others."""


@dataclass(frozen=True, slots=True)
class ResumeRequest:
    """How a run goes on."""

    concurrency: AtLeastOne | None = None
    task_ids: Sequence[str] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    """For the benchmark's service; given again, because they are not stored."""
    benchmark_url: str | None = None
    """Where the service is now, if it moved."""


@dataclass(frozen=True, slots=True)
class RetryRequest(ResumeRequest):
    """Which errors are tried again."""

    category: ErrorCategory | None = None
    from_scratch: bool = False
    """What grading had saved is not used."""


@dataclass(frozen=True, slots=True)
class UpdateRequest:
    """What changes; what is left out, or null, stays."""

    concurrency: AtLeastOne | None = None
    label: str | None = None
    max_cost: float | None = None
    """US dollars."""
    priority: Annotated[int, Between(0, 4)] | None = None
    abort_after: Annotated[int, Between(0)] | None = None


@dataclass(frozen=True, slots=True)
class OutputsWanted:
    """Which tasks the outputs are of, and which files of each trial."""

    task_ids: Sequence[str] | None = None
    files: Sequence[str] | None = None
    """Names as they stand in a trial's folder; `*` stands for anything. Null is all."""


@dataclass(frozen=True, slots=True)
class ResultsWanted:
    """Which tasks the results are of; some tasks are scored anew."""

    task_ids: Sequence[str] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    """For the service that scores them; given again, because they are not stored."""


# What a request for a run becomes.


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
