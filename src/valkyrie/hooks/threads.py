"""Blocking calls that may hang, each in a thread of its own.

The loop's own pool is small and shared with everything an executor does with files, and is waited for when
the process ends; a name server or a function that does not answer may hold up neither.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_own_thread(work: Callable[[], T]) -> T:
    """What `work` returns or raises; when cancelled, it is left to itself."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(value: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)  # type: ignore[arg-type]

    def run() -> None:
        value: T | None = None
        error: BaseException | None = None
        try:
            value = work()
        except BaseException as problem:  # noqa: BLE001 - whatever it is belongs to whoever waits
            error = problem
        with contextlib.suppress(RuntimeError):  # the loop has ended, and nobody waits
            loop.call_soon_threadsafe(settle, value, error)

    threading.Thread(target=run, name="hook", daemon=True).start()
    return await future
