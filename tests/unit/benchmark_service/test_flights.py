"""Many who ask the same at once share one answer."""

from __future__ import annotations

import asyncio

import pytest

from benchmark_service.allowlist import SingleFlight


async def test_one_question_for_all_and_a_new_one_later() -> None:
    flights: SingleFlight[int] = SingleFlight()
    asked = 0
    go = asyncio.Event()

    async def work() -> int:
        nonlocal asked
        asked += 1
        number = asked
        await go.wait()
        return number

    waiting = [asyncio.ensure_future(flights.join("k", work)) for _ in range(5)]
    other = asyncio.ensure_future(flights.join("other", work))
    await asyncio.sleep(0)
    waiting[0].cancel()
    go.set()
    assert await asyncio.gather(*waiting[1:]) == [1, 1, 1, 1]
    assert await other == 2
    assert waiting[0].cancelled()
    assert await flights.join("k", work) == 3


async def test_an_error_is_shared_and_forgotten() -> None:
    flights: SingleFlight[int] = SingleFlight()

    async def fail() -> int:
        await asyncio.sleep(0)
        raise OSError("down")

    async def succeed() -> int:
        return 1

    outcomes = await asyncio.gather(*(flights.join("k", fail) for _ in range(3)), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [OSError] * 3
    assert await flights.join("k", succeed) == 1


async def test_a_question_of_another_loop_is_not_waited_for() -> None:
    flights: SingleFlight[int] = SingleFlight()
    go = asyncio.Event()

    async def slow() -> int:
        await go.wait()
        return 1

    async def quick() -> int:
        return 2

    mine = asyncio.ensure_future(flights.join("k", slow))
    await asyncio.sleep(0)
    assert await asyncio.to_thread(lambda: asyncio.run(flights.join("k", quick))) == 2
    go.set()
    assert await asyncio.wait_for(mine, 30) == 1


@pytest.mark.parametrize("alone", [True, False])
async def test_an_error_nobody_waits_for_is_quiet(alone: bool) -> None:
    flights: SingleFlight[int] = SingleFlight()
    go = asyncio.Event()

    async def fail() -> int:
        await go.wait()
        raise OSError("down")

    waiting = asyncio.ensure_future(flights.join("k", fail))
    await asyncio.sleep(0)
    if alone:
        waiting.cancel()
    go.set()
    with pytest.raises(asyncio.CancelledError if alone else OSError):
        await waiting
