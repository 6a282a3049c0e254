"""Event streams of runs and jobs: the database is followed once, for any number of watchers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from fastapi import Depends, Header, Query
from starlette.datastructures import Headers
from starlette.responses import Response

from valkyrie.api.answers import encode
from valkyrie.api.capacity import SharedLookups
from valkyrie.api.context import ApiRequest, is_welcome
from valkyrie.api.routes import errors
from valkyrie.api.streams import PIECE_BYTES, STREAMED, StuckError, cut, send_within, until_disconnected
from valkyrie.domain import RunState
from valkyrie.errors import InfrastructureError, StoreError, UnknownError, UsageError
from valkyrie.report.presentation import trial_view
from valkyrie.store import jobs, runs, trials

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from valkyrie.api.capacity import ApiSettings, WorkerPool
    from valkyrie.api.context import Context
    from valkyrie.domain import Identity
    from valkyrie.store import Connection
    from valkyrie.tracker.app import TrackerApp
    from valkyrie.tracker.local import LocalTracker
    from valkyrie.views import RunView
    from valkyrie.views.jobs import JobView


Kind = Literal["run", "job"]


@dataclass(frozen=True, slots=True)
class Subject:
    """How one kind of thing is found, and looked at."""

    resolve: Callable[[Connection, str, str, str | None], str]
    """The id of what a word names to an organisation, and a person of it."""
    version: Callable[[Connection, str], int | None]
    """Grows with every change; cheaper than the whole."""
    fetch: Callable[[LocalTracker, str], tuple[RunView | JobView, bool]]
    """It as it stands, and whether it ended."""


def _run(tracker: LocalTracker, run_id: str) -> tuple[RunView, bool]:
    view = tracker.fetch(run_id)
    return view, RunState(view.state).terminal


def _job(tracker: LocalTracker, job_id: str) -> tuple[JobView, bool]:
    view = tracker.fetch_job(job_id)
    return view, view.ended


SUBJECTS: Mapping[Kind, Subject] = {
    "run": Subject(runs.resolve, runs.version, _run),
    "job": Subject(jobs.resolve, jobs.version, _job),
}


# One watched run or job: what changed is read once, made text once, sent as the same bytes to all.

_MOST_KEPT = 64
_MOST_KEPT_BYTES = 1 << 20
_MOST_CATCHES = 8
_AT_ONCE = 10
"""So many watchers are served in one turn of the loop."""
_TURN_S = 0.005
"""Pause between two such turns."""


def event(name: str, version: int, data: bytes) -> bytes:
    return b"event: %s\nid: %d\ndata: %s\n\n" % (name.encode(), version, data)


def trial_events(rows: Iterable[Any], since: int) -> bytes:
    """Events of trials, oldest change first.

    An id promises that everything up to it was sent, so of several trials with one version only the last
    carries it: a stream that is cut between them is resumed before them.
    """
    found: list[bytes] = []
    complete = max(since, 0)
    for version, together in groupby(rows, key=lambda row: int(row.version)):
        views = [encode(trial_view(row)) for row in together]
        found += [event("trial", complete, view) for view in views[:-1]]
        complete = max(complete, version)
        found.append(event("trial", complete, views[-1]))
    return b"".join(found)


@dataclass(frozen=True, slots=True)
class Update:
    """What one look found."""

    number: int
    version: int
    whole: bytes
    """The run or job as it stands, and that it ended if it did."""
    trials: bytes | None
    """Trials that changed since the update before; None when nobody wanted to know."""


class MissedTrials(NamedTuple):
    """Trials that changed since a version, and from which update on the others go on."""

    number: int
    version: int
    trials: bytes


class EventChannel:
    """The newest updates of one run or job. Whoever fell behind further is given the newest state."""

    def __init__(
        self, tracker_app: TrackerApp, identity: Identity, kind: Kind, subject: str, lane: WorkerPool
    ) -> None:
        self.kind = kind
        self.subject = subject
        """The id of what is watched."""
        self.watchers: set[asyncio.Event] = set()
        """Each is set with every update, for the one who waits for it."""
        self.trial_watchers = 0
        """Of a run; a job's trials are told by the streams of its runs."""
        self.ended = False
        """Ended, or deleted: nothing more will come."""
        self.nudged = asyncio.Event()
        """The database changed, in whatever."""
        self._app = tracker_app
        self._identity = identity
        self._lane = lane
        self._latest: Update | None = None
        self._alive: bool | None = None
        self._kept: deque[Update] = deque()
        self._caught: dict[int, asyncio.Future[MissedTrials]] = {}

    @property
    def empty(self) -> bool:
        return self._latest is None

    @property
    def latest(self) -> Update:
        assert self._latest is not None, "not empty"
        return self._latest

    async def update(self) -> None:
        """Look; if it changed, everyone who watches is woken."""
        found = await self._lane.run(self._look)
        if found is None:
            return
        update, self._alive, self.ended = found
        self._keep(update)
        self._latest = update
        watchers = list(self.watchers)
        for start in range(0, len(watchers), _AT_ONCE):
            for watcher in watchers[start : start + _AT_ONCE]:
                watcher.set()
            # Others get their turn between so many and the next, those in threads too.
            await asyncio.sleep(_TURN_S)

    def wake(self) -> None:
        """Whoever waits for a change looks."""
        for watcher in self.watchers:
            watcher.set()

    def _look(self) -> tuple[Update, bool, bool] | None:
        before, wanted = self._latest, self.trial_watchers > 0
        subject, alive = SUBJECTS[self.kind], self._app.dispatch.alive()
        if before and alive == self._alive:
            with self._app.store.reading() as connection:
                if subject.version(connection, self.subject) == before.version:
                    return None
        view, ended = subject.fetch(self._app.tracker(self._identity), self.subject)
        changed = None
        if before and wanted:
            with self._app.store.reading() as connection:
                rows = trials.trials_since(connection, self.subject, before.version)
            # What changed since the view was made comes with the next one.
            changed = trial_events((row for row in rows if row.version <= view.version), before.version)
        number = before.number + 1 if before else 1
        return Update(number, view.version, whole_event(self.kind, view, ended=ended), changed), alive, ended

    def _keep(self, update: Update) -> None:
        if update.trials is None:
            self._kept.clear()
            return
        self._kept.append(update)
        size = sum(len(one.trials or b"") for one in self._kept)
        while len(self._kept) > 1 and (len(self._kept) > _MOST_KEPT or size > _MOST_KEPT_BYTES):
            size -= len(self._kept.popleft().trials or b"")

    def trials_after(self, number: int) -> list[bytes] | None:
        """Trial events of all updates after this one; None when they are not kept."""
        if number >= self.latest.number:
            return []
        if not self._kept or self._kept[0].number > number + 1:
            return None
        return [one.trials or b"" for one in self._kept if one.number > number]

    async def catch_up(self, since: int) -> MissedTrials:
        """Return all trials that changed since a version. Many who ask for the same are given the same."""
        known = self._caught.get(since)
        if known is not None and self._still_good(known):
            return await asyncio.shield(known)
        while len(self._caught) >= _MOST_CATCHES:
            self._caught.pop(next(iter(self._caught)))
        catching = asyncio.ensure_future(self._catch_up(since))
        self._caught[since] = catching
        return await asyncio.shield(catching)

    def _still_good(self, known: asyncio.Future[MissedTrials]) -> bool:
        """Under way, or followed without a gap by the updates that are kept."""
        if not known.done():
            return True
        failed = known.cancelled() or known.exception() is not None
        return not failed and self.trials_after(known.result().number) is not None

    async def _catch_up(self, since: int) -> MissedTrials:
        latest = self.latest

        def look() -> bytes:
            with self._app.store.reading() as connection:
                # Trials nothing happened to yet have version 0: they are news to nobody, and may be many.
                rows = trials.trials_since(connection, self.subject, max(since, 0))
            return trial_events(rows, since)

        return MissedTrials(latest.number, latest.version, await self._lane.run(look))


