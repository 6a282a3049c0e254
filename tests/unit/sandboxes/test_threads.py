import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator

import pytest

from sandboxes.streams import feed, pieces_from, uninterrupted


async def chunks(*items: bytes) -> AsyncIterator[bytes]:
    for item in items:
        await asyncio.sleep(0)
        yield item


async def test_feeding_a_thread() -> None:
    got: list[bytes] = []
    await feed(chunks(b"a", b"", b"c"), got.extend)
    assert got == [b"a", b"", b"c"]


async def test_errors_of_the_source_reach_both_sides() -> None:
    seen: list[BaseException] = []

    async def failing() -> AsyncIterator[bytes]:
        yield b"a"
        raise ZeroDivisionError

    def write(pieces: Iterable[bytes]) -> None:
        try:
            list(pieces)
        except ZeroDivisionError as error:
            seen.append(error)
            raise

    with pytest.raises(ZeroDivisionError):
        await feed(failing(), write)
    assert len(seen) == 1


async def test_cancelling_a_feed_ends_its_thread() -> None:
    ended: list[bool] = []
    started = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        yield b"a"
        started.set()
        await asyncio.sleep(3600)

    def write(pieces: Iterable[bytes]) -> None:
        try:
            list(pieces)
        finally:
            ended.append(True)

    task = asyncio.create_task(feed(endless(), write))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == [True]


async def test_a_reader_that_leaves_closes_the_source() -> None:
    closed: list[bool] = []

    def numbers() -> Iterator[bytes]:
        try:
            for number in range(10):
                yield bytes([number])
        finally:
            closed.append(True)

    stream = pieces_from(numbers())
    assert await anext(stream) == b"\0"
    await stream.aclose()  # type: ignore[attr-defined]
    assert closed == [True]


async def test_uninterrupted_work_is_over_when_it_returns() -> None:
    done: list[bool] = []

    async def work() -> None:
        await asyncio.sleep(0.05)
        done.append(True)

    task = asyncio.create_task(uninterrupted(work()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done == [True]
