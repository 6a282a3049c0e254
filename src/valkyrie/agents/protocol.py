"""What an agent is to the engine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from benchmark_runner.agent_bundle.resolution import OutputArtifact as OutputArtifact
from sandboxes.protocol import Sandbox
from sandboxes.values import OutputSink
from valkyrie.nouns import ExitReason, Json, TaskSpec
from valkyrie.trajectory.cut import DEFAULT_LIMIT

if TYPE_CHECKING:
    from valkyrie.trajectory.transcript import Transcript

MODEL_URL = "VALKYRIE_MODEL_URL"
"""Environment variable of the agent's commands: where its model is served, if the run says so."""


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """Software an agent needs, installed once and shown read-only to every trial: no code of it is run
    while it is installed."""

    name: str
    version: str
    npm: Sequence[str] = ()
    """Packages with their exact versions, `name@1.2.3`."""
    pip: Sequence[str] = ()
    """Packages with their exact versions, `name==1.2.3`."""
    node: bool = False
    """It needs a Node.js of its own where the root file system has none."""

    @property
    def target(self) -> str:
        """Where it is seen in the sandbox."""
        return f"/opt/valkyrie/{self.name}"


@dataclass(frozen=True, slots=True)
class Usage:
    """What an attempt used of its model, as the agent's own log says."""

    input_tokens: int = 0
    """Cached ones included."""
    cached_tokens: int = 0
    output_tokens: int = 0
    cost: float | None = None
    """US dollars: the agent's own number, or one worked out from published prices."""
    cost_source: str | None = None
    """`agent`, or `prices` and the date they are of."""
    model: str | None = None
    """The one that answered."""
    steps: int = 0
    """Times the model was asked."""

    def plus(self, other: Usage | None) -> Usage:
        """Both together; a cost that is known of one only is no cost of both."""
        if other is None:
            return self
        known = self.cost is not None and other.cost is not None
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cost=(self.cost or 0.0) + (other.cost or 0.0) if known else None,
            cost_source=other.cost_source if known else None,
            model=other.model,
            steps=self.steps + other.steps,
        )


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why the agent gave up, read from its log: the cause decides whether that is graded or tried again."""

    cause: str
    """A row of schedule.policy's TABLE: model_rate_limited, model_unreachable, model_refused, …"""
    message: str
    retry_after: float | None = None


async def _nobody_looks(_number: int) -> None:
    """After a turn nothing is looked at."""


@dataclass(frozen=True, slots=True)
class AgentTrial:
    """Everything an agent is given for one attempt."""

    task: TaskSpec
    sandbox: Sandbox
    secrets: Mapping[str, str]
    """Environment variable → value; only what the contract names."""
    log: OutputSink
    solution: Path | None = None
    """Only the oracle looks at it."""
    kept: Path | None = None
    """A folder of the host (made by who writes) whose files are kept with the attempt, as `agent/…`."""
    model_url: str | None = None
    """Where the model is served, as seen from inside the sandbox; None is the vendor's own place."""
    layer: Path | None = None
    """The agent's layer on the host, where the provider could not show it; `install` brings it in."""
    k: int = 0
    """Which trial of the task it is, from 0."""
    attempt: int = 1
    """Which attempt at that trial, from 1."""
    trajectory_limit: int = DEFAULT_LIMIT
    """Bytes kept of what it tells of itself; more is cut at a step."""
    turn_ended: Callable[[int], Awaitable[None]] = _nobody_looks
    """To be awaited when a turn (from 0) but the last has ended: what is there now may be graded."""

    @property
    def turns(self) -> tuple[str, ...]:
        """What the agent is told, one thing after another; mostly it is one."""
        return self.task.turns or (self.task.instruction,)


@dataclass(frozen=True, slots=True)
class AgentExit:
    """How the agent's command ended."""

    exit_code: int
    reason: ExitReason | None = None
    usage: Usage | None = None
    trouble: Trouble | None = None
    told: Transcript | None = None
    """What it did, of an agent that tells it here and not in a file; kept with the attempt."""


class Agent(Protocol):
    """What is tested: installed into a sandbox, then run on one task."""

    @property
    def name(self) -> str: ...

    @property
    def frozen(self) -> Json:
        """Plain data from which `agents.open_frozen` makes the same agent again, in another process."""
        ...

    @property
    def digest(self) -> str:
        """Content digest of what is tested: bundle, contract, parameters."""
        ...

    @property
    def secrets(self) -> Mapping[str, str]:
        """Environment variable → secret name it wants filled."""
        ...

    @property
    def final_output(self) -> str | None:
        """Absolute path in the sandbox to archive after the run."""
        ...

    @property
    def output_artifacts(self) -> Sequence[OutputArtifact]: ...

    @property
    def needs_solution(self) -> bool:
        """True for the oracle: tasks without a solution are refused before start."""
        ...

    async def install(self, trial: AgentTrial) -> None:
        """Put the agent into the sandbox. Raises AgentInstallError."""
        ...

    async def run(self, trial: AgentTrial) -> AgentExit:
        """Run it on the task to its end or its timeout (`trial.task.timeouts.agent`)."""
        ...


def layer_of(agent: Agent) -> LayerSpec | None:
    """What is to be installed once for the agent; agents of other people need not know the word."""
    found: LayerSpec | None = getattr(agent, "layer", None)
    return found
