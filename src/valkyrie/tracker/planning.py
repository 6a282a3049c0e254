"""From a request to a run ready to be stored: resolve, check everything, freeze. Nothing is written here."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sandboxes.errors import MissingSandboxConfigError, SandboxError
from sandboxes.registry import PROVIDERS, open_provider
from sandboxes.types import Capabilities
from valkyrie import agents, benchmarks
from valkyrie.agents import PreparedAgent
from valkyrie.agents.library import AgentLibrary
from valkyrie.benchmarks.protocol import Benchmark
from valkyrie.benchmarks.selection import select
from valkyrie.errors import BenchmarkError, MissingSecretError, UsageError, UserError
from valkyrie.handed import with_headers, with_settings
from valkyrie.nouns import TaskSpec
from valkyrie.plan import Settings, TrialPlan, make_plan
from valkyrie.schedule.host import host_memory_mb
from valkyrie.store.layout import DataFolder
from valkyrie.tracker.service_checks import service_problems
from valkyrie.tracker.supplying import find_secrets, provider_settings
from valkyrie.views import PlanView, RunRequest

MOST_PROBLEMS = 20
DESCRIBED_AT_ONCE = 32
MOST_STRETCH = 1000.0
"""How far time limits may be stretched: ten minutes become a week."""
NOT_BUILT = ": no provider can yet. Ask for 'public' or 'no-network' in its task.toml."
_ALL_NETWORKS = frozenset({"none", "public", "allowlist"})
_ROOT = frozenset({None, "root", "0"})
"""Users every sandbox has."""


@dataclass(frozen=True, slots=True)
class PreparedRun:
    """A request, resolved and checked."""

    request: RunRequest
    agent: PreparedAgent
    benchmark: Benchmark
    settings: Settings
    capabilities: Capabilities
    trials: Sequence[TrialPlan]
    secrets: Mapping[str, str]
    """Values; they stay in memory."""
    host_variables: Sequence[str]
    headers: Sequence[str]
    """Names of what is sent to a benchmark service with every request."""
    provider_settings: Sequence[str]
    problems: Sequence[str]
    """All that stands in the way; the run is refused while there is any."""
    notices: Sequence[str]

    def view(self) -> PlanView:
        """What would run."""
        return PlanView(
            agent=self.agent.name,
            agent_digest=self.agent.digest,
            model=self.agent.model,
            benchmark=self.benchmark.name,
            dataset=self.request.dataset,
            provider=self.request.provider,
            isolation=self.capabilities.isolation,
            enforcement=dict(self.capabilities.enforcement),
            trials=[(trial.task_id, trial.k, trial.digest) for trial in self.trials],
            secrets=sorted(self.agent.secrets),
            problems=list(self.problems),
            notices=list(self.notices),
        )


def prepare(request: RunRequest, data: DataFolder) -> PreparedRun:
    """Resolve and check a request; all problems come in one list."""
    _check_numbers(request)
    library = AgentLibrary(data.agents)
    agent = agents.open_agent(
        request.agent, model=request.model, kwargs=request.kwargs, library=library, secrets=request.secrets
    )
    benchmark = benchmarks.open_benchmark(
        request.benchmark,
        host_image=request.host_image,
        headers=request.headers,
        ignore_custom=request.ignore_custom_services,
    )
    headers: Mapping[str, str] = getattr(benchmark, "headers", {})
    problems: list[str] = []
    settings_found = _provider_settings(request.provider, problems)
    capabilities = _capabilities(request.provider, data, settings_found)
    tasks = asyncio.run(_describe(benchmark, request, problems))
    problems += _unfit(tasks, agent, capabilities, request)
    problems += service_problems(benchmark.source, agent, remote=bool(settings_found))
    values, found_where = _resolve_secrets(agent.secrets, problems)
    settings = Settings(
        provider=request.provider,
        host_image=request.host_image,
        timeout_multiplier=request.timeout_multiplier,
        on_agent_failure=request.on_agent_failure,
    )
    wanted = {name for task in tasks for name in task.metadata.get("host_variables", [])}
    variables = sorted(name for name in wanted if name in os.environ)
    return PreparedRun(
        request=request,
        agent=agent,
        benchmark=benchmark,
        settings=settings,
        capabilities=capabilities,
        trials=make_plan(
            _elsewhere(tasks) if settings_found else tasks,
            agent_digest=agent.digest,
            model=agent.model,
            trials=request.trials,
            settings=settings,
        ),
        secrets={
            **values,
            **{name: os.environ[name] for name in variables},
            **with_headers(headers),
            **with_settings(settings_found),
        },
        host_variables=variables,
        headers=sorted(headers),
        provider_settings=sorted(settings_found),
        problems=problems,
        notices=[*agent.notices, *_doubtful(tasks, capabilities), *_remarks(tasks), *found_where],
    )


def _capabilities(provider: str, data: DataFolder, settings: Mapping[str, str]) -> Capabilities:
    try:
        return open_provider(provider, data.sandboxes(provider), settings).capabilities()
    except MissingSandboxConfigError:
        return Capabilities(provider=provider, isolation="unknown", images=True, networks=_ALL_NETWORKS)
    except SandboxError as error:
        raise UsageError(f"--provider {provider}: {error}") from error


def _provider_settings(provider: str, problems: list[str]) -> Mapping[str, str]:
    try:
        return provider_settings(provider)
    except UserError as error:
        problems.append(str(error))
        return {}


def _elsewhere(tasks: Sequence[TaskSpec]) -> list[TaskSpec]:
    """Tasks whose sandboxes take nothing of this machine's room."""
    return [replace(task, limits=replace(task.limits, cpus=None, memory_mb=None)) for task in tasks]


