"""Complete requests with what only the caller's machine knows: folders, config, secrets."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from valkyrie import plugins, secrets
from valkyrie.agents.catalog import CATALOG
from valkyrie.benchmarks.named.catalog import SHIPPED
from valkyrie.benchmarks.service import address
from valkyrie.config import values as config
from valkyrie.config.values import secrets_path
from valkyrie.errors import PREFLIGHT, MissingSecretError, UsageError
from valkyrie.views import PlanView, RegradeRequest, RunRequest, RunView, TasksRequest
from valkyrie.views.jobs import JobAgent, JobChange, JobPlan, JobRequest, JobView

if TYPE_CHECKING:
    from valkyrie.client.client import ValkyrieClient


Request = TypeVar("Request", RunRequest, TasksRequest)
_OURS = "VALKYRIE_"
"""The key people are known by is among them: an agent that asks for it would act in their name."""


async def complete(client: ValkyrieClient, request: RunRequest) -> RunRequest:
    """A request that means the same to the tracker: folders are sent, what the config says is said."""
    request = await complete_benchmark(client, request)
    return replace(request, agent=await complete_agent(client, request.agent))


async def complete_agent(client: ValkyrieClient, spec: str) -> str:
    """An agent as the tracker knows it; a folder or zip of this machine is sent."""
    local = await _local_agent(client, spec)
    return await client.upload_agent(local) if local else spec


async def complete_benchmark(client: ValkyrieClient, request: RunRequest) -> RunRequest:
    """A request whose benchmark and provider mean the same to the tracker."""
    folder = local_benchmark(request.benchmark, ignore_custom=request.ignore_custom_services)
    secret = config.mapping(config.SANDBOX_PROVIDERS).get(request.provider)
    request = with_service(request)
    return replace(
        request,
        benchmark=await client.upload_benchmark(folder) if folder else request.benchmark,
        provider_secret=request.provider_secret or (str(secret) if secret else None),
    )


async def with_tests(client: ValkyrieClient, request: RegradeRequest) -> RegradeRequest:
    """A request whose tests mean the same to the tracker; a folder of this machine is sent."""
    folder = local_benchmark(request.tests, ignore_custom=True) if request.tests else None
    return replace(request, tests=await client.upload_benchmark(folder)) if folder else request


def with_service(request: Request) -> Request:
    """Return where the benchmark's service is and its credential, as the caller's config has them."""
    found = _own_service(request.benchmark, ignore_custom=request.ignore_custom_services)
    if found is None:
        return request
    headers = with_credential(found.name, request.headers)
    if found.where == "given":
        return replace(request, headers=headers)
    return replace(request, headers=headers, benchmark_url=request.benchmark_url or found.url)


def with_credential(benchmark: str, headers: Mapping[str, str]) -> dict[str, str]:
    """Headers for a service; the credential kept for it goes along unless another was given."""
    credential = config.mapping(config.AUTH).get(benchmark)
    if not credential or "authorization" in {name.lower() for name in headers}:
        return dict(headers)
    return {"Authorization": str(credential), **headers}


def headers_again(run: RunView, headers: Mapping[str, str] | None) -> Mapping[str, str]:
    """Return the headers a run goes on with: values are not stored, so the caller gives the credential."""
    wanted = {str(name).lower() for name in run.arguments.get("headers") or ()}
    return with_credential(run.benchmark, headers or {}) if "authorization" in wanted else headers or {}


def service_now(run: RunView) -> str | None:
    found = address.custom_service(run.benchmark) if run.arguments.get("service") else None
    return found.url if found else None


def local_benchmark(spec: str, *, ignore_custom: bool) -> Path | None:
    """Return the folder (or zip) a benchmark's name means here; None for one the tracker must know."""
    if _is_word(spec) or address.given_url(spec) or (not ignore_custom and address.custom_service(spec)):
        return None
    found = Path(spec).expanduser()
    if spec and (found.is_dir() or (found.suffix == ".zip" and found.is_file())):
        return found
    if spec.startswith((".", "/", "~")):
        raise UsageError(f"no folder {spec}; --benchmark takes a name, or the path of a folder of tasks")
    return None


def _own_service(spec: str, *, ignore_custom: bool) -> address.ServiceAddress | None:
    """A service by its URL, or by a name the caller's own config or registry knows."""
    if found := address.given_url(spec):
        return found
    if not ignore_custom and (found := address.custom_service(spec)):
        return found
    if not spec or _is_word(spec) or local_benchmark(spec, ignore_custom=ignore_custom):
        return None
    return address.registered_service(spec) or address.patterned_service(spec)


def _is_word(spec: str) -> bool:
    """Return whether a benchmark's name means the same everywhere, whatever lies in this folder."""
    return spec in SHIPPED or plugins.is_target(spec) or spec.startswith("upload:")


async def _local_agent(client: ValkyrieClient, spec: str) -> Path | None:
    """Return the folder or zip an agent's name means on this machine; None for one the tracker must know."""
    if "/" in spec or spec in (".", "..") or spec.startswith("~"):
        return Path(spec).expanduser()
    if spec in CATALOG or plugins.is_target(spec) or spec.startswith("upload:"):
        return None
    if not any((Path(spec) / name).is_file() for name in ("contract.yaml", "contract.yml")):
        return None
    # A pushed agent comes before a folder that happens to have its name, as it does without a tracker.
    return None if any(agent.name == spec for agent in await client.agents()) else Path(spec)


