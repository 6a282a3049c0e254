"""Verbs about runs, as coroutines."""

from __future__ import annotations

import asyncio
import inspect
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from dataclasses import MISSING, fields
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from valkyrie.client.connection import Connection, Params, TrackerCall, path
from valkyrie.client.events import RunChanged, RunEvent, log_lines, log_text, run_events
from valkyrie.domain import Json, RunState, may_be_id
from valkyrie.errors import InfrastructureError, StoreError, UnknownError, UsageError, UserError
from valkyrie.views import (
    AttemptView,
    ErrorGroup,
    GradingComparison,
    GradingView,
    LogLine,
    LogQuery,
    PlanView,
    QueueView,
    RegradeRequest,
    RegradeView,
    ResultsLink,
    ResultsWanted,
    ResumeRequest,
    RetryRequest,
    RunFilter,
    RunPage,
    RunRequest,
    RunView,
    StartedRun,
    StopRequest,
    TrialFilter,
    TrialView,
    UpdateRequest,
)

Fields = ParamSpec("Fields")
Request = TypeVar("Request")
Verbs = TypeVar("Verbs")
Answer = TypeVar("Answer")

LOOK_EVERY_S = 5.0
NOBODY_WORKS_S = 60.0
"""How long `wait` hopes for an executor of the tracker's to come back."""


def fields_of(
    kind: Callable[Fields, Request],
) -> Callable[
    [Callable[[Verbs, str, Request], Awaitable[Answer]]],
    Callable[Concatenate[Verbs, str, Fields], Coroutine[Any, Any, Answer]],
]:
    """Let people call a verb with the fields of its request: `resume(ref, concurrency=3)`."""

    def decorate(
        verb: Callable[[Verbs, str, Request], Awaitable[Answer]],
    ) -> Callable[Concatenate[Verbs, str, Fields], Coroutine[Any, Any, Answer]]:
        @wraps(verb)
        async def call(self: Verbs, ref: str, /, *args: Fields.args, **fields: Fields.kwargs) -> Answer:
            return await verb(self, ref, kind(*args, **fields))

        first = list(inspect.signature(verb).parameters.values())[:2]
        rest = inspect.signature(kind).parameters.values()
        call.__signature__ = inspect.Signature([*first, *rest])  # type: ignore[attr-defined]
        return call

    return decorate


