"""Run an agent on a benchmark's tasks: generate in sandboxes, then evaluate and score, together or one by
one."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from benchmark_runner.artifacts import RunArtifacts
from benchmark_runner.base import BenchmarkRunner
from benchmark_runner.console import redactor
from benchmark_runner.runs import OpenedRun, RequestedRun, RunError, open_run, register_run_tasks
from benchmark_runner.sandbox.backend import Logs, SandboxTaskSpec, generate
from benchmark_runner.sandbox.setup import (
    AgentContract,
    Setup,
    checked_agent,
    load_agent,
    redacting,
    refuse_source,
    refuse_unable,
)
from benchmark_runner.schemas import GenerationResult, ScoreResult, Task
from benchmark_runner.task_loop import LoopSettings, RunCounts, RunSurvey, TaskLoop, survey_run
from sandboxes.errors import SandboxError
from sandboxes.registry import PROVIDERS, open_provider
from sandboxes.server import SandboxServer
from sandboxes.streams import uninterrupted
from sandboxes.types import DaytonaProviderConfig, HostSource, SandboxCreateRequest

if TYPE_CHECKING:
    from benchmark_runner.checkpoint import RunConfig
    from benchmark_runner.llm import LLMConfig
    from benchmark_service.client import BenchmarkServiceClient
    from sandboxes.protocol import Sandbox, SandboxProvider
    from sandboxes.types import SandboxSource


AUTO_STOP_MINUTES = 30
CREATE_S = 600
RUN_LABEL, TASK_LABEL = "benchmark-run", "benchmark-task"
_LONGEST_NAME = 60


class SandboxRunner(BenchmarkRunner):
    """Generates in sandboxes; evaluates and scores as every runner does."""

    NAME = "sandbox"

    def __init__(
        self,
        service_url: str | None = None,
        dataset_name: str | None = None,
        eval_concurrency: int = 10,
        *,
        client: BenchmarkServiceClient | None = None,
    ) -> None:
        super().__init__(None if client else service_url, dataset_name, eval_concurrency)
        self._own_client = client is None
        self._client = client or self._client
        self.service_url = client._url if client else service_url
        self._resources = AsyncExitStack()
        self._setup: Setup | None = None
        self._key = self._run_id = ""

    async def start(self, setup: Setup, artifacts: RunArtifacts, model: str) -> None:
        """Check everything, and get ready to make sandboxes. ValueError or SandboxError when it cannot be."""
        self._agent = checked_agent(setup, model)
        self._setup, self._run_id = setup, artifacts.run_id
        self._key = hashlib.sha256(os.fsencode(artifacts.root.absolute())).hexdigest()[:24]
        self._redact = redacting(self._agent.env)
        provider = setup.provider
        if isinstance(provider, str):
            provider = await self._resources.enter_async_context(opened_provider(provider))
        await asyncio.to_thread(refuse_unable, provider, setup)
        self._provider = provider
        self._door = None if setup.specs else await self._opened_door(setup, provider)
        if setup.bundle is not None:
            folder = self._resources.enter_context(tempfile.TemporaryDirectory(prefix="agent-bundle-"))
            unpacked = await asyncio.to_thread(setup.bundle.unpack, Path(folder))
            self._agent = replace(self._agent, unpacked=unpacked)
        # What an earlier process left when it was killed: nobody else works on this run now.
        await provider.reap({RUN_LABEL: self._key})

    async def close(self) -> None:
        try:
            await self._resources.aclose()
        finally:
            if self._own_client:
                await super().close()

    @property
    def payload_schema(self) -> str:
        return (self._setup and self._setup.payload_schema) or super().payload_schema

    @property
    def generation_version(self) -> str:
        bundle = self._setup.bundle if self._setup else None
        return bundle.sha256[:12] if bundle else "dev"

    def load_tasks(self, dataset_file: Path) -> list[Task]:
        raise ValueError(f"{dataset_file}: tasks in sandboxes come from a manifest or a service")

    async def generate(
        self, task: Task, model: str, llm_config: LLMConfig | None = None, log_dir: Path | None = None
    ) -> GenerationResult:
        """Answer one task in a sandbox that is gone afterwards, whatever happens."""
        _ = model, llm_config
        assert self._setup is not None and log_dir is not None
        spec = self._setup.specs.get(task.id) or await self._asked(task)
        refuse_source(self._setup, spec, task.id)
        logs = Logs(log_dir, self._redact)
        sandbox = await self._provider.create_sandbox(self._request(task.id, spec))
        try:
            await self._pose(task.id, sandbox, spec)
            limit = self._setup.timeout if spec.agent_timeout is None else spec.agent_timeout
            return await generate(sandbox, self._agent, task.id, spec, limit if limit > 0 else None, logs)
        finally:
            await uninterrupted(self._deleted(sandbox.id, logs))

    async def _deleted(self, sandbox_id: str, logs: Logs) -> None:
        try:
            await self._provider.delete_sandbox(sandbox_id)
        except SandboxError as error:
            # The answer is there all the same; whoever looks for what is left finds a note.
            logs.keep("not_deleted.txt", f"sandbox {sandbox_id}: {error}\n")

    async def _asked(self, task: Task) -> SandboxTaskSpec:
        said = await self._service().retrieve_task(task.id, dataset=self._dataset)
        return SandboxTaskSpec(
            said.source, said.resources, said.cwd, said.agent_timeout, None, said.problem_path
        )

    async def _pose(self, task_id: str, sandbox: Sandbox, spec: SandboxTaskSpec) -> None:
        if spec.question is not None:
            await sandbox.upload_file(spec.problem_path, spec.question.encode("utf-8", "replace"))
        else:
            await self._service().setup_task(task_id, sandbox.id, self._door, dataset=self._dataset)

    async def _opened_door(self, setup: Setup, provider: SandboxProvider) -> DaytonaProviderConfig:
        """Return how a service gets at our sandboxes, to put into them what belongs to a task."""
        if setup.provider == "daytona":
            return DaytonaProviderConfig.model_validate(provider_settings("daytona"))
        server = SandboxServer()
        await server.start()
        self._resources.push_async_callback(server.close)
        grant = server.grant(provider, labels={RUN_LABEL: self._key})
        return DaytonaProviderConfig(
            DAYTONA_API_KEY=grant.api_key, DAYTONA_API_URL=grant.api_url, DAYTONA_TARGET=grant.target
        )

    def _request(self, task_id: str, spec: SandboxTaskSpec) -> SandboxCreateRequest:
        assert self._setup is not None
        return SandboxCreateRequest(
            source=self._setup.source_override or spec.source or HostSource(),
            resources=spec.resources,
            name=sandbox_name(self._run_id, task_id),
            labels={RUN_LABEL: self._key, TASK_LABEL: hashlib.sha256(task_id.encode()).hexdigest()[:24]},
            env_vars=dict(self._agent.env),
            auto_stop_interval=AUTO_STOP_MINUTES,
            create_timeout=CREATE_S,
            network=cast("Any", self._setup.network),
        )


def sandbox_name(run_id: str, task_id: str) -> str:
    """`{run_id}-{task_id}`, encoded where that is no plain name or too long for one."""
    name = f"{run_id}-{task_id}"
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", name)
    if plain == name and len(name) <= _LONGEST_NAME:
        return name
    digest = hashlib.sha256(json.dumps([run_id, task_id]).encode()).hexdigest()[:12]
    return f"{plain[: _LONGEST_NAME - 13].strip('-.')}-{digest}"


def opened_provider(name: str) -> SandboxProvider:
    """A provider by its name. SandboxError or ValueError when it cannot be had."""
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return open_provider(name, state / "benchmark-runner" / name, provider_settings(name))


def provider_settings(name: str) -> dict[str, str]:
    """Return what the environment says of a provider."""
    wanted = PROVIDERS[name].settings if name in PROVIDERS else ()
    return {key: os.environ[key] for key in wanted if os.environ.get(key)}


def runner_of(benchmark: str) -> type[SandboxRunner]:
    """The runner under a benchmark's own name."""
    return cast("type[SandboxRunner]", type("BenchmarkSandboxRunner", (SandboxRunner,), {"NAME": benchmark}))