async def supply(client: ValkyrieClient, refused: MissingSecretError, *, allowed: bool) -> Sequence[str]:
    """Keep what only this machine knows with the tracker; what the user should know of it.

    The refusal stands when a value is nowhere here either, when something else stands in the way of the run
    too, or when the value may not be kept there.
    """
    missing = refused.missing
    if ours := sorted({name for pair in missing.items() for name in pair if name.upper().startswith(_OURS)}):
        raise MissingSecretError(
            f"{refused} {', '.join(ours)} is this program's own and is given to no tracker and no agent.",
            missing=missing,
        )
    try:
        found = _found_here(missing)
    except MissingSecretError as nowhere:
        raise _with_note(refused, {*missing.values()} - {*nowhere.missing.values()}) from None
    names = sorted({missing[variable] for variable in found.secrets})
    if refused.cause == PREFLIGHT:
        raise _with_note(refused, names)
    if not allowed:
        raise MissingSecretError(
            f"The tracker has no value for {', '.join(names)}; this machine has, but --no-store-secrets "
            "keeps it here. `valk secret set NAME` stores one, or leave the flag out.",
            missing=missing,
        )
    organisation = (await client.me()).org
    values = {missing[variable]: value for variable, value in found.secrets.items()}
    for name in names:
        await client.set_secret(name, values[name])
    said = [
        f"stored {name}, encrypted, for organisation {organisation}; --no-store-secrets refuses"
        for name in names
    ]
    return [*found.notices, *said]


def _found_here(missing: Mapping[str, str]) -> secrets.Resolution:
    """Return the values this machine has; of keys any of which will do, one is enough."""
    sources = secrets.default_sources(secrets.SecretStore(secrets_path()))
    try:
        return secrets.resolve(missing, sources)
    except MissingSecretError as nowhere:
        here = {variable: name for variable, name in missing.items() if variable not in nowhere.missing}
        groups = [set(group.names) for entry in CATALOG.values() for group in entry.keys]
        spared = {name for names in groups if names <= {*missing} and names & {*here} for name in names}
        if not {*nowhere.missing} <= spared:
            raise
        return secrets.resolve(here, sources)


def _with_note(refused: MissingSecretError, here: Collection[str]) -> MissingSecretError:
    """Return the refusal, which does not know what this machine has."""
    if not here:
        return refused
    note = f"note: this machine has {', '.join(sorted(here))}; a run that starts lets the tracker keep it."
    return MissingSecretError(f"{refused}\n  {note}", missing=refused.missing, cause=refused.cause)


def as_if_supplied(plan: PlanView) -> PlanView:
    """A plan as it would be once the tracker keeps the secrets only this machine has."""
    if not plan.missing:
        return plan
    try:
        found = _found_here(plan.missing)
    except MissingSecretError:
        return plan
    names = sorted({plan.missing[variable] for variable in found.secrets})
    # Secrets of the agent, of messages and of the provider are problems of their own; all were found here.
    told = ("without a value", " needs ")
    problems = [
        problem
        for problem in plan.problems
        if not (any(words in problem for words in told) and any(name in problem for name in names))
    ]
    said = [f"{name} would be stored, encrypted, for your organisation" for name in names]
    return replace(plan, problems=problems, notices=[*plan.notices, *said], missing={})


# What only the caller's machine knows, put into a request for a job.


async def complete_job(client: ValkyrieClient, request: JobRequest) -> JobRequest:
    """A request that means the same to the tracker: folders are sent, what the config says is said."""
    template = await complete_benchmark(client, request.template)
    several = [
        await complete_benchmark(client, replace(request.template, benchmark=one))
        for one in request.benchmarks
    ]
    if unlike := next((one for one in several if one.benchmark_url or one.headers != template.headers), None):
        raise UsageError(
            f"--benchmark {unlike.benchmark} is a service of your own; a job with other "
            "benchmarks takes none. Start a job for it alone."
        )
    named = tuple(one.benchmark for one in several)
    return replace(
        request, agents=await sent_job(client, request.agents), template=template, benchmarks=named
    )


async def sent_job(client: ValkyrieClient, agents: Sequence[JobAgent]) -> tuple[JobAgent, ...]:
    """Agents as the tracker knows them; folders are sent."""
    found = [replace(one, agent=await complete_agent(client, one.agent)) for one in agents]
    return tuple(found)


async def complete_job_change(client: ValkyrieClient, change: JobChange, job: JobView) -> JobChange:
    """A change that means the same to the tracker; the credential of the job's service goes along."""
    headers = job_headers_again(job, change.headers)
    return replace(change, agents=await sent_job(client, change.agents), headers=headers)


def job_headers_again(job: JobView, headers: Mapping[str, str] | None) -> Mapping[str, str]:
    """Return the headers a job goes on with; with the credential kept for its service, if it has only one."""
    if len({run.benchmark for run in job.runs}) != 1:
        return headers or {}
    return headers_again(job.runs[0], headers)


def job_as_if_supplied(plan: JobPlan) -> JobPlan:
    """A plan as it would be once the tracker keeps the secrets only this machine has."""
    plans = [as_if_supplied(one) for one in plan.plans]
    solved = {problem for one in plan.plans for problem in one.problems}
    solved -= {problem for one in plans for problem in one.problems}
    return replace(plan, plans=plans, problems=[one for one in plan.problems if one not in solved])
