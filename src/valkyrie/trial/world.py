"""What surrounds an attempt: the run it belongs to, and the journal it writes to."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from sandboxes.masker import Masker
from sandboxes.protocol import Sandbox, SandboxProvider
from sandboxes.types import HostSource, ImageSource, SandboxCreateRequest, SandboxSource
from valkyrie.agents.protocol import Agent
from valkyrie.benchmarks.protocol import Benchmark
from valkyrie.benchmarks.variables import given_to_agent, leads_elsewhere
from valkyrie.errors import UserError
from valkyrie.keeping.stories import Stories
from valkyrie.nouns import Json, TaskSpec, Timeouts, TrialState
from valkyrie.plan import Settings, as_planned
from valkyrie.store.layout import RunFolder
from valkyrie.store.leases import Leased
from valkyrie.trajectory.cut import DEFAULT_LIMIT
from valkyrie.trial.away import Away
from valkyrie.trial.controls import Controls
from valkyrie.trial.gear import Gear
from valkyrie.trial.kept_work import KeepLimits, KeptWork
from valkyrie.trial.other_tests import OtherTests

TASKS_REMEMBERED = 256
"""So many described tasks are kept at hand; memory must not grow with the benchmark."""


class Journal(Protocol):
    """Where phase changes are committed before their side effects."""

    async def enter(self, leased: Leased, before: TrialState, after: TrialState) -> None:
        """Commit that the trial enters its next phase; LeaseLostError when it is no longer ours."""
        ...

    async def save(self, leased: Leased, saved: Json) -> None:
        """Commit from what grading can go on without running the agent again."""
        ...


async def _no_grader(_number: int) -> Benchmark | None:
    return None


@dataclass(slots=True)
class World:
    """Everything attempts of one run share."""

    run_id: str
    dataset: str
    model: str | None
    benchmark: Benchmark
    agent: Agent
    provider: SandboxProvider
    settings: Settings
    keep_sandbox: bool
    max_attempts: int | None
    secrets: Mapping[str, str]
    folder: RunFolder
    home: str
    """Marks this data folder's sandboxes, so that only its own executor reaps them."""
    masker: Masker | None = None
    """Hides the secrets; None when there are none."""
    hidden: tuple[str, ...] = ()
    """Values of ours, besides the secrets, that no log or file may show."""
    told: bool = False
    """Someone wants to be told how far the run has come."""
    away: Away = field(default_factory=Away)
    """Where else what attempts leave is put."""
    gear: Gear = field(default_factory=Gear)
    """What sandboxes are given besides their task."""
    kept: dict[tuple[str, int], Sandbox] = field(default_factory=dict)
    """Sandboxes that stay after their attempt, by task and k."""
    allowed_networks: tuple[str, ...] = ()
    """Private networks the operator lets sandboxes reach."""
    open_grader: Callable[[int], Awaitable[Benchmark | None]] = _no_grader
    """Opens what a regrade of that number grades with; None is the run's own benchmark."""
    keep_limits: KeepLimits = field(default_factory=KeepLimits)
    trajectory_limit: int = DEFAULT_LIMIT
    """Bytes kept of what an agent tells of itself."""
    work: KeptWork = field(init=False)
    """What the run's agents made, packed, each archive once."""
    controls: Controls = field(init=False)
    """What tests say without an agent's work."""
    stories: Stories = field(init=False)
    """What agents told of their attempts in few words."""
    _tasks: OrderedDict[str, TaskSpec] = field(default_factory=OrderedDict)

    def __post_init__(self) -> None:
        self.stories = Stories(self.folder.stories)
        self.work = KeptWork(self.folder, self.keep_limits)
        self.controls = Controls(self.folder.root / "controls")

    def give_secrets(self, values: Mapping[str, str], hidden: Iterable[str] = ()) -> None:
        """Take up the values a person supplied: the agent's, and others that no log or file may show."""
        self.secrets = values
        unspeakable = [*values.values(), *hidden, *self.hidden]
        self.masker = Masker(unspeakable) if unspeakable else None

    async def task(self, leased: Leased) -> TaskSpec:
        """The task of a trial, as it was planned."""
        task = self._tasks.get(leased.task_id)
        if task is None:
            task = await self.benchmark.describe(leased.task_id, self.dataset)
            task = _limited(task, self.settings)
            self._tasks[leased.task_id] = task
            if len(self._tasks) > TASKS_REMEMBERED:
                self._tasks.popitem(last=False)
        planned = as_planned(
            task,
            leased.k,
            leased.digest,
            agent_digest=self.agent.digest,
            model=self.model,
            settings=self.settings,
        )
        if isinstance(self.benchmark, OtherTests):
            combined = await self.benchmark.combined(planned or task, planned=planned is not None)
            limited = _limited if planned is None else _limited_grading
            return limited(combined, self.settings)
        if planned is None:
            raise UserError(
                f"Task {task.id!r} is not what it was when the run was planned; start a new run to use it.",
                cause="task_changed",
            )
        return planned

    async def of_grading(self, number: int) -> World:
        """Return the same with the tests or the judge of a regrade, where it has others."""
        grader = await self.open_grader(number) if number else None
        if grader is None:
            return self
        return replace(self, benchmark=OtherTests(self.benchmark, grader), _tasks=OrderedDict())

    def as_the_agent_sees(self, task: TaskSpec) -> TaskSpec:
        """Return the task with the agent's environment; setting up and grading know nothing of it.

        It is what the task sets, but for what could redirect an agent, with what the user asked for over it.
        The oracle is the task's own program and has no key: it is given all.
        """
        own = task.env if self.agent.needs_solution else given_to_agent(task.env)
        env = {**own, **self.settings.env_vars, **self.gear.environment}
        return task if env == task.env else replace(task, env=env)

    def sandbox_request(self, leased: Leased, task: TaskSpec) -> SandboxCreateRequest:
        """What an attempt asks of the provider."""
        return SandboxCreateRequest.model_construct(
            source=self._source(task),
            resources=None,
            limits=task.limits,
            name=f"{self.run_id[:8]}-{leased.trial_id}-{leased.number}",
            labels={
                "Benchmark": self.benchmark.name,
                "Id": self.run_id,
                "Task": task.id,
                "Trial": str(leased.trial_id),
                "Attempt": str(leased.number),
                "Home": self.home,
            },
            # Of every command, the agent's included; set-up and tests are given the rest by name.
            env_vars=given_to_agent(task.env),
            refused_image_env=leads_elsewhere,
            separate_folders=task.grading_folders,
            mounts=task.mounts,
            auto_stop_interval=600,
            create_timeout=task.timeouts.build or 360.0,
            network_block_all=False,
            # What a list allows is enforced while the agent runs; setting up and grading are not the agent's.
            network="public" if task.network == "allowlist" else task.network,
            allowed_networks=(*task.allowed_networks, *self.allowed_networks),
        )

    def _source(self, task: TaskSpec) -> SandboxSource:
        """The image or snapshot the task names, or this host's own files in its stead."""
        if self.settings.host_image or (task.image is None and task.source is None):
            return HostSource()
        return task.source or ImageSource(image=task.image or "")


