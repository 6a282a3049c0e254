"""A runner whose answers are made in sandboxes, one for each task."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import tempfile
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from benchmark_runner.artifacts import RunArtifacts
from benchmark_runner.base import BenchmarkRunner
from benchmark_runner.sandbox.backend import Logs, SandboxTaskSpec, generate
from benchmark_runner.sandbox.setup import Setup, checked_agent, redacting, refuse_source, refuse_unable
from benchmark_runner.schemas import GenerationResult, Task
from sandboxes.errors import SandboxError
from sandboxes.registry import PROVIDERS, open_provider
from sandboxes.server import SandboxServer
from sandboxes.streams import uninterrupted
from sandboxes.types import DaytonaProviderConfig, HostSource, SandboxCreateRequest

if TYPE_CHECKING:
    from benchmark_runner.llm import LLMConfig
    from benchmark_service.client import BenchmarkServiceClient
    from sandboxes.protocol import Sandbox, SandboxProvider

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
