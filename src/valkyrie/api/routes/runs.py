"""Runs: planned, started, looked at, steered, forgotten."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Header, Path, Query
from starlette.responses import Response

from valkyrie.api.bodies import RegradeBody, ResumeBody, RetryBody, RunBody, StopBody, UpdateBody
from valkyrie.api.context import Ask
from valkyrie.api.events import LastSeen, described, watched
from valkyrie.api.routes import LONGEST_REF, RUN_REF, Ref, errors, router
from valkyrie.domain import RunState
from valkyrie.views import (
    GradingComparison,
    GradingView,
    PlanView,
    RegradeView,
    RunFilter,
    RunPage,
    RunView,
    StartedRun,
)

routes = router("runs", "/v1/runs")

MOST = 1_000_000
Grading = Annotated[int, Query(ge=0, le=MOST, description="The number of a grading.")]

_KEY = "Makes the start safe to repeat: the same key gives the run that was started with it."
_EVENTS = (
    "`event: run` with a RunView after every change; with `trials=true`, before it, `event: trial` with a "
    "TrialView for each trial that changed since the version you have seen (those nothing happened to yet "
    "are in the run's counts, and in its list of trials). `id` is the "
    "run's version up to which everything was sent: send it as `Last-Event-ID` to go on from there. "
    "`event: end` is the last one of a run that ended. A comment line comes when nothing else does."
)


@routes.post("/plan", response_model=PlanView, responses=errors(400, 404, 413, 422, 502))
async def plan(request: RunBody, ask: Ask) -> Response:
    """What a start would do, checked in full; nothing is stored."""
    return await ask.slow(lambda tracker: tracker.plan(request))


@routes.post("", response_model=StartedRun, status_code=201, responses=errors(400, 404, 413, 422, 502))
async def start(
    request: RunBody,
    ask: Ask,
    idempotency_key: Annotated[str | None, Header(description=_KEY, min_length=8, max_length=128)] = None,
) -> Response:
    """Start a run: plan, check, store. Nothing is stored when a check fails."""
    return await ask.slow(lambda tracker: tracker.start(request, key=idempotency_key), 201)


@routes.get("", response_model=RunPage, responses=errors(400))
async def list_runs(
    ask: Ask,
    agent: str | None = None,
    benchmark: str | None = None,
    model: str | None = None,
    dataset: str | None = None,
    state: RunState | None = None,
    label: str | None = None,
    job: Annotated[
        str | None, Query(description="Of this job: its id, name or `latest`.", max_length=LONGEST_REF)
    ] = None,
    started_by: Annotated[list[str] | None, Query(description="One of these people.", max_length=100)] = None,
    order: Annotated[Literal["desc", "asc"], Query(description="By time of creation.")] = "desc",
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    cursor: Annotated[str | None, Query(description="Where the page before ended.", max_length=500)] = None,
) -> Response:
    """Runs of the organisation, page by page."""
    query = RunFilter(
        agent=agent,
        benchmark=benchmark,
        model=model,
        dataset=dataset,
        state=state.value if state else None,
        label=label,
        job=job,
        started_by=tuple(started_by or ()),
        newest_first=order == "desc",
        limit=limit,
        cursor=cursor,
    )
    return await ask.quick(lambda tracker: tracker.list(query))


@routes.get("/named", response_model=RunView, responses=errors(400, 404))
async def fetch_named(
    ask: Ask,
    ref: Annotated[str, Query(description=f"{RUN_REF} Or JOB/AGENT.", max_length=2 * LONGEST_REF)],
) -> Response:
    """One run, by a word that may be no part of a path."""
    return await ask.quick(lambda tracker: tracker.fetch(ref))


@routes.get("/{ref}", response_model=RunView, responses=errors(400, 404))
async def fetch(ref: Ref, ask: Ask) -> Response:
    """One run as it stands."""
    return await ask.quick(lambda tracker: tracker.fetch(ref))


@routes.get("/{ref}/events", **described(_EVENTS))
async def events(
    ref: Ref,
    ask: Ask,
    seen: LastSeen,
    trials: Annotated[bool, Query(description="Also every trial that changes.")] = False,
) -> Response:
    """The run's progress as server-sent events, until it ended."""
    return await watched(ask, "run", ref, seen, trials=trials)


@routes.post("/{ref}/stop", response_model=RunView, responses=errors(400, 404, 413, 422))
async def stop(ref: Ref, request: StopBody, ask: Ask) -> Response:
    """Pending trials become STOPPED; running ones finish, unless `force` kills them."""
    return await ask.quick(lambda tracker: tracker.stop(ref, request))


@routes.post("/{ref}/resume", response_model=StartedRun, responses=errors(400, 404, 413, 422, 502))
async def resume(ref: Ref, request: ResumeBody, ask: Ask) -> Response:
    """STOPPED trials run again; what a crash interrupted goes on."""
    return await ask.slow(lambda tracker: tracker.resume(ref, request))


@routes.post("/{ref}/retry", response_model=StartedRun, responses=errors(400, 404, 413, 422, 502))
async def retry(ref: Ref, request: RetryBody, ask: Ask) -> Response:
    """As resume, and trials in ERROR too (only of `category`, if given)."""
    return await ask.slow(lambda tracker: tracker.retry(ref, request))


@routes.post("/{ref}/regrade", response_model=RegradeView, responses=errors(400, 404, 413, 422, 502))
async def regrade(ref: Ref, request: RegradeBody, ask: Ask) -> Response:
    """Grade the kept work of an ended run's trials again, without running agents."""
    return await ask.slow(lambda tracker: tracker.regrade(ref, request))


@routes.get("/{ref}/gradings", response_model=list[GradingView], responses=errors(400, 404))
async def gradings(ref: Ref, ask: Ask) -> Response:
    """The run's gradings by number; 0 is the one its own trials made."""
    return await ask.quick(lambda tracker: tracker.gradings(ref))


@routes.get("/{ref}/gradings/compare", response_model=GradingComparison, responses=errors(400, 404, 422))
async def compare_gradings(ref: Ref, ask: Ask, a: Grading = 0, b: Grading = 1) -> Response:
    """Which trials two gradings of the run judge differently; the original and the first one if unsaid."""
    return await ask.quick(lambda tracker: tracker.compare_gradings(ref, a, b))


@routes.post("/{ref}/gradings/{number}/use", response_model=RunView, responses=errors(400, 404, 422))
async def use_grading(ref: Ref, number: Annotated[int, Path(ge=0, le=MOST)], ask: Ask) -> Response:
    """Make one grading the run's own: verdicts, counters and final score."""
    return await ask.quick(lambda tracker: tracker.use_grading(ref, number))


@routes.patch("/{ref}", response_model=RunView, responses=errors(400, 404, 413, 422))
async def update(ref: Ref, request: UpdateBody, ask: Ask) -> Response:
    """Change a live run."""
    return await ask.quick(lambda tracker: tracker.update(ref, request))


@routes.delete("/{ref}", status_code=204, responses=errors(400, 404, 422))
async def delete(ref: Ref, ask: Ask) -> Response:
    """Forget an ended run and everything kept of it."""
    return await ask.slow(lambda tracker: tracker.delete(ref), 204)
