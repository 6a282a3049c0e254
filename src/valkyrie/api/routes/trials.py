"""What is in a run: trials, attempts, errors, logs, results, outputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import Query
from starlette.responses import Response

from valkyrie.api.answers import JSON, encode
from valkyrie.api.bodies import LogBody, OutputsBody, ResultsBody
from valkyrie.api.context import Ask, until_unwelcome
from valkyrie.api.routes import Ref, errors, router
from valkyrie.api.streams import gather, stream, tar_of
from valkyrie.domain import TrialState
from valkyrie.views import AttemptView, ErrorGroup, LogLine, ResultsLink, TrialDetail, TrialFilter, TrialView

routes = router("trials", "/v1/runs/{ref}")

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


@routes.get("/trials", response_model=TrialPage, responses=errors(400, 404))
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


@routes.get("/attempts", response_model=list[AttemptView], responses=errors(400, 404))
async def attempts(ref: Ref, task_id: TaskId, ask: Ask, k: K = 0) -> Response:
    """Every attempt of one trial, oldest first."""
    return await ask.quick(lambda tracker: tracker.attempts(ref, task_id, k))


@routes.get("/errors", response_model=list[ErrorGroup], responses=errors(400, 404))
async def list_errors(ref: Ref, ask: Ask) -> Response:
    """Alike errors of a run, together."""
    return await ask.quick(lambda tracker: tracker.errors(ref))


@routes.post(
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


@routes.post("/results/upload", response_model=ResultsLink, responses=errors(400, 404, 413, 422))
async def upload_results(ref: Ref, wanted: ResultsBody, ask: Ask) -> Response:
    """Put the results file where artifacts are kept."""
    return await ask.slow(lambda tracker: tracker.upload_results(ref, wanted))


@routes.post(
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


@routes.get(
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


@routes.post(
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


@routes.get("/shell", response_model=ShellCommand, responses=errors(400, 404, 422))
async def shell(ref: Ref, task_id: TaskId, ask: Ask, k: K = 0) -> Response:
    """The command that opens a shell in a kept sandbox, on the machine that keeps it."""
    return await ask.quick(lambda tracker: ShellCommand(list(tracker.shell(ref, task_id, k))))
