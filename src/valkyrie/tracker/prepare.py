"""From a request to a run ready to be stored: resolve, check everything, plan. Nothing is written here."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from sandboxes.errors import MissingSandboxConfigError, SandboxError
from sandboxes.protocol import host_memory_mb
from sandboxes.registry import open_provider
from sandboxes.types import Capabilities
from valkyrie import agents, benchmarks
from valkyrie.agents import PreparedAgent
from valkyrie.benchmarks.protocol import Benchmark, BenchmarkRequest, MissingVariablesError, select
from valkyrie.benchmarks.service.address import reach_of
from valkyrie.config import values as config
from valkyrie.domain import (
    Json,
    TaskSpec,
)
from valkyrie.errors import (
    BenchmarkError,
    ContractValidationError,
    MissingSecretError,
    UnknownError,
    UsageError,
    UserError,
    ValkyrieError,
)
from valkyrie.notifications.messages import preflight, requested_notifications, wanted_secrets
from valkyrie.plan import Settings, TrialPlan, make_plan
from valkyrie.report.formats import plural
from valkyrie.secrets.delivery import with_credentials, with_headers, with_hooks, with_settings
from valkyrie.store.layout import DataFolder
from valkyrie.tracker.checks import (
    Problem,
    ProblemList,
    check_request,
    check_trials,
    doubtful,
    family_remarks,
    refuse,
    remarks,
    service_problems,
    unable,
    unfit,
    untooled,
    without_family,
)
from valkyrie.tracker.secrets import (
    allowed_variables,
    aws_credentials,
    check_callers_url,
    destinations,
    find_secrets,
    provider_settings,
    unanswered,
    with_keys,
)
from valkyrie.views import PlanView, RunRequest, TasksRequest

if TYPE_CHECKING:
    from valkyrie.artifact_store.protocol import ArtifactStore, LogKeeper
    from valkyrie.tenants import Organisation


DESCRIBED_AT_ONCE = 32
_ALL_NETWORKS = frozenset({"none", "public", "allowlist"})


@dataclass(frozen=True, slots=True)
class DeliveredValues:
    """The values a run is handed, by what they are for; they stay in memory, only names are stored."""

    variables: Mapping[str, str]
    """Of the user, for tasks that ask for them."""
    secrets: Mapping[str, str]
    """Of the agent."""
    headers: Mapping[str, str]
    """Sent to a benchmark service with every request."""
    provider_settings: Mapping[str, str]
    hook_values: Mapping[str, str]
    """What messages to the outside need."""
    credentials: Mapping[str, str]
    """What executors reach the caller's cloud with."""

    def merged(self) -> dict[str, str]:
        """Return all of them as they are delivered."""
        return {
            **self.variables,
            **self.secrets,
            **with_headers(self.headers),
            **with_settings(self.provider_settings),
            **with_hooks(self.hook_values),
            **with_credentials(self.credentials),
        }

    def names(self) -> Json:
        """Return what is stored of them, beside the names of the agent's secrets."""
        return {
            "host_variables": sorted(self.variables),
            "headers": sorted(self.headers),
            "provider_settings": sorted(self.provider_settings),
            "hook_values": sorted(self.hook_values),
            "credentials": sorted(self.credentials),
        }


@dataclass(frozen=True, slots=True)
class PreparedRun:
    """A request, resolved and checked."""

    request: RunRequest
    agent: PreparedAgent
    benchmark: Benchmark
    settings: Settings
    capabilities: Capabilities
    trials: Sequence[TrialPlan]
    values: DeliveredValues
    wishes: Json | None
    """Whom to tell."""
    artifacts: ArtifactStore | None
    logs: LogKeeper | None
    problems: Sequence[str]
    """All that stands in the way; the run is refused while there is any."""
    missing: Mapping[str, str]
    """Secrets without a value: environment variable → name."""
    destinations: Mapping[str, str]
    """Where each secret goes."""
    notices: Sequence[str]
    stop_rule: Json | None = None
    """When the job it is part of is decided."""

    @property
    def secrets(self) -> Mapping[str, str]:
        """Return every value the run is handed."""
        return self.values.merged()

    def view(self) -> PlanView:
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
            problems=[str(problem) for problem in self.problems],
            notices=list(self.notices),
            missing=dict(self.missing),
            variables=sorted(self.values.variables),
            destinations=dict(self.destinations),
        )


