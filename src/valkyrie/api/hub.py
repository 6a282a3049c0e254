"""Event streams: one thread follows the database, one task per watched run or job, any number of watchers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Generator
from typing import TYPE_CHECKING

from valkyrie.api.channel import Channel
from valkyrie.api.subjects import SUBJECTS, Kind
from valkyrie.api.together import Together
from valkyrie.errors import InfrastructureError, StoreError, UnknownError

if TYPE_CHECKING:
    from valkyrie.api.events import Watch
    from valkyrie.api.lanes import Lane
    from valkyrie.api.settings import ApiSettings
    from valkyrie.nouns import Identity
    from valkyrie.tracker.app import TrackerApp

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

    def __init__(self, tracker_app: TrackerApp, settings: ApiSettings, lane: Lane) -> None:
        self._app = tracker_app
        self._settings = settings
        self._lane = lane
        self._channels: dict[tuple[Kind, str], Channel] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._finding: Together[tuple[Kind, str, str | None, str], str] = Together()
        self._watched = threading.Event()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Follow the database from now on, whenever anyone watches."""
        loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._follow, args=(loop,), name="changes", daemon=True)
        self._thread.start()

    async def close(self) -> None:
        """End all streams."""
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
        """How many watch."""
        return sum(len(channel.watchers) for channel in self._channels.values())

    @property
    def closing(self) -> bool:
        return self._closing.is_set()

    async def find(self, kind: Kind, identity: Identity, ref: str, lane: Lane) -> str:
        """The id of what `ref` names to them."""

        def look() -> str:
            with self._app.store.reading() as connection:
                return SUBJECTS[kind].resolve(connection, ref, identity.org_id, identity.person)

        return await self._finding.look((kind, identity.org_id, identity.person, ref), lambda: lane.run(look))

    @contextlib.asynccontextmanager
    async def watching(self, watch: Watch, watcher: asyncio.Event) -> AsyncIterator[Channel]:
        """The channel of what is watched, kept up to date while anyone is in here; `watcher` is set when it
        was."""
        key = (watch.kind, watch.subject)
        channel = self._channels.get(key)
        if channel is None or channel.ended:
            channel = Channel(self._app, watch.identity, watch.kind, watch.subject, self._lane)
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

    def _forget(self, channel: Channel) -> None:
        channel.nudged.set()  # its task sees that nobody watches
        key = (channel.kind, channel.subject)
        if self._channels.get(key) is channel:
            del self._channels[key]
        if not self._channels and not self.closing:
            self._watched.clear()

    async def _keep_up(self, channel: Channel) -> None:
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

    async def _update(self, channel: Channel) -> float:
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
