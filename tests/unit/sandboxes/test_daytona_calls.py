"""How long calls to Daytona are repeated, by a clock that passes only when they sleep."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sandboxes.daytona import sdk
from sandboxes.daytona.rest import DaytonaConnectionError, DaytonaError
from sandboxes.daytona.sdk import LOST, THROTTLED, DaytonaBackoff, call
from sandboxes.errors import SandboxCapacityError, SandboxConnectionError


class Server:
    """Fails every call in one way, and notes how long the caller slept before each."""

    def __init__(self, failure: DaytonaError, drawn: float = 0.0) -> None:
        self.failure = failure
        self.calls = 0
        self.slept: list[float] = []
        self.now = 0.0
        passing = {"draw": lambda: drawn, "clock": lambda: self.now, "sleep": self.sleep}
        self.backoff = DaytonaBackoff(replace(LOST, **passing), replace(THROTTLED, **passing))

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    async def answer(self) -> None:
        self.calls += 1
        raise self.failure

    async def judge(self, error: BaseException, what: str) -> Exception:
        return sdk.translated(error, what)

    async def ask(self, *, repeat: bool = True) -> None:
        await call(self.answer, "do it", self.judge, self.backoff, repeat=repeat)


@pytest.mark.parametrize(("drawn", "seconds"), [(0.0, 15.82), (1.0, 22.6)])
async def test_lost_connections_are_made_again_for_about_twenty_seconds(drawn: float, seconds: float) -> None:
    server = Server(DaytonaConnectionError("gone"), drawn)
    with pytest.raises(SandboxConnectionError):
        await server.ask()
    assert server.calls == 8
    assert sum(server.slept) == pytest.approx(seconds)
    assert server.slept == sorted(server.slept)


async def test_what_may_not_be_done_twice_is_done_once() -> None:
    server = Server(DaytonaConnectionError("gone"))
    with pytest.raises(SandboxConnectionError):
        await server.ask(repeat=False)
    assert (server.calls, server.slept) == (1, [])


@pytest.mark.parametrize(
    ("headers", "slept"),
    [
        ({"Retry-After": "50"}, [50, 50]),
        ({"Retry-After": "Fri, 01 Jan 2100 00:00:00 GMT"}, []),
        ({"Retry-After": "9" * 400}, []),
        ({}, [1] * 120),
    ],
)
async def test_a_refusal_for_asking_too_often_is_repeated_for_two_minutes(
    headers: dict[str, str], slept: list[float]
) -> None:
    server = Server(DaytonaError("slow down", 429, headers=headers))
    with pytest.raises(SandboxCapacityError):
        await server.ask(repeat=False)
    assert server.slept == slept
