"""Runs, planned, started, steered; and what is in them: trials, attempts, errors, logs, results, outputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import Header, Path, Query
from starlette.responses import Response

from valkyrie.api.answers import JSON, encode
from valkyrie.api.bodies import (
    LogBody,
    OutputsBody,
    RegradeBody,
    ResultsBody,
    ResumeBody,
    RetryBody,
    RunBody,
    StopBody,
    UpdateBody,
)
from valkyrie.api.context import Ask, until_unwelcome
from valkyrie.api.hub import LastSeen, described, watched
from valkyrie.api.routes import LONGEST_REF, RUN_REF, Ref, errors, router
from valkyrie.api.streams import gather, stream, tar_of
from valkyrie.domain import RunState, TrialState
from valkyrie.views import (
    AttemptView,
    ErrorGroup,
    GradingComparison,
    GradingView,
    LogLine,
    PlanView,
    RegradeView,
    ResultsLink,
    RunFilter,
    RunPage,
    RunView,
    StartedRun,
    TrialDetail,
    TrialFilter,
    TrialView,
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


# What is in a run: trials, attempts, errors, logs, results, outputs.

trial_routes = router("trials", "/v1/runs/{ref}")

TaskId = Annotated[str, Query(max_length=1000)]
K = Annotated[int, Query(description="Which repetition of the task.", ge=0, le=1_000_000)]
Sort = Literal["position", "task_id", "started_at", "duration", "status", "score"]


@dataclass(frozen=True, slots=True)
class TrialPage:
    """Some trials of a run, and how many match in all."""

    trials: list[TrialView]
    total: int


@dataclass(frozen=True, slots=True)
class ShellCommand:
    """A command that opens a shell."""

    argv: list[str]


def _streamed(media_type: str, description: str) -> dict[int | str, dict[str, Any]]:
    return {200: {"content": {media_type: {}}, "description": description}}


@trial_routes.get("/trials", response_model=TrialPage, responses=errors(400, 404))
async def trials(
    ref: Ref,
    ask: Ask,
    states: Annotated[list[TrialState] | None, Query(description="In one of these states.")] = None,
    search: Annotated[str | None, Query(description="Part of the task's id.", max_length=1000)] = None,
    sort: Sort = "position",
    descending: bool = False,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    offset: Annotated[int, Query(ge=0, le=10_000_000)] = 0,
    after: Annotated[
        int | None,
        Query(ge=-1, description="Only trials behind this position, in that order; `total` is not counted."),
    ] = None,
    detail: Annotated[
        TrialDetail,
        Query(description="Only what scores are compared by, all but the result, or that as well."),
    ] = "trial",
    failed: Annotated[bool, Query(description="Only those that ended without a pass.")] = False,
) -> Response:
    """Trials of a run.

    To read them all, begin with `after=-1` and go on with the `position` of the last one seen.
    """
    wanted = tuple(state.value for state in states or ())
    query = TrialFilter(wanted, search, sort, descending, limit, offset, after, detail, failed)

    def look(tracker: Any) -> TrialPage:
        found, total = tracker.trials(ref, query)
        return TrialPage(list(found), total)

    return await ask.quick(look)


@trial_routes.get("/attempts", response_model=list[AttemptView], responses=errors(400, 404))
async def attempts(ref: Ref, task_id: TaskId, ask: Ask, k: K = 0) -> Response:
    """Every attempt of one trial, oldest first."""
    return await ask.quick(lambda tracker: tracker.attempts(ref, task_id, k))


@trial_routes.get("/errors", response_model=list[ErrorGroup], responses=errors(400, 404))
async def list_errors(ref: Ref, ask: Ask) -> Response:
    """Alike errors of a run, together."""
    return await ask.quick(lambda tracker: tracker.errors(ref))


@trial_routes.post(
    "/results", responses={200: {"description": "The results file's content."}, **errors(400, 404, 413)}
)
async def results(ref: Ref, wanted: ResultsBody, ask: Ask) -> Response:
    """The results document, of the whole run or of some tasks."""
    context, tracker = ask.context, ask.tracker()

    def pieces() -> Iterator[bytes]:
        found = tracker.results_text(ref, wanted)
        # What is no Unicode is said in escapes, which is what JSON does.
        return gather(text.encode("utf-8", "backslashreplace") for text in found)

    lanes, stuck_s = context.lanes, context.settings.stuck_s
    return await stream(lanes.slow, lanes.downloads, pieces, JSON, stuck_s=stuck_s)


@trial_routes.post("/results/upload", response_model=ResultsLink, responses=errors(400, 404, 413, 422))
async def upload_results(ref: Ref, wanted: ResultsBody, ask: Ask) -> Response:
    """Put the results file where artifacts are kept."""
    return await ask.slow(lambda tracker: tracker.upload_results(ref, wanted))


@trial_routes.post(
    "/outputs",
    responses={
        **_streamed("application/x-tar", "A tar of `<task>/…` as it was kept; check every name you unpack."),
        **errors(400, 404, 413),
    },
    response_class=Response,
)
async def outputs(ref: Ref, chosen: OutputsBody, ask: Ask) -> Response:
    """What was kept of each trial's last attempt."""
    context, tracker = ask.context, ask.tracker()

    def pieces() -> Iterator[bytes]:
        return gather(tar_of(tracker.output_files(ref, chosen)))

    lanes, stuck_s = context.lanes, context.settings.stuck_s
    return await stream(lanes.slow, lanes.downloads, pieces, "application/x-tar", stuck_s=stuck_s)


