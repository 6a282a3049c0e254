"""Looks for the same thing are one look; failures are everyone's own."""

from __future__ import annotations

import asyncio

import pytest

from valkyrie.api.capacity import SharedLookups
from valkyrie.errors import UnknownError


class Looks:
    """Looks that end when they are told to, and are counted."""

    def __init__(self, *, fails: int = 0) -> None:
        self.begun = 0
        self.go = asyncio.Event()
        self._fails = fails

    async def __call__(self) -> str:
        self.begun += 1
        number = self.begun
        await self.go.wait()
        if number <= self._fails:
            raise UnknownError(f"look {number} found nothing")
        return f"found by {number}"


async def test_many_at_once_are_told_by_one_look_and_the_next_looks_again() -> None:
    together, looks = SharedLookups[str, str](), Looks()
    asking = [asyncio.create_task(together.look("a", looks)) for _ in range(20)]
    other = asyncio.create_task(together.look("b", looks))
    await asyncio.sleep(0)
    looks.go.set()
    assert set(await asyncio.gather(*asking)) == {"found by 1"}
    assert await other == "found by 2"
    assert await together.look("a", looks) == "found by 3"


async def test_a_look_that_fails_fails_only_who_began_it() -> None:
    together, looks = SharedLookups[str, str](), Looks(fails=1)
    first = asyncio.create_task(together.look("a", looks))
    second = asyncio.create_task(together.look("a", looks))
    await asyncio.sleep(0)
    looks.go.set()
    with pytest.raises(UnknownError):
        await first
    assert await second == "found by 2"


async def test_who_began_a_look_may_go_away() -> None:
    together, looks = SharedLookups[str, str](), Looks()
    first = asyncio.create_task(together.look("a", looks))
    second = asyncio.create_task(together.look("a", looks))
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    looks.go.set()
    assert await second == "found by 1"
