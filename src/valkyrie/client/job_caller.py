"""What only the caller's machine knows, put into a request for a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from valkyrie.client import caller
from valkyrie.errors import UsageError
from valkyrie.job_views import JobAgent, JobChange, JobPlan, JobRequest, JobView

if TYPE_CHECKING:
    from valkyrie.client.client import ValkyrieClient


async def complete(client: ValkyrieClient, request: JobRequest) -> JobRequest:
    """A request that means the same to the tracker: folders are sent, what the config says is said."""
    template = await caller.complete_benchmark(client, request.template)
    several = [
        await caller.complete_benchmark(client, replace(request.template, benchmark=one))
        for one in request.benchmarks
    ]
    if unlike := next((one for one in several if one.benchmark_url or one.headers != template.headers), None):
        raise UsageError(
            f"--benchmark {unlike.benchmark} is a service of your own; a job with other "
            "benchmarks takes none. Start a job for it alone."
        )
    named = tuple(one.benchmark for one in several)
    return replace(request, agents=await sent(client, request.agents), template=template, benchmarks=named)


async def sent(client: ValkyrieClient, agents: Sequence[JobAgent]) -> tuple[JobAgent, ...]:
    """Agents as the tracker knows them; folders are sent."""
    found = [replace(one, agent=await caller.complete_agent(client, one.agent)) for one in agents]
    return tuple(found)


async def complete_change(client: ValkyrieClient, change: JobChange, job: JobView) -> JobChange:
    """A change that means the same to the tracker; the credential of the job's service goes along."""
    headers = headers_again(job, change.headers)
    return replace(change, agents=await sent(client, change.agents), headers=headers)


def headers_again(job: JobView, headers: Mapping[str, str] | None) -> Mapping[str, str]:
    """Return the headers a job goes on with; with the credential kept for its service, if it has only one."""
    if len({run.benchmark for run in job.runs}) != 1:
        return headers or {}
    return caller.headers_again(job.runs[0], headers)


def as_if_supplied(plan: JobPlan) -> JobPlan:
    """A plan as it would be once the tracker keeps the secrets only this machine has."""
    plans = [caller.as_if_supplied(one) for one in plan.plans]
    solved = {problem for one in plan.plans for problem in one.problems}
    solved -= {problem for one in plans for problem in one.problems}
    return replace(plan, plans=plans, problems=[one for one in plan.problems if one not in solved])