@trial_routes.get(
    "/log",
    responses={**_streamed("text/plain", "The log, piece by piece."), **errors(400, 404, 422)},
    response_class=Response,
)
async def log(
    ref: Ref,
    task_id: TaskId,
    ask: Ask,
    k: K = 0,
    attempt: Annotated[
        int | None, Query(description="The last one, unless said.", ge=1, le=1_000_000)
    ] = None,
    follow: Annotated[bool, Query(description="Go on until the attempt ended.")] = False,
) -> Response:
    """One attempt's log."""
    tracker = ask.tracker()

    def pieces() -> Iterator[bytes]:
        texts = tracker.logs(ref, task_id, k=k, attempt=attempt, follow=follow)
        return (text.encode("utf-8", "replace") for text in texts)

    return await _stream_log(ask, pieces, "text/plain; charset=utf-8", follow=follow)


@trial_routes.post(
    "/logs",
    responses={
        200: {
            "content": {"application/x-ndjson": {}},
            "description": "One LogLine per line.",
            "model": LogLine,
        },
        **errors(400, 404, 413, 422),
    },
    response_class=Response,
)
async def logs(ref: Ref, query: LogBody, ask: Ask) -> Response:
    """Logs of many trials."""
    tracker = ask.tracker()

    def pieces() -> Iterator[bytes]:
        lines = tracker.run_logs(ref, query)
        return (encode(line) + b"\n" for line in lines)

    return await _stream_log(ask, pieces, "application/x-ndjson", follow=query.follow)


async def _stream_log(ask: Ask, pieces: Any, media_type: str, *, follow: bool) -> Response:
    context = ask.context
    lanes, stuck_s = context.lanes, context.settings.stuck_s
    if follow:
        return await stream(
            lanes.following,
            lanes.followers,
            pieces,
            media_type,
            stuck_s=stuck_s,
            peek=False,
            unwelcome=lambda: until_unwelcome(
                context.door, ask.request.headers, ask.identity, context.settings.keep_alive_s
            ),
        )
    return await stream(lanes.slow, lanes.downloads, lambda: gather(pieces()), media_type, stuck_s=stuck_s)


@trial_routes.get("/shell", response_model=ShellCommand, responses=errors(400, 404, 422))
async def shell(ref: Ref, task_id: TaskId, ask: Ask, k: K = 0) -> Response:
    """The command that opens a shell in a kept sandbox, on the machine that keeps it."""
    return await ask.quick(lambda tracker: ShellCommand(list(tracker.shell(ref, task_id, k))))