def whole_event(kind: Kind, view: RunView | JobView, *, ended: bool) -> bytes:
    """A run or job as it stands, and that it ended if it did."""
    told = event(kind, view.version, encode(view))
    return told + event("end", view.version, b"{}") if ended else told


# Event streams: one thread follows the database, one task per watched run or job, any number of watchers.

log = logging.getLogger("valkyrie.api")
_LOOK_AGAIN_S = 0.5
"""Also when nothing was written: an executor that died writes nothing."""
_PAUSE_S = 0.05
_PER_WATCHER_S = 0.003
_SHARE = 3
"""Pauses are so many times as long as the look before them: watching takes a part of the machine, not all."""
_LONGEST_PAUSE_S = 2.0
"""A look that waited for the database took long, and was no work."""


class EventHub:
    """Who watches what."""

    def __init__(self, tracker_app: TrackerApp, settings: ApiSettings, lane: WorkerPool) -> None:
        self._app = tracker_app
        self._settings = settings
        self._lane = lane
        self._channels: dict[tuple[Kind, str], EventChannel] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._finding: SharedLookups[tuple[Kind, str, str | None, str], str] = SharedLookups()
        self._watched = threading.Event()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Follow the database from now on, whenever anyone watches."""
        loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._follow, args=(loop,), name="changes", daemon=True)
        self._thread.start()

    async def close(self) -> None:
        self._closing.set()
        self._watched.set()
        for channel in self._channels.values():
            channel.ended = True
            channel.wake()
        for task in self._tasks:
            task.cancel()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, 2 * _LOOK_AGAIN_S)

    @property
    def watchers(self) -> int:
        return sum(len(channel.watchers) for channel in self._channels.values())

    @property
    def closing(self) -> bool:
        return self._closing.is_set()

    async def find(self, kind: Kind, identity: Identity, ref: str, lane: WorkerPool) -> str:
        """The id of what `ref` names to them."""

        def look() -> str:
            with self._app.store.reading() as connection:
                return SUBJECTS[kind].resolve(connection, ref, identity.org_id, identity.person)

        return await self._finding.look((kind, identity.org_id, identity.person, ref), lambda: lane.run(look))

    @contextlib.asynccontextmanager
    async def watching(self, watch: WatchRequest, watcher: asyncio.Event) -> AsyncIterator[EventChannel]:
        """The channel of what is watched, kept up to date while anyone is in here; `watcher` is set when it
        was."""
        key = (watch.kind, watch.subject)
        channel = self._channels.get(key)
        if channel is None or channel.ended:
            channel = EventChannel(self._app, watch.identity, watch.kind, watch.subject, self._lane)
            self._channels[key] = channel
            task = asyncio.get_running_loop().create_task(self._keep_up(channel))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        channel.watchers.add(watcher)
        channel.trial_watchers += watch.trials
        self._watched.set()
        try:
            yield channel
        finally:
            channel.watchers.discard(watcher)
            channel.trial_watchers -= watch.trials
            if not channel.watchers:
                self._forget(channel)

    def _forget(self, channel: EventChannel) -> None:
        channel.nudged.set()  # its task sees that nobody watches
        key = (channel.kind, channel.subject)
        if self._channels.get(key) is channel:
            del self._channels[key]
        if not self._channels and not self.closing:
            self._watched.clear()

    async def _keep_up(self, channel: EventChannel) -> None:
        try:
            while channel.watchers and not channel.ended:
                channel.nudged.clear()
                await asyncio.sleep(await self._update(channel))  # a limit of the rate, not a wait for news
                await channel.nudged.wait()
        except UnknownError:
            pass  # it was deleted
        except Exception:
            log.exception("%s %s can no longer be watched", channel.kind, channel.subject)
        finally:
            channel.ended = True
            channel.wake()

    async def _update(self, channel: EventChannel) -> float:
        """Look at what is watched; seconds to pause before the next look."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            await channel.update()
        except (StoreError, InfrastructureError) as error:
            log.warning(
                "%s %s cannot be looked at for those who watch it: %s", channel.kind, channel.subject, error
            )
        took = loop.time() - began
        least = self._settings.update_every_s + _PER_WATCHER_S * len(channel.watchers)
        return max(least - took, min(_LONGEST_PAUSE_S, _SHARE * took))

    def _follow(self, loop: asyncio.AbstractEventLoop) -> None:
        """The one thread: tells all channels of every change of the database."""
        while not self._closing.is_set():
            self._watched.wait()
            try:
                with contextlib.closing(self._changes()) as changes:
                    for _ in changes:
                        if self._closing.is_set() or not self._watched.is_set():
                            break
                        loop.call_soon_threadsafe(self._nudge)
                        self._closing.wait(_PAUSE_S)
            except RuntimeError:
                return  # the loop has ended before us
            except Exception as error:  # noqa: BLE001 - a thread's edge: those who watch go on watching
                log.warning("the database cannot be followed: %s", error)
                self._closing.wait(_LOOK_AGAIN_S)

    def _changes(self) -> Generator[None]:
        yield from self._app.store.changes(self._settings.update_every_s, _LOOK_AGAIN_S)

    def _nudge(self) -> None:
        for channel in self._channels.values():
            channel.nudged.set()