def prepare(
    request: RunRequest,
    organisation: Organisation,
    data: DataFolder,
    *,
    allow_local: bool = True,
    only_look: bool = False,
) -> PreparedRun:
    """Resolve and check a request; all problems come in one list.

    With `only_look` no program is started to find out what this machine's sandboxes can do.
    """
    check_request(request, organisation, allow_local=allow_local)
    wishes, said = requested_notifications(request)
    problems = ProblemList()
    named = _open_named(request, organisation, data, problems, allow_local=allow_local)
    capabilities = _capabilities(request.provider, data, named.provider_settings, only_look)
    problems.texts += _unfit(named, capabilities, request)
    secrets, found_where = _resolve_secrets(named.secrets, organisation, problems)
    hook_values, _ = _resolve_secrets(wanted_secrets(wishes), organisation, problems)
    artifacts, logs = organisation.artifacts(), organisation.logs()
    problems.texts += preflight(wishes, organisation, hook_values)
    problems.texts += _unwritable(artifacts, logs)
    agent, benchmark, tasks = named.agent, named.benchmark, named.tasks
    if agent is None or benchmark is None or tasks is None:
        raise refuse(problems.texts, problems.missing)
    headers = benchmark.capabilities.headers or {}
    asked = {name for task in tasks for name in task.metadata.get("host_variables", [])}
    variables = {name: value for name, value in named.variables.items() if name in asked}
    notices = [
        *agent.notices,
        *_model_notices(request, organisation),
        *_key_notices(request, organisation),
        *doubtful(tasks, capabilities),
        *untooled(tasks, agent),
        *remarks(tasks),
        *_kept_back(asked - set(variables), organisation),
        *family_remarks(tasks, request.family),
        *found_where,
        *said,
    ]
    settings = _settings(request)
    return PreparedRun(
        request=request,
        agent=agent,
        benchmark=benchmark,
        settings=settings,
        capabilities=capabilities,
        trials=_plan_trials(request, agent, tasks, settings, elsewhere=bool(named.provider_settings)),
        values=DeliveredValues(
            variables=variables,
            secrets=secrets,
            headers=headers,
            provider_settings=named.provider_settings,
            hook_values=hook_values,
            credentials=aws_credentials(organisation) if artifacts or logs or wishes else {},
        ),
        wishes=wishes,
        artifacts=artifacts,
        logs=logs,
        problems=problems.texts,
        missing=problems.missing,
        destinations=destinations(agent, request, named.provider_settings),
        notices=notices,
    )


@dataclass(frozen=True, slots=True)
class _Named:
    """What a request names, as far as it could be opened."""

    agent: PreparedAgent | None
    secrets: Mapping[str, str]
    """The secrets of the agent: environment variable → name."""
    benchmark: Benchmark | None
    tasks: list[TaskSpec] | None
    variables: Mapping[str, str]
    """The user's variables that tasks may be given."""
    provider_settings: Mapping[str, str]


def _open_named(
    request: RunRequest,
    organisation: Organisation,
    data: DataFolder,
    problems: ProblemList,
    *,
    allow_local: bool,
) -> _Named:
    """Open the agent, the benchmark and its tasks, and find the way to the provider."""
    agent = problems.collect(lambda: _open_agent(request, organisation))
    if agent:
        agent = with_keys(agent, request, organisation, problems)
    secrets = agent.secrets if agent else _wanted_anyway(problems.texts[-1], request)
    allowed = allowed_variables(request, organisation)
    benchmark = problems.collect(
        lambda: open_requested(request, organisation, data, allowed, allow_local=allow_local)
    )
    settings = _provider_settings(request, organisation, allow_local, problems)
    tasks = _tasks(benchmark, request, problems) if benchmark else None
    return _Named(agent, secrets, benchmark, tasks, allowed, settings)