class RunCalls:
    """Start runs, look at them, steer them, take their results.

    `ref` is a run's id or a unique prefix of it, the name of a job of one run, JOB/AGENT, or `latest`: the
    run you started last.
    """

    _connection: Connection

    async def plan(self, request: RunRequest) -> PlanView:
        """Return what `start` would do, checked in full; starts nothing."""
        call = TrackerCall("POST", path("runs", "plan"), body=changed(request), repeatable=True)
        return await self._connection.get(PlanView, call)

    async def start(self, request: RunRequest, *, key: str | None = None) -> StartedRun:
        """Start a run. Two starts with the same `key` are one run, so it is safe to ask again."""
        call = TrackerCall(
            "POST",
            path("runs"),
            body=changed(request),
            headers={"Idempotency-Key": key or str(uuid.uuid4())},
            repeatable=True,
        )
        return await self._connection.get(StartedRun, call)

    async def fetch(self, ref: str) -> RunView:
        """One run as it stands."""
        word = ref.strip()
        if may_be_id(word):
            return await self._connection.get(RunView, TrackerCall("GET", path("runs", word)))
        if not word:
            raise UsageError("A run is named by its id, a job's name, JOB/AGENT or latest.")
        return await self._connection.get(
            RunView, TrackerCall("GET", path("runs", "named"), params({"ref": word}))
        )

    async def _path(self, ref: str, *parts: str) -> str:
        """Return the path of a run, or of a part of it."""
        return path("runs", await self._run_word(ref), *parts)

    async def _run_word(self, ref: str) -> str:
        """Return the run's name as one part of a path: what may not be one is asked for, and its id taken."""
        word = ref.strip()
        return word if may_be_id(word) else (await self.fetch(word)).id

    async def events(
        self, ref: str, *, trials: bool = True, after: int | None = None
    ) -> AsyncGenerator[RunEvent, None]:
        """Changes of the run and, if wanted, of its trials, until it ended; goes on after interruptions.

        `after` is the version of the last event that is known already.
        """
        word = await self._run_word(ref)
        async with aclosing(run_events(self._connection, word, trials=trials, after=after)) as found:
            async for event in found:
                yield event

    async def follow(self, ref: str) -> AsyncGenerator[RunView, None]:
        """Yield the run now, then again after every change, until it ended (that view is the last)."""
        told = False
        try:
            async with aclosing(self.events(ref, trials=False)) as events:
                async for event in events:
                    if isinstance(event, RunChanged):
                        told = True
                        yield event.run
                        if RunState(event.run.state).terminal:
                            return
        except UnknownError:
            if not told:
                raise  # else it was deleted meanwhile: nothing more will happen to it

    async def wait(self, ref: str, *, timeout: float | None = None) -> RunView:
        """Return when the run ended; TimeoutError when it did not in time."""
        run = await self.fetch(ref)
        try:
            async with asyncio.timeout(timeout):
                return await self._ended(run)
        except TimeoutError:
            raise TimeoutError(f"Run {run.id[:8]} did not end within {timeout:g} s; it goes on.") from None

    async def _ended(self, run: RunView) -> RunView:
        """Changes come as events; that nobody works on the run is seen by looking."""
        worked_at = time.monotonic()
        async with aclosing(self.follow(run.id)) as views:
            coming = asyncio.ensure_future(_next(views))
            try:
                while not RunState(run.state).terminal:
                    await asyncio.wait({coming}, timeout=LOOK_EVERY_S)
                    if coming.done():
                        run = coming.result() or await self.fetch(run.id)
                        coming = asyncio.ensure_future(_next(views))
                    else:
                        run = await self._look(run)
                    if run.executor == "alive":
                        worked_at = time.monotonic()
                    elif time.monotonic() - worked_at > NOBODY_WORKS_S:
                        note = run.note or "no executor of the tracker is at work"
                        raise UserError(f"Run {run.id[:8]} will not end by itself: {note}.")
            finally:
                coming.cancel()
                await asyncio.wait({coming})
        return run

    async def _look(self, run: RunView) -> RunView:
        """Return the run now, or as it was: when the tracker cannot say, the stream waits for it."""
        try:
            return await self.fetch(run.id)
        except (InfrastructureError, StoreError):
            return run

    async def list(self, query: RunFilter | None = None) -> RunPage:
        """Runs that match, a page at a time: `cursor` of one page leads to the next."""
        return await self._connection.get(
            RunPage, TrackerCall("GET", path("runs"), _run_params(query or RunFilter()))
        )

    async def trials(self, ref: str, query: TrialFilter | None = None) -> tuple[Sequence[TrialView], int]:
        """Trials that match, and how many match in all."""
        call = TrackerCall("GET", await self._path(ref, "trials"), _trial_params(query or TrialFilter()))
        answer = await self._connection.get(dict[str, Any], call)
        rows = self._connection.view(list[TrialView], answer.get("trials"))
        return rows, self._connection.view(int, answer.get("total"))

    async def attempts(self, ref: str, task_id: str, k: int = 0) -> Sequence[AttemptView]:
        """Return every attempt of one trial, oldest first."""
        params = [("task_id", task_id), ("k", str(k))]
        call = TrackerCall("GET", await self._path(ref, "attempts"), params)
        return await self._connection.get(list[AttemptView], call)

    async def errors(self, ref: str) -> Sequence[ErrorGroup]:
        """Return the run's open errors, alike ones together."""
        return await self._connection.get(
            list[ErrorGroup], TrackerCall("GET", await self._path(ref, "errors"))
        )

    @fields_of(StopRequest)
    async def stop(self, ref: str, request: StopRequest) -> RunView:
        """Pending trials become STOPPED; running ones finish, unless `force` kills them."""
        call = TrackerCall("POST", await self._path(ref, "stop"), body=changed(request))
        return await self._connection.get(RunView, call)

    @fields_of(ResumeRequest)
    async def resume(self, ref: str, request: ResumeRequest) -> StartedRun:
        """STOPPED trials run again; what was interrupted goes on. Headers are not stored: give them again."""
        call = TrackerCall("POST", await self._path(ref, "resume"), body=changed(request))
        return await self._connection.get(StartedRun, call)

    @fields_of(RetryRequest)
    async def retry(self, ref: str, request: RetryRequest) -> StartedRun:
        """As `resume`, and ERROR trials too (only of `category`, if given)."""
        call = TrackerCall("POST", await self._path(ref, "retry"), body=changed(request))
        return await self._connection.get(StartedRun, call)

    async def regrade(self, ref: str, request: RegradeRequest | None = None) -> RegradeView:
        """Grade the kept work of an ended run's trials again, without running agents.

        `tests` is the name of a benchmark, or `upload:<digest>` of a folder that was uploaded.
        """
        body = changed(request or RegradeRequest())
        call = TrackerCall("POST", await self._path(ref, "regrade"), body=body)
        return await self._connection.get(RegradeView, call)

    async def gradings(self, ref: str) -> Sequence[GradingView]:
        """Return the run's gradings by number; 0 is the one its own trials made."""
        return await self._connection.get(
            list[GradingView], TrackerCall("GET", await self._path(ref, "gradings"))
        )

    async def use_grading(self, ref: str, number: int) -> RunView:
        """Make one grading the run's own: verdicts, counters and final score."""
        where = await self._path(ref, "gradings", str(number), "use")
        return await self._connection.get(RunView, TrackerCall("POST", where, repeatable=True))

    async def compare_gradings(self, ref: str, a: int, b: int) -> GradingComparison:
        """Return which trials two gradings of the run judge differently."""
        where = await self._path(ref, "gradings", "compare")
        call = TrackerCall("GET", where, params({"a": a, "b": b}))
        return await self._connection.get(GradingComparison, call)

    @fields_of(UpdateRequest)
    async def update(self, ref: str, request: UpdateRequest) -> RunView:
        """Change a live run."""
        # Setting the same values twice changes nothing.
        call = TrackerCall("PATCH", await self._path(ref), body=changed(request), repeatable=True)
        return await self._connection.get(RunView, call)

    async def delete(self, ref: str) -> None:
        """Forget an ended run and everything kept of it."""
        await self._connection.ask(TrackerCall("DELETE", await self._path(ref)))

    @fields_of(ResultsWanted)
    async def results(self, ref: str, request: ResultsWanted) -> Json:
        """Return the results file's content; their service scores some tasks anew, with the headers."""
        call = TrackerCall("POST", await self._path(ref, "results"), body=changed(request), repeatable=True)
        return await self._connection.get(dict[str, Any], call)

    async def download_results(
        self, ref: str, target: Path, request: ResultsWanted = ResultsWanted()
    ) -> None:
        """Write the results file to `target` as it comes; it may be larger than memory."""
        call = TrackerCall("POST", await self._path(ref, "results"), body=changed(request), repeatable=True)
        await self._connection.download(call, target)

    @fields_of(ResultsWanted)
    async def upload_results(self, ref: str, request: ResultsWanted) -> ResultsLink:
        """Put the results file where the tracker keeps artifacts."""
        where = await self._path(ref, "results", "upload")
        call = TrackerCall("POST", where, body=changed(request), repeatable=True)
        return await self._connection.get(ResultsLink, call)

    async def logs(
        self, ref: str, task_id: str, *, k: int = 0, attempt: int | None = None, follow: bool = False
    ) -> AsyncGenerator[str, None]:
        """An attempt's log (the last one's unless said), piece by piece; `follow` goes on until it ended."""
        ref = await self._run_word(ref)
        if attempt is None and (found := await self.attempts(ref, task_id, k)):
            attempt = found[-1].number  # the same one when it has to be asked for again
        asked = {"task_id": task_id, "k": k, "attempt": attempt, "follow": "true" if follow else None}
        call = TrackerCall("GET", await self._path(ref, "log"), params(asked))
        async with aclosing(log_text(self._connection, call)) as pieces:
            async for piece in pieces:
                yield piece

    async def run_logs(self, ref: str, query: LogQuery | None = None) -> AsyncGenerator[LogLine, None]:
        """Logs of many trials, those of each one's last attempt unless said."""
        where = await self._path(ref, "logs")
        call = TrackerCall("POST", where, body=changed(query or LogQuery()), repeatable=True)
        async with aclosing(log_lines(self._connection, call)) as pieces:
            async for piece in pieces:
                yield piece

    async def shell(self, ref: str, task_id: str, k: int = 0) -> Sequence[str]:
        """Return the command that opens a shell in a kept sandbox, on the machine the sandbox is on."""
        call = TrackerCall("GET", await self._path(ref, "shell"), params({"task_id": task_id, "k": k}))
        answer = await self._connection.get(dict[str, Any], call)
        return self._connection.view(list[str], answer.get("argv"))

    async def queue(self) -> QueueView:
        """Open runs in the order they are served, and the executors that live."""
        return await self._connection.get(QueueView, TrackerCall("GET", path("queue")))