# Run an agent on a benchmark's tasks: generation in sandboxes, then evaluation and the score, together or
# one by one.


async def tasks_of(
    client: BenchmarkServiceClient, dataset: str | None, task_ids: Sequence[str]
) -> list[Task]:
    """Tasks a service has, all or those named. What they ask, the service puts into the sandbox itself."""
    found = await client.verify_task_ids(list(task_ids) or None, dataset=dataset)
    return [Task(id=task_id, question="") for task_id in found.task_ids]


async def open_sandbox_run(
    runner: SandboxRunner,
    setup: Setup,
    artifacts: RunArtifacts,
    model: str,
    tasks: Sequence[Task],
    task_ids: Sequence[str],
    *,
    force_resume: bool = False,
) -> OpenedRun:
    """Start or go on with a run of `tasks`, working on `task_ids` now. Tasks of earlier slices stay in it."""
    await runner.start(setup, artifacts, model)
    wanted = RequestedRun(
        model=model,
        task_ids=task_ids,
        dataset_name=runner._dataset,
        at_hand=tasks,
        settings=setup.settings(),
        force_resume=force_resume,
    )
    return await open_run(runner, artifacts, wanted)


async def run_benchmark(
    *,
    run_id: str,
    model: str,
    task_ids: Sequence[str],
    dataset: str | None,
    results_dir: Path | str,
    client: BenchmarkServiceClient,
    contract: AgentContract | None = None,
    contract_path: Path | None = None,
    provider: SandboxProvider | str | None = None,
    parallelism: int = 10,
    source_override: SandboxSource | None = None,
    task_specs: Mapping[str, SandboxTaskSpec] | None = None,
    skip_eval: bool = False,
    **options: Any,
) -> ScoreResult | None:
    """Generate, evaluate and score; the score, once every task of the run has a result.

    Give `contract`, or `contract_path`: a file, or an agent's folder, which is then its bundle. `options` are
    fields of `Setup`. What is missing or wrong raises ValueError before anything starts.
    """
    if (contract is None) == (contract_path is None):
        raise ValueError("give exactly one of contract and contract_path")
    if contract_path is not None:
        contract, bundle = load_agent(contract_path)
        options.setdefault("bundle", bundle)
    assert contract is not None
    setup = Setup(
        contract,
        provider=provider or "local",
        source_override=source_override,
        specs=task_specs or {},
        **options,
    )
    checked_agent(setup, model)
    artifacts = RunArtifacts(results_dir, run_id)
    runner = SandboxRunner(dataset_name=dataset, client=client)
    try:
        with artifacts.in_use():
            tasks = await _tasks(client, dataset, task_ids, task_specs)
            ids = [task.id for task in tasks]
            opened = await open_sandbox_run(runner, setup, artifacts, model, tasks, ids)
            how = LoopSettings(model, parallelism=parallelism, timeout=0, evaluate=not skip_eval)
            work = TaskLoop(runner, artifacts, how, RunCounts(total=len(ids)), runner._redact)
            await work.run([task for task in opened.chosen if work.is_due(task)])
            found = survey_run(artifacts, opened.config.tasks)
            if skip_eval or not found.complete:
                return None
            score = (await runner.score(list(found.evaluations.values()))).model_copy(
                update={"complete": True}
            )
            artifacts.write_score(score)
            return score
    finally:
        await runner.close()


