"""The same question asked by many at once is asked once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Flights(Generic[T]):
    """Work in flight, by key; whoever asks meanwhile shares its result, or its error."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[T]] = {}

    async def join(self, key: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of the work in flight under `key`, started by this call if there is none.

        A caller that is cancelled leaves the work to the others.
        """
        task = self._tasks.get(key)
        if task is None or task.get_loop() is not asyncio.get_running_loop():
            task = asyncio.create_task(work())
            self._tasks[key] = task
            task.add_done_callback(lambda done: self._landed(key, done))
        return await asyncio.shield(task)

    def _landed(self, key: str, task: asyncio.Task[T]) -> None:
        if self._tasks.get(key) is task:
            del self._tasks[key]
        if not task.cancelled():
            task.exception()  # known to those who still wait; without them nobody needs to hear of it
