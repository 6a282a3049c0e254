"""Where blocking work is done: threads in lanes, so that slow work never stands before quick work."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from anyio import CapacityLimiter
from anyio.to_thread import run_sync

from valkyrie.api.errors import busy
from valkyrie.api.settings import ApiSettings

T = TypeVar("T")
_MOST_WAITING = 200
_asking: ContextVar[str | None] = ContextVar("asking", default=None)


def ask_for(org_id: str | None) -> None:
    """What this request does from here on is done for that organisation."""
    _asking.set(org_id)


def share_of(number: int) -> int:
    """How many of so many one organisation may hold: whatever it does, something is left for the others."""
    return number - number // 4


class Lane:
    """So many threads, and a queue before them that is not endless; no organisation gets all of them."""

    def __init__(self, name: str, threads: int, waiting: int = _MOST_WAITING) -> None:
        self._name = name
        self._threads = threads
        self._waiting = waiting
        self._limiter = CapacityLimiter(threads)
        self._shares: dict[str, CapacityLimiter] = {}
        self._inside: Counter[str | None] = Counter()

    async def run(self, work: Callable[[], T]) -> T:
        """Do blocking work; InfrastructureError (`busy`) when too many wait already."""
        whose = _asking.get()
        if whose is None:
            return await self._run(work)
        at_once = share_of(self._threads)
        share = self._shares.setdefault(whose, CapacityLimiter(at_once))
        with self._place(whose, at_once):
            async with share:
                return await self._run(work)

    async def _run(self, work: Callable[[], T]) -> T:
        with self._place(None, self._threads):
            return await run_sync(work, limiter=self._limiter)

    @contextmanager
    def _place(self, whose: str | None, at_once: int) -> Iterator[None]:
        """One of so many that work or wait.

        Counted here: a limiter knows who waits a turn of the loop later, and hundreds may come in one.
        """
        if self._inside[whose] >= at_once + self._waiting:
            raise busy(f"too many {self._name} wait")
        self._inside[whose] += 1
        try:
            yield
        finally:
            self._inside[whose] -= 1


class Seats:
    """So many streams at one time, not all of them one organisation's; who comes later is told at once."""

    def __init__(self, name: str, number: int) -> None:
        self._name = name
        self._number = number
        self._left: set[threading.Event] = set()
        self._held: Counter[str | None] = Counter()
        self._closed = False

    @property
    def taken(self) -> int:
        return len(self._left)

    @contextmanager
    def seat(self) -> Iterator[threading.Event]:
        """Hold one until the event is set; InfrastructureError (`busy`) when there is none."""
        if self._closed or self.taken >= self._number:
            raise busy(f"all {self._number} {self._name} are taken", retry_after=10.0)
        whose = _asking.get()
        if whose is not None and self._held[whose] >= share_of(self._number):
            raise busy(f"your organisation has its share of the {self._name}", retry_after=10.0)
        left = threading.Event()
        self._left.add(left)
        self._held[whose] += 1
        try:
            yield left
        finally:
            self._left.discard(left)
            self._held[whose] -= 1

    def close(self) -> None:
        """The server ends: streams without an end of their own end now."""
        self._closed = True
        for left in self._left:
            left.set()


class Lanes:
    """The lanes and seats of one server."""

    def __init__(self, settings: ApiSettings) -> None:
        self.quick = Lane("requests", 16)
        """Looks and small writes."""
        self.slow = Lane("starts and checks", 16, waiting=64)
        """What asks other services, or reads much."""
        self.events = Lane("event streams", 4, waiting=10_000)
        """What event streams are made of."""
        self.doors = Lane("callers to be identified", 8)
        self.health = Lane("checks of health", 2, waiting=8)
        self.following = Lane("followed logs", settings.followers)
        self.followers = Seats("places for followed logs", settings.followers)
        self.downloads = Seats("places for downloads and uploads", settings.downloads)
        self.watchers = Seats("places for event streams", settings.watchers)
