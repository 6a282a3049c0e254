"""Move bytes between asyncio and blocking work in threads, and bring work to its end when its caller is
cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Iterator
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


async def pieces_from(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Yield what a blocking generator reads, each piece read in a thread."""
    try:
        while (piece := await uninterrupted(asyncio.to_thread(next, pieces, None))) is not None:
            yield piece
    finally:
        if isinstance(pieces, Generator):
            pieces.close()


async def feed(chunks: AsyncIterator[bytes], write: Callable[[Iterable[bytes]], None]) -> None:
    """Run the blocking `write` in a thread on what `chunks` yields here; its error is `write`'s input's."""
    loop = asyncio.get_running_loop()
    awaited: Future[bytes | None] | None = None
    stopped = False

    async def following() -> bytes | None:
        return await anext(chunks, None)

    def pulled() -> Iterator[bytes]:
        nonlocal awaited
        while not stopped:
            awaited = asyncio.run_coroutine_threadsafe(following(), loop)
            if stopped:  # since the check above: `stop` has cancelled an earlier one
                awaited.cancel()
            chunk = awaited.result()
            if chunk is None:
                return
            yield chunk
        raise InterruptedError("the upload was cancelled")

    def stop() -> None:
        nonlocal stopped
        stopped = True
        if awaited is not None:
            awaited.cancel()

    await uninterrupted(asyncio.to_thread(write, pulled()), stop)


async def uninterrupted(work: Awaitable[T], stop: Callable[[], None] | None = None) -> T:
    """Await work that goes on in a thread; when cancelled, do not return before it has ended."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if stop is not None:
            stop()
        await asyncio.wait((task,))
        if not task.cancelled():
            task.exception()
        raise


# Work that must come to its end even when the one who waits for it is cancelled.


async def to_the_end(work: Awaitable[T]) -> T:
    """Await `work`; a cancellation takes effect only once it is done, and then wins over its outcome."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not task.cancelled():
            task.exception()
        raise cancelled
    return task.result()
