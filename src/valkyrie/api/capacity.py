"""How much one server takes on: settings, pools of threads, slots for streams, shared lookups."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from anyio import CapacityLimiter
from anyio.to_thread import run_sync

from valkyrie.api.answers import busy
from valkyrie.errors import UsageError, ValkyrieError

DEFAULT_UPLOAD_LIMIT = 1 << 30
UPLOAD_LIMIT = "VALKYRIE_UPLOAD_LIMIT"
METRICS_TOKEN = "VALKYRIE_METRICS_TOKEN"  # noqa: S105 - the variable's name


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """Limits and openness of one server."""

    host: str = "127.0.0.1"
    """The address it is bound to; on loopback only requests that name loopback are answered."""
    auth: bool = True
    """False: whoever reaches it is the default organisation."""
    json_limit: int = 1 << 20
    """Bytes of a JSON body."""
    upload_limit: int = DEFAULT_UPLOAD_LIMIT
    """Bytes of an archive."""
    metrics_token: str | None = field(default=None, repr=False)
    """Opens /metrics; None: any key does."""
    body_pause_s: float = 20.0
    """Longest wait for the next piece of a request's body."""
    body_rate: int = 4096
    """Bytes a second a body must come with on average, after that first wait."""
    stuck_s: float = 30.0
    """A client that takes nothing for so long is dropped."""
    followers: int = 64
    """Logs followed at one time; each holds a thread."""
    downloads: int = 64
    """Streamed downloads and uploads at one time; each holds a file."""
    watchers: int = 2000
    """Event streams at one time."""
    keep_alive_s: float = 15.0
    """A quiet event stream says that it lives every so often."""
    update_every_s: float = 0.2
    """Shortest time between two updates of one run; longer with many watchers."""

    @property
    def loopback(self) -> bool:
        return is_loopback(self.host)


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def upload_limit() -> int:
    """Bytes an archive may have: `VALKYRIE_UPLOAD_LIMIT`, else 1 GiB."""
    text = os.environ.get(UPLOAD_LIMIT)
    if not text:
        return DEFAULT_UPLOAD_LIMIT
    if not text.isdecimal() or not int(text):
        raise UsageError(f"{UPLOAD_LIMIT} must be a number of bytes, not {text!r}.")
    return int(text)


def settings_for(host: str, *, auth: bool = True) -> ApiSettings:
    """Return what the environment says, for a server on this address."""
    if not auth and not is_loopback(host):
        raise UsageError(
            f"--no-auth would let everyone who reaches {host} in. Listen on 127.0.0.1, or leave it out and "
            "make keys with `valkyrie admin key create`."
        )
    return ApiSettings(
        host=host,
        auth=auth,
        upload_limit=upload_limit(),
        metrics_token=os.environ.get(METRICS_TOKEN) or None,
    )


# Many who want to know the same at the same time are told by one look.

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class SharedLookups(Generic[K, T]):
    """Looks under way, by what is looked for: hundreds come at once when a server was restarted."""

    def __init__(self) -> None:
        self._under_way: dict[K, asyncio.Task[T]] = {}

    async def look(self, key: K, look: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return what `look` finds, or what one for the same key that is under way does.

        A look that fails is not shared: it began before this one was asked for, and may have come too early.
        """
        if others := self._under_way.get(key):
            with contextlib.suppress(ValkyrieError):
                return await asyncio.shield(others)
        own = asyncio.ensure_future(look())
        self._under_way[key] = own
        own.add_done_callback(lambda _: self._done(key, own))
        return await asyncio.shield(own)

    def _done(self, key: K, look: asyncio.Task[T]) -> None:
        if self._under_way.get(key) is look:
            del self._under_way[key]
        if not look.cancelled():
            look.exception()  # whoever asked may have gone; then nobody else takes it


# Where blocking work is done: threads in lanes, so that slow work never stands before quick work.
_MOST_WAITING = 200
_asking: ContextVar[str | None] = ContextVar("asking", default=None)


def ask_for(org_id: str | None) -> None:
    """Do what this request does from here on for that organisation."""
    _asking.set(org_id)


def share_of(number: int) -> int:
    """Return how many of so many one organisation may hold: whatever it does, something is left for the
    others."""
    return number - number // 4


class WorkerPool:
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


class StreamSlots:
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


class WorkerPools:
    """The lanes and seats of one server."""

    def __init__(self, settings: ApiSettings) -> None:
        self.quick = WorkerPool("requests", 16)
        """Looks and small writes."""
        self.slow = WorkerPool("starts and checks", 16, waiting=64)
        """What asks other services, or reads much."""
        self.events = WorkerPool("event streams", 4, waiting=10_000)
        """What event streams are made of."""
        self.doors = WorkerPool("callers to be identified", 8)
        self.health = WorkerPool("checks of health", 2, waiting=8)
        self.following = WorkerPool("followed logs", settings.followers)
        self.followers = StreamSlots("places for followed logs", settings.followers)
        self.downloads = StreamSlots("places for downloads and uploads", settings.downloads)
        self.watchers = StreamSlots("places for event streams", settings.watchers)