def _unfit(named: _Named, capabilities: Capabilities, request: RunRequest) -> list[str]:
    """Return what tasks, agent, provider and service cannot do together."""
    if named.agent is None or named.benchmark is None or named.tasks is None:
        return unable(capabilities, request.provider)
    remote = bool(named.provider_settings)
    return [
        *unfit(named.tasks, named.agent, capabilities, request),
        *without_family(named.tasks, request.family),
        *service_problems(named.benchmark.source, named.agent, remote=remote),
    ]


def _plan_trials(
    request: RunRequest,
    agent: PreparedAgent,
    tasks: Sequence[TaskSpec],
    settings: Settings,
    *,
    elsewhere: bool,
) -> Sequence[TrialPlan]:
    """Return the trials; sandboxes elsewhere take nothing of this machine's room."""
    if elsewhere:
        tasks = [replace(task, limits=replace(task.limits, cpus=None, memory_mb=None)) for task in tasks]
    return make_plan(
        tasks,
        agent_digest=agent.digest,
        model=agent.model,
        trials=request.trials,
        settings=settings,
        host_mb=None if elsewhere else host_memory_mb(),
        family=request.family,
    )


def _settings(request: RunRequest) -> Settings:
    return Settings(
        provider=request.provider,
        host_image=request.host_image,
        timeout_multiplier=request.timeout_multiplier,
        on_agent_failure=request.on_agent_failure,
        agent_timeout=request.agent_timeout,
        default_agent_timeout=request.default_agent_timeout,
        env_vars=dict(request.env_vars),
        model_url=request.model_url,
        verify=request.verify,
    )


def _model_notices(request: RunRequest, organisation: Organisation) -> list[str]:
    # To others on a tracker it would tell which addresses answer.
    return unanswered(request.model_url) if organisation.trusted else []


def _key_notices(request: RunRequest, organisation: Organisation) -> list[str]:
    most = organisation.identity.max_concurrency
    if most is None or request.concurrency <= most:
        return []
    return [f"your API key allows {plural(most, 'trial')} at once, all of its runs together; the others wait"]


def _wanted_anyway(refused: str, request: RunRequest) -> Mapping[str, str]:
    """The secrets of an agent that was refused: what they lack is told along with why it was."""
    error = refused.error if isinstance(refused, Problem) else None
    found = error.secrets if isinstance(error, ContractValidationError) else {}
    return found or request.secrets


def _open_agent(request: RunRequest, organisation: Organisation) -> PreparedAgent:
    return agents.open_agent(
        request.agent,
        model=request.model,
        kwargs=request.kwargs,
        library=organisation.library(),
        secrets=request.secrets,
        trusted=organisation.trusted,
        uploads=_uploads(organisation),
        model_url=request.model_url,
    )


def open_requested(
    request: RunRequest | TasksRequest,
    organisation: Organisation,
    data: DataFolder,
    variables: Mapping[str, str] | None = None,
    *,
    allow_local: bool,
) -> Benchmark:
    """Return the benchmark a request names, as far as the caller may name it; its tasks get `variables`."""
    url = request.benchmark_url or (request.benchmark if "://" in request.benchmark else None)
    if url and not organisation.trusted:
        check_callers_url(url, allow_local, "The benchmark's address")
    run = request if isinstance(request, RunRequest) else RunRequest(agent="", benchmark=request.benchmark)
    asking = BenchmarkRequest(
        host_image=run.host_image,
        headers=request.headers,
        ignore_custom=request.ignore_custom_services,
        trusted=organisation.trusted,
        uploads=_uploads(organisation),
        url=request.benchmark_url,
        cache=data.cache,
        caller_headers=organisation.caller_headers,
        reach=None if organisation.trusted else reach_of(allow_local=allow_local),
        options=run.benchmark_options,
        host_env=variables or {},
        allow_paths=run.allow_paths if organisation.trusted else (),
    )
    return benchmarks.open_benchmark(request.benchmark, asking)


def _uploads(organisation: Organisation) -> Callable[[str], Path]:
    def find(digest: str) -> Path:
        file = organisation.uploads() / f"{digest}.zip"
        if not re.fullmatch("[0-9a-f]{64}", digest) or not file.is_file():
            raise UnknownError(f"nothing was uploaded as {digest[:64]!r}; send it first.")
        return file

    return find


