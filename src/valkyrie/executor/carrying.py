"""Threads that carry artifacts to their places: one that does not answer holds up its own runs only."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from valkyrie.digest import content_digest
from valkyrie.nouns import Json
from valkyrie.trial.away import Carry

THREADS = 64
OF_ONE_PLACE = 8
"""So many threads one place may hold; what comes after them waits without one."""


class Carriers:
    """One pool for all places, and each place's share of it."""

    def __init__(self, threads: int = THREADS, of_one_place: int = OF_ONE_PLACE) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="artifacts")
        self._shares: defaultdict[str, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(of_one_place)
        )

    def to(self, place: Json) -> Carry:
        """What carries to and from one place."""
        return partial(self._carry, content_digest(place))

    async def _carry(self, place: str, work: Callable[[], None]) -> None:
        share, loop = self._shares[place], asyncio.get_running_loop()

        def returned(_: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended before a place that did not answer
                loop.call_soon_threadsafe(share.release)

        await share.acquire()
        carrying = self._pool.submit(work)
        carrying.add_done_callback(returned)
        try:
            # A thread that has begun cannot be called back: its share is free when it returns, not before.
            await asyncio.shield(asyncio.wrap_future(carrying))
        except asyncio.CancelledError:
            carrying.cancel()
            raise

    def close(self) -> None:
        """Begin nothing more."""
        self._pool.shutdown(wait=False, cancel_futures=True)