async def _next(views: AsyncIterator[RunView]) -> RunView | None:
    return await anext(views, None)


def changed(view: Any) -> Json:
    """Return what a request says beyond its defaults: an older tracker need not know the rest."""
    said: Json = {}
    for one in fields(view):
        value = getattr(view, one.name)
        default = one.default_factory() if one.default_factory is not MISSING else one.default
        if value is not None and value != default:
            said[one.name] = value if not isinstance(value, Mapping) else dict(value)
    return said


def params(values: Mapping[str, Any]) -> Params:
    """Query parameters that have a value; of a sequence one for each."""
    found: list[tuple[str, str]] = []
    for name, value in values.items():
        many = value if isinstance(value, tuple | list) else [value]
        found += [(name, str(one)) for one in many if one is not None]
    return found


def _run_params(query: RunFilter) -> Params:
    equal = ("agent", "benchmark", "model", "dataset", "state", "label", "job")
    rest = {
        "started_by": list(query.started_by),
        "order": "desc" if query.newest_first else "asc",
        "limit": query.limit,
        "cursor": query.cursor,
    }
    return params({**{name: getattr(query, name) for name in equal}, **rest})


def _trial_params(query: TrialFilter) -> Params:
    return params(
        {
            "states": list(query.states),
            "search": query.search,
            "sort": query.sort,
            "descending": "true" if query.descending else None,
            "limit": query.limit,
            "offset": query.offset,
            "after": query.after,
            "failed": "true" if query.failed else None,
            "detail": None if query.detail == "trial" else query.detail,
        }
    )