# One watcher's event stream, sent no faster than it is taken, and what the event routes share.


LARGEST_VERSION = 1 << 53
KEEP_ALIVE = b": keep-alive\n\n"
_PACE_S = 0.0002
"""Pause between two large pieces, for each one who watches."""


@dataclass(frozen=True, slots=True)
class WatchRequest:
    """What one watcher asked for."""

    identity: Identity
    kind: Kind
    subject: str
    """The id of the run or job."""
    after: int = 0
    """The version they have seen; 0: nothing."""
    trials: bool = False
    """Also every trial of a run."""


def last_seen(after: int | None, last_event_id: str | None) -> int:
    """The version a watcher has seen, as it was told in the query or, which wins, in the header."""
    if not last_event_id:
        return after or 0
    if not last_event_id.isdecimal() or int(last_event_id) > LARGEST_VERSION:
        raise UsageError("Last-Event-ID is the id of an event of this stream: a whole number.")
    return int(last_event_id)


def cut_to_size(pieces: list[bytes]) -> Iterator[bytes]:
    """Small pieces as one, large ones in parts: neither many sends, nor a copy of much for every watcher."""
    if sum(map(len, pieces)) <= PIECE_BYTES:
        yield b"".join(pieces)
        return
    for piece in pieces:
        for start in range(0, len(piece), PIECE_BYTES):
            yield piece[start : start + PIECE_BYTES]