async def _tasks(
    client: BenchmarkServiceClient,
    dataset: str | None,
    task_ids: Sequence[str],
    specs: Mapping[str, SandboxTaskSpec] | None,
) -> list[Task]:
    if not specs:
        return await tasks_of(client, dataset, task_ids)
    if unknown := [task_id for task_id in task_ids if task_id not in specs]:
        raise ValueError(f"Unknown task IDs: {unknown}")
    return [Task(id=name, question=specs[name].question or "") for name in task_ids or specs]


# What comes after generation, on its own: grade the answers a run has, and score it.


async def evaluate_run(
    *,
    run_id: str,
    results_dir: Path | str,
    client: BenchmarkServiceClient,
    dataset: str | None = None,
    task_ids: Sequence[str] | None = None,
    force: bool = False,
) -> RunSurvey:
    """Grade answers that are not graded yet, all or those named; where the run stands then."""
    artifacts, config, runner = _opened(run_id, results_dir, client, dataset)
    with artifacts.in_use():
        tasks = await register_run_tasks(runner, config)
        if unknown := [task_id for task_id in task_ids or () if task_id not in config.tasks]:
            raise RunError(f"Unknown task IDs: {unknown}")
        chosen = [task for task in tasks if task_ids is None or task.id in task_ids]
        answered = [task for task in chosen if artifacts.read_generation(task.id) is not None]
        if not answered:
            raise RunError(f"Run {run_id} has nothing to evaluate: none of its tasks has an answer yet.")
        how = LoopSettings(config.model, parallelism=32, generate=False, again=force)
        work = TaskLoop(runner, artifacts, how, RunCounts(total=len(answered)), redactor())
        await work.run([task for task in answered if work.is_due(task)])
        return survey_run(artifacts, config.tasks)


async def score_run(
    *,
    run_id: str,
    results_dir: Path | str,
    client: BenchmarkServiceClient,
    dataset: str | None = None,
    force: bool = False,
) -> ScoreResult:
    """Score all tasks of a run. RunError for one that is not complete, unless forced."""
    artifacts, config, runner = _opened(run_id, results_dir, client, dataset)
    with artifacts.in_use():
        await register_run_tasks(runner, config)
        found = survey_run(artifacts, config.tasks)
        if not found.complete and not force:
            done = found.evaluated + found.did_not_complete
            raise RunError(f"Run {run_id} is incomplete: {done} of {len(config.tasks)} tasks have a result.")
        score = (await runner.score(list(found.evaluations.values()))).model_copy(
            update={"complete": found.complete}
        )
        artifacts.write_score(score)
        return score


def _opened(
    run_id: str, results_dir: Path | str, client: BenchmarkServiceClient, dataset: str | None
) -> tuple[RunArtifacts, RunConfig, SandboxRunner]:
    artifacts = RunArtifacts(results_dir, run_id)
    config = artifacts.read_config()
    if config is None:
        raise RunError(f"There is no run {run_id}: {artifacts.config_path} does not exist.")
    return artifacts, config, SandboxRunner(dataset_name=dataset or config.dataset_name, client=client)
