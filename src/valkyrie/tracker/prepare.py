"""From a request to a run ready to be stored: resolve, check everything, freeze, and say what is stored."""

from __future__ import annotations

import asyncio
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from sandboxes.errors import MissingSandboxConfigError, SandboxError
from sandboxes.masker import Masker
from sandboxes.registry import open_provider
from sandboxes.types import Capabilities
from sandboxes.values import host_memory_mb
from valkyrie import agents, benchmarks
from valkyrie.agents import PreparedAgent
from valkyrie.agents.loader import ARCHIVE_NAME
from valkyrie.artifact_store.protocol import frozen_agent_key, run_prefix, upload_key
from valkyrie.benchmarks.protocol import (
    Benchmark,
    BenchmarkRequest,
    MissingVariablesError,
    computed,
    confirmed_score,
    grades_of,
    select,
)
from valkyrie.benchmarks.service.address import reach_of
from valkyrie.config import values as config
from valkyrie.domain import (
    Category,
    Identity,
    Json,
    RunState,
    TaskSpec,
    TrialState,
    ended_by_agent,
    worst_score,
)
from valkyrie.errors import (
    BenchmarkError,
    MissingSecretError,
    UnknownError,
    UsageError,
    UserError,
    ValkyrieError,
)
from valkyrie.notifications.messages import preflight, requested_notifications, wanted_secrets
from valkyrie.plan import FAMILY, Settings, TrialPlan, make_plan
from valkyrie.report.formats import plural
from valkyrie.report.presentation import score_view
from valkyrie.secrets.delivery import unspeakable, with_credentials, with_headers, with_hooks, with_settings
from valkyrie.store.counters import add_grade
from valkyrie.store.layout import DataFolder, RunFolder
from valkyrie.store.runs import NewTrial
from valkyrie.store.schema import ERROR_COUNTERS, STATE_COUNTERS
from valkyrie.tracker.checks import (
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
    service_headers,
    unanswered,
    with_keys,
)
from valkyrie.views import PlanView, RunRequest, RunView, ScoreView, TasksRequest

if TYPE_CHECKING:
    from valkyrie.artifact_store.protocol import ArtifactStore, LogKeeper
    from valkyrie.tenants import Organisation


TIMEOUT_S = 60.0


def rescored(
    row: Any, trials: Sequence[Any], organisation: Organisation, headers: Mapping[str, str]
) -> tuple[Json, ScoreView]:
    """Return the benchmark's verdict on these trials of a run, and the named numbers over them.

    Only a benchmark's own service can compute its score: where it cannot be asked, there is none, and the
    verdict says why.
    """
    try:
        final, graded, confirmed = asyncio.run(_asked(row, trials, organisation, headers))
    except (ValkyrieError, TimeoutError) as error:
        why = str(error) or f"no answer within {TIMEOUT_S:g} s"
        final, graded, confirmed = {"final_score": None, "properties": {"not_computed": why}}, None, None
    return final, _numbers(row, trials, final, graded, confirmed)


async def _asked(
    row: Any, trials: Sequence[Any], organisation: Organisation, headers: Mapping[str, str]
) -> tuple[Json, float | None, float | None]:
    source: Json = row.benchmark_source
    asks_a_service = source.get("kind") == "service"
    handed = with_headers(service_headers(row, headers, organisation) if asks_a_service else {})
    benchmark = benchmarks.open_frozen(source, handed)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            grades = grades_of(trials)
            final, graded = await computed(benchmark, grades, row.dataset)
            confirmed = await confirmed_score(benchmark, grades, row.dataset)
    finally:
        await benchmark.close()
    # A service is not to get its own credential into a file that is passed around.
    return Masker(unspeakable(handed)).data(final), graded, confirmed


def _numbers(
    row: Any, trials: Sequence[Any], final: Json, graded: float | None, confirmed: float | None
) -> ScoreView:
    """Return the numbers of a run that has these trials only."""
    scores: dict[str, list[float | None]] = {}
    counters: dict[str, float] = defaultdict(int)
    worst = worst_score(trial.score for trial in trials if trial.state == TrialState.FINISHED)
    for trial in trials:
        counters[STATE_COUNTERS[TrialState(trial.state)]] += 1
        score = worst if ended_by_agent(trial.state, trial.category) else None
        if trial.state == TrialState.FINISHED:
            add_grade(counters, trial, +1)
            score = trial.score
        elif trial.state == TrialState.ERROR and trial.category:
            counters[ERROR_COUNTERS[Category(trial.category)]] += 1
        if trial.state != TrialState.SKIPPED:
            scores.setdefault(trial.task_id, []).append(score)
    names = (*STATE_COUNTERS.values(), *ERROR_COUNTERS.values(), *_COUNTERS)
    smaller = SimpleNamespace(
        state=RunState.FINISHED,
        fraction=row.fraction,
        arguments=row.arguments,
        final_evaluation=final,
        final_score=final["final_score"],
        score_graded=graded,
        score_confirmed=confirmed,
        **{name: counters[name] for name in names},
    )
    families = {trial.task_id: trial.family for trial in trials if trial.family is not None}
    return score_view(smaller, scores, families)


