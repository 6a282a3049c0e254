"""Verbs about jobs, as coroutines."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import asdict
from typing import TYPE_CHECKING

from valkyrie.client.connection import Call, Connection, path
from valkyrie.client.events import job_events
from valkyrie.client.runs import changed, fields_of, params
from valkyrie.errors import UnknownError, UsageError
from valkyrie.job_views import (
    JobAgent,
    JobChange,
    JobFilter,
    JobPage,
    JobPlan,
    JobRequest,
    JobRetry,
    JobStop,
    JobView,
    StartedJob,
)

if TYPE_CHECKING:
    from valkyrie.nouns import Json


class JobCalls:
    """Start several runs together, look at them, steer them.

    `ref` is a job's id, a unique prefix of it, or its name (of several jobs of that name the newest).
    """

    _connection: Connection

    async def plan_job(self, request: JobRequest) -> JobPlan:
        """Return what `start_job` would do, checked in full; starts nothing."""
        call = Call("POST", path("jobs", "plan"), body=_said(request), repeatable=True)
        return await self._connection.get(JobPlan, call)

    async def start_job(self, request: JobRequest, *, key: str | None = None) -> StartedJob:
        """Start a job. Two starts with the same `key` are one job, so it is safe to ask again."""
        call = Call(
            "POST",
            path("jobs"),
            body=_said(request),
            headers={"Idempotency-Key": key or str(uuid.uuid4())},
            repeatable=True,
        )
        return await self._connection.get(StartedJob, call)

    async def job(self, ref: str) -> JobView:
        """One job as it stands, with its runs."""
        return await self._connection.get(JobView, Call("GET", path("jobs", await self._named(ref))))

    async def jobs(self, query: JobFilter | None = None) -> JobPage:
        """Jobs that match, newest first, a page at a time: `cursor` of one page leads to the next."""
        query = query or JobFilter()
        asked = {
            "since": query.since,
            "states": list(query.states),
            "name": query.name,
            "limit": query.limit,
            "cursor": query.cursor,
        }
        return await self._connection.get(JobPage, Call("GET", path("jobs"), params(asked)))

    async def job_events(self, ref: str, *, after: int | None = None) -> AsyncGenerator[JobView, None]:
        """Yield the job now, then again after every change, until it ended (that view is the last).

        Goes on after interruptions. `after` is the version that is known already.
        """
        name = await self._named(ref)
        async with aclosing(job_events(self._connection, name, after=after)) as found:
            async for job in found:
                yield job
                if job.ended:
                    return

    @fields_of(JobStop)
    async def stop_job(self, ref: str, request: JobStop) -> JobView:
        """Pending trials of all its runs become STOPPED; running ones finish, unless `force` kills them."""
        call = Call("POST", path("jobs", await self._named(ref), "stop"), body=changed(request))
        return await self._connection.get(JobView, call)

    async def resume_job(self, ref: str, change: JobChange | None = None) -> StartedJob:
        """Go on with what was stopped or interrupted, perhaps with more agents, tasks or trials."""
        body = changed(change or JobChange())
        if change and change.agents:
            body["agents"] = _agents(change.agents)
        call = Call("POST", path("jobs", await self._named(ref), "resume"), body=body)
        return await self._connection.get(StartedJob, call)

    @fields_of(JobRetry)
    async def retry_job(self, ref: str, request: JobRetry) -> StartedJob:
        """As `resume_job`, and ERROR trials too (only of `category`, if given)."""
        call = Call("POST", path("jobs", await self._named(ref), "retry"), body=changed(request))
        return await self._connection.get(StartedJob, call)

    async def delete_job(self, ref: str) -> None:
        """Forget an ended job, its runs, and everything kept of them."""
        await self._connection.ask(Call("DELETE", path("jobs", await self._named(ref))))

    async def _named(self, ref: str) -> str:
        """A job's name as one part of a path; one that cannot be is looked up."""
        text = ref.strip()
        if not text:
            raise UsageError("A job is named by its id, the beginning of it, or its name.")
        if "/" not in text and text not in (".", ".."):
            return text
        found = (await self.jobs(JobFilter(name=text, limit=1))).jobs
        if not found:
            raise UnknownError(f"No job {text[:80]!r}. `valk job list --all` shows them.")
        return found[0].id


def _said(request: JobRequest) -> Json:
    """Return what a request says beyond its defaults."""
    template = changed(request.template)
    for name in ("agent", "model"):
        template.pop(name, None)  # of each run its own
    if not request.template.benchmark:
        template.pop("benchmark", None)
    return {**changed(request), "agents": _agents(request.agents), "template": template}


def _agents(agents: Sequence[JobAgent]) -> list[Json]:
    return [{name: value for name, value in asdict(one).items() if value} for one in agents]
