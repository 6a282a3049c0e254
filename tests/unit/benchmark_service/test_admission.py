"""A bounded number of gradings runs, a bounded number waits, the rest is refused."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from benchmark_service.admission import Admission, Busy, Duplicate, from_environment

VARIABLES = (
    "GRADING_MAX_CONCURRENCY",
    "GRADING_MAX_QUEUED",
    "GRADING_MAX_ADMITTED_PER_TENANT",
    "GRADING_QUEUE_TIMEOUT_S",
)


def small(*, concurrency: int = 1, queued: int = 1, per_tenant: int = 9, timeout: float = 30) -> Admission:
    return Admission(concurrency, queued, per_tenant, timeout)


async def test_the_next_starts_when_one_ends() -> None:
    admission = small()
    order: list[str] = []

    async def second() -> None:
        async with admission.admit("b"):
            order.append("second")

    async with admission.admit("a"):
        waiting = asyncio.ensure_future(second())
        await asyncio.sleep(0)
        order.append("first")
    await waiting
    assert order == ["first", "second"]


async def test_full_queue_is_busy_and_frees_again() -> None:
    admission = small(concurrency=2, queued=0)
    async with AsyncExitStack() as held:
        await held.enter_async_context(admission.admit("a"))
        await held.enter_async_context(admission.admit("b"))
        with pytest.raises(Busy) as refused:
            async with admission.admit("c"):
                pass
        assert refused.value.retry_after == 30
    async with admission.admit("c"):
        pass


async def test_waiting_too_long_is_busy() -> None:
    admission = small(timeout=0.01)
    async with admission.admit("a"):
        with pytest.raises(Busy, match="in time") as refused:
            async with admission.admit("b"):
                pass
        assert refused.value.retry_after == 1
    async with admission.admit("b"):
        pass


async def test_one_tenant_cannot_take_everything() -> None:
    admission = small(concurrency=4, per_tenant=1)
    async with admission.admit("a"):
        with pytest.raises(Busy, match="tenant"):
            async with admission.admit("a"):
                pass
        async with admission.admit("b"):
            pass


async def test_the_same_work_twice_is_a_duplicate_only_while_in_flight() -> None:
    admission = small(concurrency=4)
    async with admission.admit("a", ("run", "task")):
        with pytest.raises(Duplicate):
            async with admission.admit("a", ("run", "task")):
                pass
        async with admission.admit("a", ("run", "other")), admission.admit("b", ("run", "task")):
            pass
        async with admission.admit("a"), admission.admit("a"):
            pass
    async with admission.admit("a", ("run", "task")):
        pass


async def test_a_cancelled_waiter_and_a_failed_grading_give_their_place_back() -> None:
    admission = small(concurrency=1, queued=1)

    async def wait() -> None:
        async with admission.admit("b", "k"):
            raise AssertionError("there is no room")

    async with admission.admit("a"):
        waiting = asyncio.ensure_future(wait())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    with pytest.raises(RuntimeError, match="grading broke"):
        async with admission.admit("b", "k"):
            raise RuntimeError("grading broke")
    async with admission.admit("b", "k"):
        pass


async def test_defaults_follow_the_concurrency(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GRADING_MAX_CONCURRENCY", "2")
    admission = from_environment()
    async with admission.admit("a"), admission.admit("a"):
        with pytest.raises(Busy, match="tenant"):
            async with admission.admit("a"):
                pass


@pytest.mark.parametrize("name", VARIABLES)
@pytest.mark.parametrize("value", ["-1", "many", "nan"])
def test_a_malformed_setting_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=name):
        from_environment()
