"""Many who want to know the same at the same time are told by one look."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

from valkyrie.errors import ValkyrieError

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class Together(Generic[K, T]):
    """Looks under way, by what is looked for: hundreds come at once when a server was restarted."""

    def __init__(self) -> None:
        self._under_way: dict[K, asyncio.Task[T]] = {}

    async def look(self, key: K, look: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What `look` finds, or what one for the same key that is under way does.

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
