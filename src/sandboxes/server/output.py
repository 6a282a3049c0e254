"""Output of commands, kept for whoever asks and for whoever follows; only the end of too much of it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sandboxes.values import StreamName

MAX_BYTES = 64 << 20
MAX_TOTAL_BYTES = 512 << 20
_PIECE_OVERHEAD = 128
"""What keeping one piece costs beside its text, so that a million single letters count for what they are."""


class OutputBudget:
    """How much the logs of one grant may hold together; beyond it each keeps less."""

    def __init__(self, limit: int = MAX_TOTAL_BYTES) -> None:
        self.limit = limit
        self.used = 0


class AnswerRoom:
    """How much one grant's large answers may take together; those that do not fit wait for the others."""

    def __init__(self, limit: int = MAX_TOTAL_BYTES) -> None:
        self._limit = limit
        self._used = 0
        self._freed = asyncio.Condition()

    @asynccontextmanager
    async def taken(self, size: int) -> AsyncIterator[None]:
        """Hold room for `size` bytes; one answer always fits."""
        async with self._freed:
            await self._freed.wait_for(lambda: not self._used or self._used + size <= self._limit)
            self._used += size
        try:
            yield
        finally:
            self._used -= size
            async with self._freed:
                self._freed.notify_all()


class OutputLog:
    """What a command printed, in the order it came."""

    def __init__(self, limit: int = MAX_BYTES, budget: OutputBudget | None = None) -> None:
        self._limit = limit
        self._budget = budget or OutputBudget()
        self._pieces: deque[tuple[StreamName, bytes]] = deque()
        self._dropped = 0
        self._held = 0
        self._closed = False
        self._changed = asyncio.Event()

    def __call__(self, stream: StreamName, text: str) -> None:
        """Take one piece; the oldest ones go when there is too much."""
        data = text.encode("utf-8", "replace")
        self._pieces.append((stream, data))
        self._count(len(data) + _PIECE_OVERHEAD)
        while self._held > self._limit or self._budget.used > self._budget.limit:
            if not self._pieces:
                break
            self._drop_oldest()
        self._wake()

    @property
    def held(self) -> int:
        """How many bytes are kept."""
        return self._held

    def clear(self) -> None:
        """Give everything back."""
        while self._pieces:
            self._drop_oldest()
        self.close()

    def close(self) -> None:
        """No more will come: followers end."""
        self._closed = True
        self._wake()

    def text(self, stream: StreamName | None = None) -> str:
        """All that is kept, of one stream or of both."""
        wanted = [data for name, data in self._pieces if stream is None or name == stream]
        return b"".join(wanted).decode("utf-8", "replace")

    async def follow(self) -> AsyncIterator[tuple[StreamName, bytes]]:
        """Every piece, from the first kept on, until the command has ended."""
        position = self._dropped
        while True:
            changed = self._changed
            while position - self._dropped < len(self._pieces):
                # A follower too slow for the limit goes on with the oldest piece there is.
                position = max(position, self._dropped)
                piece = self._pieces[position - self._dropped]
                position += 1
                yield piece
            if self._closed:
                return
            await changed.wait()

    def _drop_oldest(self) -> None:
        _, oldest = self._pieces.popleft()
        self._dropped += 1
        self._count(-len(oldest) - _PIECE_OVERHEAD)

    def _count(self, change: int) -> None:
        self._held += change
        self._budget.used += change

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