def _check_numbers(request: RunRequest) -> None:
    for flag, value, least in (
        ("--concurrency", request.concurrency, 1),
        ("--trials", request.trials, 1),
        ("--max-attempts", request.max_attempts or 1, 1),
    ):
        if value < least:
            raise UsageError(f"{flag} must be at least {least}, not {value}.")
    if not 0 < request.timeout_multiplier <= MOST_STRETCH:
        raise UsageError(
            f"--timeout-multiplier must be above 0 and at most {MOST_STRETCH:g}, "
            f"not {request.timeout_multiplier:g}."
        )


async def _describe(benchmark: Benchmark, request: RunRequest, problems: list[str]) -> list[TaskSpec]:
    tasks: list[TaskSpec] = []
    try:
        available = await benchmark.list_tasks(request.dataset)
        chosen = select(available, task_ids=request.task_ids, slice_text=request.slice)
        for start in range(0, len(chosen), DESCRIBED_AT_ONCE):
            some = chosen[start : start + DESCRIBED_AT_ONCE]
            found = await asyncio.gather(
                *(benchmark.describe(task_id, request.dataset) for task_id in some), return_exceptions=True
            )
            for one in found:
                if isinstance(one, BenchmarkError | UserError):
                    problems.append(str(one))
                elif isinstance(one, BaseException):
                    raise one
                else:
                    tasks.append(one)
    finally:
        await benchmark.close()
    return tasks


