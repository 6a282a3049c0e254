"""One watched run or job: what changed is read once, made text once, sent as the same bytes to all."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from valkyrie.api.answers import encode
from valkyrie.api.subjects import SUBJECTS, Kind
from valkyrie.report.present import trial_view
from valkyrie.store import runs

if TYPE_CHECKING:
    from valkyrie.api.lanes import Lane
    from valkyrie.job_views import JobView
    from valkyrie.nouns import Identity
    from valkyrie.tracker.app import TrackerApp
    from valkyrie.views import RunView

_MOST_KEPT = 64
_MOST_KEPT_BYTES = 1 << 20
_MOST_CATCHES = 8
_AT_ONCE = 10
"""So many watchers are served in one turn of the loop."""
_TURN_S = 0.005
"""Pause between two such turns."""


def event(name: str, version: int, data: bytes) -> bytes:
    """One server-sent event."""
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


class Caught(NamedTuple):
    """Trials that changed since a version, and from which update on the others go on."""

    number: int
    version: int
    trials: bytes


class Channel:
    """The newest updates of one run or job. Whoever fell behind further is given the newest state."""

    def __init__(
        self, tracker_app: TrackerApp, identity: Identity, kind: Kind, subject: str, lane: Lane
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
        self._caught: dict[int, asyncio.Future[Caught]] = {}

    @property
    def empty(self) -> bool:
        """Nothing is known yet."""
        return self._latest is None

    @property
    def latest(self) -> Update:
        """The newest update."""
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
        trials = None
        if before and wanted:
            with self._app.store.reading() as connection:
                rows = runs.trials_since(connection, self.subject, before.version)
            # What changed since the view was made comes with the next one.
            trials = trial_events((row for row in rows if row.version <= view.version), before.version)
        number = before.number + 1 if before else 1
        return Update(number, view.version, whole_event(self.kind, view, ended=ended), trials), alive, ended

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

    async def catch_up(self, since: int) -> Caught:
        """All trials that changed since a version. Many who ask for the same are given the same."""
        known = self._caught.get(since)
        if known is not None and self._still_good(known):
            return await asyncio.shield(known)
        while len(self._caught) >= _MOST_CATCHES:
            self._caught.pop(next(iter(self._caught)))
        catching = asyncio.ensure_future(self._catch_up(since))
        self._caught[since] = catching
        return await asyncio.shield(catching)

    def _still_good(self, known: asyncio.Future[Caught]) -> bool:
        """Under way, or followed without a gap by the updates that are kept."""
        if not known.done():
            return True
        failed = known.cancelled() or known.exception() is not None
        return not failed and self.trials_after(known.result().number) is not None

    async def _catch_up(self, since: int) -> Caught:
        latest = self.latest

        def look() -> bytes:
            with self._app.store.reading() as connection:
                # Trials nothing happened to yet have version 0: they are news to nobody, and may be many.
                rows = runs.trials_since(connection, self.subject, max(since, 0))
            return trial_events(rows, since)

        return Caught(latest.number, latest.version, await self._lane.run(look))


def whole_event(kind: Kind, view: RunView | JobView, *, ended: bool) -> bytes:
    """A run or job as it stands, and that it ended if it did."""
    told = event(kind, view.version, encode(view))
    return told + event("end", view.version, b"{}") if ended else told
