"""Verbs about jobs, over HTTP."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from dataclasses import replace

from valkyrie.client import job_caller
from valkyrie.errors import UnknownError
from valkyrie.job_views import (
    JobChange,
    JobFilter,
    JobPage,
    JobPlan,
    JobRequest,
    JobView,
    StartedJob,
)
from valkyrie.tracker.remote_desk import RemoteDesk
from valkyrie.tracker.remote_scenarios import sent_scenarios


class RemoteJobs(RemoteDesk):
    """Several runs started together, asked of a tracker."""

    def plan_job(self, request: JobRequest) -> JobPlan:
        async def ask() -> JobPlan:
            plan = await self._client.plan_job(await self._complete(request))
            return job_caller.as_if_supplied(plan) if request.template.store_secrets else plan

        return self._run(ask())

    def start_job(self, request: JobRequest) -> StartedJob:
        async def ask() -> StartedJob:
            asked = await self._complete(request)
            allowed = request.template.store_secrets
            return await self._supplied(lambda: self._client.start_job(asked), allowed=allowed)

        return self._run(ask())

    async def _complete(self, request: JobRequest) -> JobRequest:
        """A request that means the same to the tracker; its name is made of words the caller used."""
        from valkyrie.tracker.job_planning import job_name

        scenarios = await sent_scenarios(self._client, request.scenarios)
        named = replace(request, name=job_name(request, time.time()), scenarios=scenarios)
        return await job_caller.complete(self._client, named)

    def fetch_job(self, ref: str) -> JobView:
        return self._run(self._client.job(ref))

    def follow_job(self, ref: str, *, interval: float = 0.2) -> Iterator[JobView]:  # noqa: ARG002 - told, not asked
        return self._each(self._until_gone(ref))

    async def _until_gone(self, ref: str) -> AsyncGenerator[JobView, None]:
        told = False
        try:
            async with aclosing(self._client.job_events(ref)) as views:
                async for view in views:
                    told = True
                    yield view
        except UnknownError:
            if not told:
                raise  # else it was deleted meanwhile: nothing more will happen to it

    def list_jobs(self, query: JobFilter) -> JobPage:
        return self._run(self._client.jobs(query))

    def stop_job(self, ref: str, *, force: bool = False) -> JobView:
        return self._run(self._client.stop_job(ref, force=force))

    def resume_job(self, ref: str, change: JobChange | None = None) -> StartedJob:
        async def ask() -> StartedJob:
            job = await self._client.job(ref)
            asked = await job_caller.complete_change(self._client, change or JobChange(), job)
            asked = replace(asked, scenarios=await sent_scenarios(self._client, asked.scenarios))
            return await self._supplied(
                lambda: self._client.resume_job(job.id, asked), allowed=_may_be_kept(job)
            )

        return self._run(ask())

    def retry_job(
        self,
        ref: str,
        *,
        category: str | None = None,
        concurrency: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> StartedJob:
        async def ask() -> StartedJob:
            job = await self._client.job(ref)
            return await self._supplied(
                lambda: self._client.retry_job(
                    job.id,
                    category=category,
                    concurrency=concurrency,
                    headers=job_caller.headers_again(job, headers),
                ),
                allowed=_may_be_kept(job),
            )

        return self._run(ask())

    def delete_job(self, ref: str) -> None:
        self._run(self._client.delete_job(ref))


def _may_be_kept(job: JobView) -> bool:
    """Whether values may be kept by the tracker, as it was said when the job was started."""
    return all(run.arguments.get("store_secrets", True) for run in job.runs)