def _unfit(
    tasks: Sequence[TaskSpec], agent: PreparedAgent, capabilities: Capabilities, request: RunRequest
) -> list[str]:
    """What the provider, this machine or the agent cannot give a task."""
    images = [task for task in tasks if task.image is not None and not request.host_image]
    networks: dict[str, list[TaskSpec]] = {}
    for task in tasks:
        if task.network not in capabilities.networks:
            networks.setdefault(task.network, []).append(task)
    memory = host_memory_mb()
    here = not PROVIDERS[request.provider].settings
    large = [task for task in tasks if here and (task.limits.memory_mb or 0) > memory]
    problems: list[str] = []
    if capabilities.problem and not here:
        problems.append(f"--provider {request.provider}: {capabilities.problem}.")
    elif capabilities.problem:
        problems.append(
            f"Provider {request.provider!r} cannot work on this machine: {capabilities.problem}. "
            "--provider process runs without any isolation, if you trust the agent."
        )
    if images and not capabilities.images:
        problems.append(
            f"{_names(images)} a container image ({images[0].image}), which provider {request.provider!r} "
            "cannot run. --host-image runs it on this machine's own file system anyway; --provider daytona "
            "runs the image itself, in Daytona's cloud (--provider docker is not there yet)."
        )
    for policy, found in networks.items():
        ways = "; ".join(f"{what}: {way}" for what, way in capabilities.missing if "network" in what.lower())
        problems.append(
            f"{_names(found)} network {policy!r}, which provider {request.provider!r} cannot give here"
            + (f" ({ways})." if ways else NOT_BUILT if policy == "allowlist" else ". `valk doctor` says why.")
        )
    if agent.egress_allowlist and "allowlist" not in capabilities.networks:
        problems.append(
            f"Agent {agent.name} restricts its network to a list (egress_allowlist), which provider "
            f"{request.provider!r} cannot enforce yet. Remove the list from its contract to run without it."
        )
    others = [task for task in tasks if not {task.user, task.grading_user} <= _ROOT]
    if others and not capabilities.users:
        user = next(name for name in (others[0].user, others[0].grading_user) if name not in _ROOT)
        problems.append(
            f"{_names(others)} a user other than root ({user!r}), whom provider {request.provider!r} cannot "
            "give it here. Run as root, or remove `user` from task.toml."
        )
    if large:
        problems.append(
            f"{_names(large)} {large[0].limits.memory_mb} MB of memory; this machine has {memory} MB."
        )
    if agent.needs_solution:
        without = [task for task in tasks if not task.has_solution]
        if without:
            problems.append(f"{_names(without, 'has', 'have')} no solution/solve.sh for {agent.name} to run.")
    return problems


def _doubtful(tasks: Sequence[TaskSpec], capabilities: Capabilities) -> list[str]:
    """What may well fail, and cannot be known before."""
    repeating = [task for task in tasks if task.metadata.get("repeated_runs")]
    if not repeating or capabilities.writable_system:
        return []
    return [
        f"{_names(repeating, 'repeats', 'repeat')} RUN lines of a Dockerfile where system folders are "
        "read-only: what they install (apt-get) fails and is passed over. Run as root for a writable system."
    ]


def _remarks(tasks: Sequence[TaskSpec]) -> list[str]:
    """What the tasks' files ask for and do not get, each said once."""
    found: dict[str, list[TaskSpec]] = {}
    for task in tasks:
        for text in task.metadata.get("warnings", []):
            found.setdefault(text, []).append(task)
    said = [f"{_names(concerned, '', '').strip()}: {text}" for text, concerned in found.items()]
    return said[:MOST_PROBLEMS]


def _names(tasks: Sequence[TaskSpec], one: str = "asks for", many: str = "ask for") -> str:
    shown = ", ".join(repr(task.id) for task in tasks[:3])
    if len(tasks) == 1:
        return f"Task {shown} {one}"
    more = f" and {len(tasks) - 3} more" if len(tasks) > 3 else ""
    return f"Tasks {shown}{more} {many}"


def _resolve_secrets(
    wanted: Mapping[str, str], problems: list[str]
) -> tuple[Mapping[str, str], Sequence[str]]:
    if not wanted:
        return {}, []
    try:
        return find_secrets(wanted)
    except MissingSecretError as error:
        problems.append(str(error))
        return {}, []


def refuse(problems: Sequence[str]) -> UserError:
    """The refusal that lists everything at once."""
    shown = [f"  {number}. {text}" for number, text in enumerate(problems[:MOST_PROBLEMS], 1)]
    more = [f"  … and {len(problems) - MOST_PROBLEMS} more"] if len(problems) > MOST_PROBLEMS else []
    if len(problems) == 1:
        return UserError(problems[0])
    return UserError("\n".join([f"{len(problems)} things stand in the way:", *shown, *more]))