_COUNTERS = (
    *("n_passed", "n_partial", "score_sum"),
    *("n_confirmed", "confirmed_sum", "n_verified", "n_open"),
)


# From a request to a run ready to be stored: resolve, check everything, freeze. Nothing is written here.

DESCRIBED_AT_ONCE = 32
_ALL_NETWORKS = frozenset({"none", "public", "allowlist"})


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
    hook_values: Sequence[str]
    """Names of what messages to the outside need."""
    credentials: Sequence[str]
    """Names of what executors reach the caller's cloud with."""
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

    def view(self) -> PlanView:
        """Return what would run."""
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
            variables=list(self.host_variables),
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
    agent = problems.collect(lambda: _open_agent(request, organisation))
    if agent:
        agent = with_keys(agent, request, organisation, problems)
    wanted = agent.secrets if agent else _wanted_anyway(problems.texts[-1], request)
    allowed = allowed_variables(request, organisation)
    benchmark = problems.collect(
        lambda: open_requested(request, organisation, data, allowed, allow_local=allow_local)
    )
    settings_found = _provider_settings(request, organisation, allow_local, problems)
    capabilities = _capabilities(request.provider, data, settings_found, only_look)
    tasks = _tasks(benchmark, request, problems) if benchmark else None
    if agent and benchmark and tasks is not None:
        problems.texts += unfit(tasks, agent, capabilities, request)
        problems.texts += without_family(tasks, request.family)
        problems.texts += service_problems(benchmark.source, agent, remote=bool(settings_found))
    else:
        problems.texts += unable(capabilities, request.provider)
    values, found_where = _resolve_secrets(wanted, organisation, problems)
    hook_values, _ = _resolve_secrets(wanted_secrets(wishes), organisation, problems)
    artifacts, logs = organisation.artifacts(), organisation.logs()
    problems.texts += preflight(wishes, organisation, hook_values)
    problems.texts += _unwritable(artifacts, logs)
    if agent is None or benchmark is None or tasks is None:
        raise refuse(problems.texts, problems.missing)
    settings = _settings(request)
    headers = benchmark.capabilities.headers or {}
    asked = {name for task in tasks for name in task.metadata.get("host_variables", [])}
    variables = {name: value for name, value in allowed.items() if name in asked}
    credentials = aws_credentials(organisation) if artifacts or logs or wishes else {}
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
            host_mb=None if settings_found else host_memory_mb(),
            family=request.family,
        ),
        secrets={
            **variables,
            **values,
            **with_headers(headers),
            **with_settings(settings_found),
            **with_hooks(hook_values),
            **with_credentials(credentials),
        },
        host_variables=sorted(variables),
        headers=sorted(headers),
        provider_settings=sorted(settings_found),
        hook_values=sorted(hook_values),
        credentials=sorted(credentials),
        wishes=wishes,
        artifacts=artifacts,
        logs=logs,
        problems=problems.texts,
        missing=problems.missing,
        destinations=destinations(agent, request, settings_found),
        notices=[
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
        ],
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
    found: Mapping[str, str] = getattr(getattr(refused, "error", None), "secrets", {})
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
    run = request if isinstance(request, RunRequest) else None
    asking = BenchmarkRequest(
        host_image=run is not None and run.host_image,
        headers=request.headers,
        ignore_custom=request.ignore_custom_services,
        trusted=organisation.trusted,
        uploads=_uploads(organisation),
        url=request.benchmark_url,
        cache=data.cache,
        caller_headers=organisation.caller_headers,
        reach=None if organisation.trusted else reach_of(allow_local=allow_local),
        options=run.benchmark_options if run else {},
        host_env=variables or {},
        allow_paths=run.allow_paths if run and organisation.trusted else (),
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


def _elsewhere(tasks: Sequence[TaskSpec]) -> list[TaskSpec]:
    """Tasks whose sandboxes take nothing of this machine's room."""
    return [replace(task, limits=replace(task.limits, cpus=None, memory_mb=None)) for task in tasks]


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


# What is stored of a run: everything it was asked with, secrets by name only.


def keep_frozen(prepared: PreparedRun, run_id: str, folder: RunFolder, uploads: Path) -> None:
    """Put the run's agent, and a benchmark that was sent along, where executors elsewhere find them."""
    artifacts = prepared.artifacts
    if artifacts is None:
        return
    archive = folder.agent / ARCHIVE_NAME
    if archive.is_file():
        artifacts.put(frozen_agent_key(run_id, prepared.agent.name), archive)
    digest = prepared.benchmark.source.get("upload")
    if digest and artifacts.find(upload_key(digest)) is None:
        artifacts.put(upload_key(digest), uploads / f"{digest}.zip")


def new_trials(planned: Sequence[TrialPlan]) -> list[NewTrial]:
    """Return what is stored of planned trials."""
    return [NewTrial(one.task_id, one.k, one.digest, one.cpus, one.memory_mb, one.family) for one in planned]


def run_values(prepared: PreparedRun, run_id: str, frozen: Json, identity: Identity) -> Json:
    """Return the columns of a new run's row."""
    request = prepared.request
    return {
        "id": run_id,
        "agent": prepared.agent.name,
        "model": prepared.agent.model,
        "benchmark": prepared.benchmark.name,
        "dataset": request.dataset,
        "label": request.label,
        "provider": request.provider,
        "org_id": identity.org_id,
        "started_by": identity.person,
        "key_id": identity.key_id,
        "priority": request.priority,
        "max_cost": request.max_cost,
        "abort_after": request.abort_after,
        "notify": prepared.wishes,
        "place": kept_at(prepared.artifacts, prepared.logs, run_id),
        "concurrency": request.concurrency,
        "in_turn": request.in_turn,
        "fraction": prepared.benchmark.fraction,
        "created_at": time.time(),
        "arguments": {
            "agent": request.agent,
            "benchmark": request.benchmark,
            "model": request.model,
            "dataset": request.dataset,
            "trials": request.trials,
            "kwargs": dict(request.kwargs),
            "secrets": dict(prepared.agent.secrets),
            "host_variables": list(prepared.host_variables),
            "headers": list(prepared.headers),
            "provider_settings": list(prepared.provider_settings),
            "provider_secret": request.provider_secret,
            "hook_values": list(prepared.hook_values),
            "credentials": list(prepared.credentials),
            "lambda_function": request.lambda_function,
            "ignore_custom_services": request.ignore_custom_services,
            "task_ids": list(request.task_ids) if request.task_ids is not None else None,
            "slice": request.slice,
            "keep_sandbox": request.keep_sandbox,
            "max_attempts": request.max_attempts,
            "store_secrets": request.store_secrets,
            **_families(prepared),
            "agent_digest": prepared.agent.digest,
            "settings": asdict(prepared.settings),
            **({"stop_rule": prepared.stop_rule} if prepared.stop_rule else {}),
            **_service(prepared.benchmark.source),
            **_variant(prepared.benchmark.source),
        },
        "agent_frozen": frozen,
        "benchmark_source": prepared.benchmark.source,
        "enforcement": {"isolation": prepared.capabilities.isolation, **prepared.capabilities.enforcement},
    }


def request_again(run: RunView, task_id: str, headers: Mapping[str, str]) -> RunRequest:
    """Return the request that runs one task of a run once more, in a run of its own whose sandbox is kept.

    The run it comes from keeps its verdict: another try of a trial that counts would be a second chance.
    """
    said = run.arguments
    if run.ingested or "variant" in said:
        what = "ran elsewhere" if run.ingested else "belongs to an eval; `valk eval` runs it again"
        raise UserError(f"Run {run.id[:8]} {what}: its trials cannot be run again here.")
    if lacking := [name for name in said.get("headers", []) if name not in headers]:
        flags = " ".join(f"-H {name} VALUE" for name in lacking)
        raise UserError(f"Run {run.id[:8]} was started with headers, which are not kept; add {flags}.")
    settings = {key: value for key, value in said.get("settings", {}).items() if key in _AS_ASKED}
    same = {key: said[key] for key in _SAME if said.get(key) is not None}
    return RunRequest(
        task_ids=[task_id],
        concurrency=1,
        label=f"debug of {run.id[:8]}",
        keep_sandbox=True,
        max_attempts=1,
        headers=headers,
        pass_env=said.get("host_variables", []),
        **{**same, **settings},
    )


_SAME = (
    *("agent", "benchmark", "model", "dataset", "kwargs", "secrets", "provider_secret"),
    *("ignore_custom_services", "store_secrets"),
)
_AS_ASKED = tuple(one.name for one in fields(RunRequest))


def _families(prepared: PreparedRun) -> Json:
    """Return the key families were looked for under, and that there are some."""
    if not any(one.family for one in prepared.trials):
        return {}
    return {"family": prepared.request.family or FAMILY}


def _service(source: Json) -> Json:
    """Return where a benchmark service was, which version it said it is, and what it was to grade."""
    if source.get("kind") != "service":
        return {}
    return {"service": {name: source[name] for name in ("url", "where", "grading", "versions")}}


def _variant(source: Json) -> Json:
    """Return which variant of an experiment an eval is."""
    if source.get("kind") != "eval_spec":
        return {}
    return {"variant": source["options"].get("variant", "main")}


def kept_at(artifacts: ArtifactStore | None, logs: LogKeeper | None, run_id: str) -> Json | None:
    """Return where artifacts and logs go besides the executor's folder, and the pages that show them."""
    found: Json = {}
    if artifacts:
        found["artifacts"] = artifacts.place | _page(artifacts.console_url(run_prefix(run_id)))
    if logs:
        found["logs"] = logs.place | _page(logs.url(run_id))
    return found or None


def _page(url: str | None) -> Json:
    return {"page": url} if url and "://" in url else {}
