"""What all attempts of a run share: plan, benchmark, agent and its environment, limits, controls."""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from sandboxes.errors import SandboxConnectionError, SandboxDiedError, SandboxError, SandboxUnsupportedError
from sandboxes.masker import Masker
from sandboxes.protocol import Command, Sandbox, SandboxProvider
from sandboxes.types import HostSource, ImageSource, Mount, OutputSink, SandboxCreateRequest, SandboxSource
from valkyrie.agents.protocol import MODEL_URL, Agent, LayerSpec
from valkyrie.artifact_store.logs import Transcripts
from valkyrie.benchmarks.protocol import (
    Benchmark,
    BenchmarkCapabilities,
    Grading,
    given_to_agent,
    leads_elsewhere,
)
from valkyrie.domain import FinalScore, Grade, Json, TaskSpec, Timeouts, TrialState
from valkyrie.errors import BenchmarkError, SandboxFailedError, UserError
from valkyrie.plan import Settings, as_planned
from valkyrie.store.layout import RunFolder
from valkyrie.store.leases import Leased
from valkyrie.trajectory.transcript import DEFAULT_LIMIT
from valkyrie.trial.storage import KeepLimits, KeptWork, RemoteStorage

PROXY = "/opt/valkyrie/door"
"""Where the door's folder is seen in a sandbox."""
BRIDGE = "bridge.py"
SOCKET = "model.sock"
PROXY_PORT = 8765
PROXY_TIMEOUT_S = 30.0
LAYER_MANIFEST = "layer.json"


class LayerStore(Protocol):
    """Where agents' layers are kept."""

    async def ready(
        self, spec: LayerSpec, provider: SandboxProvider, source: SandboxSource, log: Callable[[str], None]
    ) -> Path: ...


class ModelAccess(Protocol):
    """A way to the model."""

    def opened(self) -> AbstractAsyncContextManager[Path]:
        """A folder with a socket (and the bridge to it) of one attempt's own, shut at the end."""
        ...


@dataclass(slots=True)
class AgentEnvironment:
    """What all attempts of a run are equipped with."""

    layers: LayerStore | None = None
    layer: LayerSpec | None = None
    served_at: str | None = None
    """`--model-url`."""
    proxy: ModelAccess | None = None
    """Through what `served_at` is reached, where that takes one."""
    layer_to_bring: Path | None = None
    """The layer, where the provider cannot show it."""

    @property
    def environment(self) -> Mapping[str, str]:
        """What agents learn of their model by."""
        return {MODEL_URL: self.model_url} if self.model_url else {}

    @property
    def needed(self) -> bool:
        return self.layer is not None or self.proxy is not None

    @property
    def shows_layer(self) -> bool:
        """Whether sandboxes have the agent's layer from their beginning."""
        return self.layer is not None and self.layer_to_bring is None

    @property
    def model_url(self) -> str | None:
        """Where the model is served, seen from inside."""
        if self.served_at is None or self.proxy is None:
            return self.served_at
        return f"http://127.0.0.1:{PROXY_PORT}{urlsplit(self.served_at).path.rstrip('/')}"

    @asynccontextmanager
    async def model_folder(self) -> AsyncIterator[Path | None]:
        """The folder through which one attempt reaches its model, if it takes one."""
        if self.proxy is None:
            yield None
            return
        async with self.proxy.opened() as folder:
            yield folder

    async def equip(
        self,
        request: SandboxCreateRequest,
        provider: SandboxProvider,
        model_folder: Path | None,
        note: Callable[[str], None],
    ) -> SandboxCreateRequest:
        """The request with what is to be shown in the sandbox."""
        shown = provider.capabilities().mounts
        mounts: list[Mount] = []
        if self.layer and self.layers:
            folder = await self.layers.ready(self.layer, provider, request.source, note)
            if shown:
                mounts.append(Mount(source=str(folder), target=self.layer.target))
            else:
                self.layer_to_bring = folder
        if model_folder:
            if not shown:
                raise SandboxUnsupportedError(
                    f"the model at {self.served_at} is out of reach of these sandboxes; give --model-url an "
                    "https address they can reach, or use --provider local or docker"
                )
            mounts.append(Mount(source=str(model_folder), target=PROXY, sockets=True))
        return request.model_copy(update={"mounts": (*request.mounts, *mounts)})

    async def check_layer(self, sandbox: Sandbox) -> None:
        """BenchmarkError when the agent's layer, which is there before the task, is not there after set-up.

        What is shown cannot be changed from inside, but a folder above it can be moved away.
        """
        if self.layer is None:
            return
        try:
            found = json.loads(await sandbox.download_file(f"{self.layer.target}/{LAYER_MANIFEST}"))
            intact = (found["name"], found["version"]) == (self.layer.name, self.layer.version)
        except (SandboxConnectionError, SandboxDiedError):
            raise
        except (SandboxError, ValueError, KeyError, TypeError):
            intact = False
        if not intact:
            raise BenchmarkError(
                f"setting the task up took away the agent's own software at {self.layer.target}, which is no "
                "part of the task",
                cause="task_setup_failed",
            )

    async def open_proxy(self, sandbox: Sandbox, log: OutputSink) -> None:
        """Let the model be reached on the sandbox's own loopback; ended with the agent."""
        if self.proxy is None:
            return
        command = Command(
            ("python3", f"{PROXY}/{BRIDGE}", f"{PROXY}/{SOCKET}", str(PROXY_PORT)), timeout=PROXY_TIMEOUT_S
        )
        if (code := await sandbox.run(command, log)) != 0:
            raise SandboxFailedError(
                f"the door to the model could not be opened (exit code {code}); it needs python3 in the "
                "sandbox. An https --model-url needs no door."
            )