class Seen(NamedTuple):
    """How far a watcher has come."""

    number: int
    """The update."""
    version: int


class EventStream(Response):
    """`text/event-stream` of one run or job, until it ended or the watcher went away."""

    media_type = "text/event-stream"

    def __init__(self, context: Context, watch: WatchRequest) -> None:
        super().__init__()
        del self.headers["content-length"]
        self.headers["x-accel-buffering"] = "no"
        self._context = context
        self._watch = watch
        self._woken = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[STREAMED] = True
        gone = asyncio.ensure_future(until_disconnected(receive))
        gone.add_done_callback(lambda _: self._woken.set())
        try:
            with self._context.lanes.watchers.seat():
                await self._send(scope, send, gone)
        except StuckError:
            cut(scope)
        finally:
            gone.cancel()

    async def _send(self, scope: Scope, send: Send, gone: asyncio.Future[None]) -> None:
        stuck_s = self._context.settings.stuck_s
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async with contextlib.aclosing(self._news(Headers(scope=scope))) as news:
            async for pieces in news:
                for number, piece in enumerate(cut_to_size(pieces)):
                    if number:
                        # Many who begin to watch at once are given much; others are answered meanwhile.
                        await asyncio.sleep(_PACE_S * self._context.hub.watchers)
                    await send_within(stuck_s, send, piece)
                if gone.done():
                    break
        await send_within(stuck_s, send, b"", more=False)

    async def _news(self, headers: Headers) -> AsyncGenerator[list[bytes]]:
        """Yield what to send, as it comes: trials first, then the whole; a comment when nothing comes."""
        watch, hub = self._watch, self._context.hub
        async with hub.watching(watch, self._woken) as channel:
            seen: Seen | None = None
            while True:
                self._woken.clear()
                if channel.empty or (seen and seen.number == channel.latest.number):
                    yield [KEEP_ALIVE]
                else:
                    pieces, seen = await self._unseen(channel, seen)
                    yield pieces
                caught_up = channel.empty or (seen is not None and seen.number == channel.latest.number)
                if hub.closing or (channel.ended and caught_up):
                    return
                if not await is_welcome(self._context.door, headers, watch.identity):
                    return
                await self._wait()

    async def _unseen(self, channel: EventChannel, seen: Seen | None) -> tuple[list[bytes], Seen]:
        """Events the watcher has not seen, and how far it has come with them."""
        trials = channel.trials_after(seen.number) if seen and self._watch.trials else []
        if trials is None or (seen is None and self._watch.trials):
            caught = await channel.catch_up(seen.version if seen else self._watch.after)
            later = channel.trials_after(caught.number)
            if later is None:
                self._woken.set()  # too much has changed meanwhile: there is more to catch up with
                return [caught.trials], Seen(caught.number, caught.version)
            trials = [caught.trials, *later]
        latest = channel.latest
        return [*trials, latest.whole], Seen(latest.number, latest.version)

    async def _wait(self) -> None:
        """Return when there is something new, or nothing was for so long that it must be said."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._context.settings.keep_alive_s):
                await self._woken.wait()


# What the event routes of all nouns share.


async def _seen(
    after: Annotated[
        int | None, Query(description="The version you have seen.", ge=0, le=LARGEST_VERSION)
    ] = None,
    last_event_id: Annotated[
        str | None, Header(description="The same; wins over `after`.", max_length=32)
    ] = None,
) -> int:
    return last_seen(after, last_event_id)


LastSeen = Annotated[int, Depends(_seen)]
"""The version a watcher has seen; 0 is nothing."""


def described(words: str) -> dict[str, Any]:
    """Return how an event route is declared, with what its events are."""
    stream = {"content": {"text/event-stream": {}}, "description": words}
    return {"responses": {200: stream, **errors(400, 404)}, "response_class": Response}


async def watched(ask: ApiRequest, kind: Kind, ref: str, seen: int, *, trials: bool = False) -> EventStream:
    """The events of what `ref` names to the caller, from what they have seen on."""
    subject = await ask.find(kind, ref)
    return EventStream(ask.context, WatchRequest(ask.identity, kind, subject, seen, trials))