def _limited(task: TaskSpec, settings: Settings) -> TaskSpec:
    """The task, and each of its steps, with the time it has here."""
    limits = _limits(task.timeouts, settings)
    if task.steps:
        return replace(task, timeouts=limits, steps=tuple(_limited(step, settings) for step in task.steps))
    return task if limits == task.timeouts else replace(task, timeouts=limits)


def _limited_grading(task: TaskSpec, settings: Settings) -> TaskSpec:
    """The task with the time its grading has here; the rest of it is limited already."""
    grade = _scaled(task.timeouts, settings.timeout_multiplier).grade
    return replace(task, timeouts=replace(task.timeouts, grade=grade))


def _limits(timeouts: Timeouts, settings: Settings) -> Timeouts:
    """The task's own limits, those asked for instead, and all of them stretched."""
    agent = settings.agent_timeout or timeouts.agent or settings.default_agent_timeout
    return _scaled(replace(timeouts, agent=agent), settings.timeout_multiplier)


def _scaled(timeouts: Timeouts, factor: float) -> Timeouts:
    def scale(seconds: float | None) -> float | None:
        return None if seconds is None else seconds * factor

    return Timeouts(
        build=timeouts.build,
        setup=scale(timeouts.setup),
        install=scale(timeouts.install),
        agent=scale(timeouts.agent),
        grade=scale(timeouts.grade),
    )
