"""Jobs: several runs started together, compared, steered, forgotten."""

from __future__ import annotations

from typing import Annotated

from fastapi import Header, Path, Query
from starlette.responses import Response

from valkyrie.api.bodies import JobBody, JobResumeBody, JobRetryBody, JobStopBody
from valkyrie.api.context import Ask
from valkyrie.api.hub import LastSeen, described, watched
from valkyrie.api.routes import LONGEST_REF, errors, router
from valkyrie.domain import JobState
from valkyrie.views.jobs import JobFilter, JobPage, JobPlan, JobView, StartedJob

routes = router("jobs", "/v1/jobs")

JobRef = Annotated[
    str,
    Path(
        description="A job's id, a unique prefix of it, its name (of several the newest), or `latest`.",
        max_length=LONGEST_REF,
    ),
]
_KEY = "Makes the start safe to repeat: the same key gives the job that was started with it."
_EVENTS = (
    "`event: job` with a JobView after every change of it or of one of its runs. `id` is the job's version: "
    "send it as `Last-Event-ID` to go on from there. `event: end` is the last one of a job that ended. A "
    "comment line comes when nothing else does."
)
_LATEST = 253402300799.0
"""The end of the year 9999."""


@routes.post("/plan", response_model=JobPlan, responses=errors(400, 404, 413, 422, 502))
async def plan(request: JobBody, ask: Ask) -> Response:
    """What a start would do, checked in full; nothing is stored."""
    return await ask.slow(lambda tracker: tracker.plan_job(request))


@routes.post("", response_model=StartedJob, status_code=201, responses=errors(400, 404, 413, 422, 502))
async def start(
    request: JobBody,
    ask: Ask,
    idempotency_key: Annotated[str | None, Header(description=_KEY, min_length=8, max_length=128)] = None,
) -> Response:
    """Start a job: all its runs are planned, checked and stored, or none."""
    return await ask.slow(lambda tracker: tracker.start_job(request, key=idempotency_key), 201)


@routes.get("", response_model=JobPage, responses=errors(400))
async def list_jobs(
    ask: Ask,
    since: Annotated[
        float | None,
        Query(description="Created at this time or later: seconds since the epoch.", ge=0, le=_LATEST),
    ] = None,
    states: Annotated[list[JobState] | None, Query(description="In one of these states.")] = None,
    name: Annotated[str | None, Query(description="Called so.", max_length=LONGEST_REF)] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    cursor: Annotated[str | None, Query(description="Where the page before ended.", max_length=500)] = None,
) -> Response:
    """Jobs of the organisation, newest first, page by page."""
    query = JobFilter(
        since=since,
        states=tuple(state.value for state in states or ()),
        name=name,
        limit=limit,
        cursor=cursor,
    )
    return await ask.quick(lambda tracker: tracker.list_jobs(query))


@routes.get("/{ref}", response_model=JobView, responses=errors(400, 404))
async def fetch(ref: JobRef, ask: Ask) -> Response:
    """One job as it stands, with its runs."""
    return await ask.quick(lambda tracker: tracker.fetch_job(ref))


@routes.get("/{ref}/events", **described(_EVENTS))
async def events(ref: JobRef, ask: Ask, seen: LastSeen) -> Response:
    """The job's progress as server-sent events, until it ended."""
    return await watched(ask, "job", ref, seen)


@routes.post("/{ref}/stop", response_model=JobView, responses=errors(400, 404, 413, 422))
async def stop(ref: JobRef, request: JobStopBody, ask: Ask) -> Response:
    """Stop all its runs: pending trials become STOPPED; running ones finish, unless `force` kills them."""
    return await ask.quick(lambda tracker: tracker.stop_job(ref, request))


@routes.post("/{ref}/resume", response_model=StartedJob, responses=errors(400, 404, 413, 422, 502))
async def resume(ref: JobRef, request: JobResumeBody, ask: Ask) -> Response:
    """Go on with what was stopped or interrupted, perhaps with more agents, tasks or trials."""
    return await ask.slow(lambda tracker: tracker.resume_job(ref, request))


@routes.post("/{ref}/retry", response_model=StartedJob, responses=errors(400, 404, 413, 422, 502))
async def retry(ref: JobRef, request: JobRetryBody, ask: Ask) -> Response:
    """As resume, and trials in ERROR too (only of `category`, if given)."""
    return await ask.slow(lambda tracker: tracker.retry_job(ref, request))


@routes.delete("/{ref}", status_code=204, responses=errors(400, 404, 422))
async def delete(ref: JobRef, ask: Ask) -> Response:
    """Forget an ended job, its runs, and everything kept of them."""
    return await ask.slow(lambda tracker: tracker.delete_job(ref), 204)