# What tests say without an agent's work: run once for each task, remembered with the run.


class Controls:
    """The controls of one run: asked once for each task, and remembered in the run's folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._locks: dict[str, asyncio.Lock] = {}

    def lock(self, key: str) -> asyncio.Lock:
        return self._locks.setdefault(key, asyncio.Lock())

    def read(self, key: str) -> Json | None:
        try:
            found: Json = json.loads((self._folder / f"{key}.json").read_text("utf-8"))
        except (OSError, ValueError):
            return None
        return found

    def write(self, key: str, found: Json) -> None:
        """Remember what a control found; the file appears whole or not at all."""
        self._folder.mkdir(parents=True, exist_ok=True)
        part = self._folder / f".{key}.part"
        part.write_text(json.dumps(found), "utf-8")
        part.replace(self._folder / f"{key}.json")


# A benchmark whose tasks are set up as ever and graded with the tests, or the judge, of another one.


class SubstituteGrader:
    """The run's own benchmark, but `grader` judges."""

    def __init__(self, own: Benchmark, grader: Benchmark) -> None:
        self._own = own
        self._grader = grader
        self._stands_in: dict[str, TaskSpec] = {}
        """Tasks that are set up as `grader` has them: the run's own are not what they were."""
        self._planned: dict[str, TaskSpec] = {}

    @property
    def name(self) -> str:
        return self._own.name

    @property
    def source(self) -> Json:
        return self._own.source

    @property
    def fraction(self) -> bool:
        return self._own.fraction

    @property
    def capabilities(self) -> BenchmarkCapabilities:
        return BenchmarkCapabilities()

    async def datasets(self) -> list[str]:
        return await self._own.datasets()

    async def list_tasks(self, dataset: str = "default") -> list[str]:
        return await self._own.list_tasks(dataset)

    async def describe(self, task_id: str, dataset: str = "default") -> TaskSpec:
        """Return the run's own task; if it is gone or broken by now, the other's."""
        try:
            return await self._own.describe(task_id, dataset)
        except (UserError, BenchmarkError):
            return await self._grader.describe(task_id)

    async def combined(self, task: TaskSpec, *, planned: bool) -> TaskSpec:
        """Return the task with the other's verifier settings.

        If it is not what was planned, because its tests were changed in place, all of it is the other's.
        """
        other = await self._grader.describe(task.id)
        base = task if planned else other
        (self._planned if planned else self._stands_in)[task.id] = base
        return replace(
            base,
            digest=other.digest,
            of_image=base.of_image - {"grading_user"} | other.of_image & {"grading_user"},
            grading_user=other.grading_user,
            grading_folders=other.grading_folders,
            timeouts=replace(base.timeouts, grade=other.timeouts.grade),
        )

    async def setup(self, task: TaskSpec, sandbox: Sandbox, log: OutputSink, start: Path) -> None:
        if task.id in self._stands_in:
            await self._grader.setup(task, sandbox, log, start)
        else:
            digest = self._planned[task.id].digest
            await self._own.setup(replace(task, digest=digest), sandbox, log, start)

    def solution(self, task: TaskSpec) -> Path | None:
        return self._own.solution(task)

    async def evaluate(self, grading: Grading) -> Grade:
        return await self._grader.evaluate(grading)

    async def final_score(
        self, grades: Mapping[str, Sequence[Grade | None]], dataset: str = "default"
    ) -> FinalScore:
        return await self._own.final_score(grades, dataset)

    async def close(self) -> None:
        """Leave both to whoever opened them."""


# What surrounds an attempt: the run it belongs to, and the journal it writes to.

TASKS_REMEMBERED = 256
"""So many described tasks are kept at hand; memory must not grow with the benchmark."""


class PhaseJournal(Protocol):
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
class RunContext:
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
    away: RemoteStorage = field(default_factory=RemoteStorage)
    """Where else what attempts leave is put."""
    agent_environment: AgentEnvironment = field(default_factory=AgentEnvironment)
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
    _tasks: OrderedDict[str, TaskSpec] = field(default_factory=OrderedDict)
    _transcripts: Transcripts | None = None

    def __post_init__(self) -> None:
        self.work = KeptWork(self.folder, self.keep_limits)
        self.controls = Controls(self.folder.root / "controls")

    @property
    def transcripts(self) -> Transcripts:
        """What agents told of their attempts in few words."""
        if self._transcripts is None:
            self._transcripts = Transcripts(self.folder.transcripts)
        return self._transcripts

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
        if isinstance(self.benchmark, SubstituteGrader):
            combined = await self.benchmark.combined(planned or task, planned=planned is not None)
            limited = _limited if planned is None else _limited_grading
            return limited(combined, self.settings)
        if planned is None:
            raise UserError(
                f"Task {task.id!r} is not what it was when the run was planned; start a new run to use it.",
                cause="task_changed",
            )
        return planned

    async def of_grading(self, number: int) -> RunContext:
        """Return the same with the tests or the judge of a regrade, where it has others."""
        grader = await self.open_grader(number) if number else None
        if grader is None:
            return self
        return replace(self, benchmark=SubstituteGrader(self.benchmark, grader), _tasks=OrderedDict())

    def as_the_agent_sees(self, task: TaskSpec) -> TaskSpec:
        """Return the task with the agent's environment; setting up and grading know nothing of it.

        It is what the task sets, but for what could redirect an agent, with what the user asked for over it.
        The oracle is the task's own program and has no key: it is given all.
        """
        own = task.env if self.agent.needs_solution else given_to_agent(task.env)
        env = {**own, **self.settings.env_vars, **self.agent_environment.environment}
        return task if env == task.env else replace(task, env=env)

    def sandbox_request(self, leased: Leased, task: TaskSpec) -> SandboxCreateRequest:
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