def _unwritable(artifacts: ArtifactStore | None, logs: LogKeeper | None) -> list[str]:
    """Return why what the run leaves could not be kept where it should be."""
    problems = []
    for place in (artifacts, logs):
        try:
            if place:
                place.check()
        except ValkyrieError as error:
            problems.append(str(error))
    return problems


def _capabilities(
    provider: str, data: DataFolder, settings: Mapping[str, str], only_look: bool
) -> Capabilities:
    try:
        options = settings or config.provider_options(provider)
        opened = open_provider(provider, data.sandboxes(provider), options)
        return opened.expected_capabilities() if only_look else opened.capabilities()
    except MissingSandboxConfigError:
        return Capabilities(provider=provider, isolation="unknown", images=True, networks=_ALL_NETWORKS)
    except SandboxError as error:
        raise UsageError(f"--provider {provider}: {error}") from error


def _provider_settings(
    request: RunRequest,
    organisation: Organisation,
    allow_local: bool,
    problems: ProblemList,
) -> Mapping[str, str]:
    secret = request.provider_secret
    try:
        return provider_settings(request.provider, organisation, secret, allow_local=allow_local)
    except UserError as error:
        problems.add(error)
        return {}


def _kept_back(names: Iterable[str], organisation: Organisation) -> list[str]:
    """A notice of variables that tasks have a default for, and the user a value they do not get."""
    here = organisation.variables()
    found = sorted(name for name in names if name in here)
    if not found:
        return []
    flags = " ".join(f"--pass-env {name}" for name in found)
    return [f"tasks ask for {', '.join(found)} of yours and take their own defaults; {flags} gives it."]


def _tasks(benchmark: Benchmark, request: RunRequest, problems: ProblemList) -> list[TaskSpec] | None:
    """Return the tasks asked for; None and one more problem when they cannot be known."""
    refused: list[MissingVariablesError] = []
    found = problems.collect(lambda: asyncio.run(_describe(benchmark, request, problems, refused)))
    if refused:
        problems.add(_refused_variables(refused, request))
    return found


def _refused_variables(refused: Sequence[MissingVariablesError], request: RunRequest) -> UserError:
    """One problem of all tasks that ask for variables of the user's."""
    names = list(dict.fromkeys(name for one in refused for name in one.names))
    more = f" (and {plural(len(refused) - 1, 'other task')})" if len(refused) > 1 else ""
    where = f"{refused[0].where}{more}"
    allowed = {*request.pass_env, *request.secrets}
    if unset := [name for name in names if name in allowed]:
        return MissingSecretError(
            f"{where} asks for {', '.join(unset)}, which is not set here: `export {unset[0]}=…`, or "
            f"`valk secret set {unset[0]}`.",
            missing={name: name for name in unset},
        )
    return MissingVariablesError(where, names)


async def _describe(
    benchmark: Benchmark, request: RunRequest, problems: ProblemList, refused: list[MissingVariablesError]
) -> list[TaskSpec]:
    tasks: list[TaskSpec] = []
    try:
        available = await benchmark.list_tasks(request.dataset)
        chosen = select(available, task_ids=request.task_ids, slice_text=request.slice)
        check_trials(len(chosen), request.trials)
        for start in range(0, len(chosen), DESCRIBED_AT_ONCE):
            some = chosen[start : start + DESCRIBED_AT_ONCE]
            found = await asyncio.gather(
                *(benchmark.describe(task_id, request.dataset) for task_id in some), return_exceptions=True
            )
            for one in found:
                if isinstance(one, MissingVariablesError):
                    refused.append(one)
                elif isinstance(one, BenchmarkError | UserError):
                    problems.texts.append(str(one))
                elif isinstance(one, BaseException):
                    raise one
                else:
                    tasks.append(one)
    finally:
        await benchmark.close()
    return tasks


def _resolve_secrets(
    wanted: Mapping[str, str], organisation: Organisation, problems: ProblemList
) -> tuple[Mapping[str, str], Sequence[str]]:
    if not wanted:
        return {}, []
    try:
        return find_secrets(wanted, organisation)
    except MissingSecretError as error:
        problems.add(error)
        return {}, []
