"""Carrying artifacts: whoever does not answer holds up nobody else."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from valkyrie.executor.open_runs import TransferPool

DEAD, LIVING = {"bucket": "dead"}, {"bucket": "living"}


@pytest.fixture
def answer() -> Iterator[threading.Event]:
    """When the dead place answers after all."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def carriers(answer: threading.Event) -> Iterator[TransferPool]:
    made = TransferPool(threads=4, of_one_place=2)
    yield made
    answer.set()
    made.close()


async def test_a_dead_place_holds_only_its_share(carriers: TransferPool, answer: threading.Event) -> None:
    begun: list[str] = []

    def stuck() -> None:
        begun.append(threading.current_thread().name)
        answer.wait(60)

    waiting = [asyncio.create_task(carriers.to(DEAD)(stuck)) for _ in range(20)]
    async with asyncio.timeout(60):
        for _ in range(10):
            await carriers.to(LIVING)(lambda: None)
        await asyncio.to_thread(lambda: None)
    assert 1 <= len(begun) <= 2 and all(name.startswith("artifacts") for name in begun)
    answer.set()
    async with asyncio.timeout(60):
        await asyncio.gather(*waiting)
    assert len(begun) == 20


async def test_an_end_before_its_turn_is_not_carried_and_one_after_keeps_its_share(
    carriers: TransferPool, answer: threading.Event
) -> None:
    carry, begun = carriers.to(DEAD), threading.Semaphore(0)
    done: list[int] = []

    def stuck(number: int) -> None:
        begun.release()
        answer.wait(60)
        done.append(number)

    first = [asyncio.create_task(carry(lambda n=number: stuck(n))) for number in range(2)]
    for _ in first:
        await asyncio.to_thread(begun.acquire, timeout=60)
    late = asyncio.create_task(carry(lambda: done.append(99)))
    await asyncio.sleep(0)
    for task in (*first, late):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    third = asyncio.create_task(carry(lambda: done.append(3)))
    await carriers.to(LIVING)(lambda: None)
    assert done == [], "threads of the cancelled ones are still out"
    answer.set()
    async with asyncio.timeout(60):
        await third
        while len(done) < 3:  # one of the two may still be on its way out
            await asyncio.sleep(0.01)
    assert sorted(done) == [0, 1, 3]


async def test_what_went_wrong_is_told(carriers: TransferPool) -> None:
    def broken() -> None:
        raise OSError("no bucket")

    with pytest.raises(OSError, match="no bucket"):
        await carriers.to(LIVING)(broken)
