"""Back-off between tries, and the Retry-After header."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxes.retry import LONGEST_ASKED_S, Backoff, Retries, parse_retry_after, parse_retry_after_seconds

NOON = 946_728_000.0
"""1 January 2000, 12:00 UTC."""


@dataclass
class Clock:
    """Time that passes only when somebody sleeps, or a test lets it."""

    now: float = 0.0
    slept: list[float] = field(default_factory=list)

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.wait(seconds)

    def wait(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def backoff(clock: Clock) -> Backoff:
    return Backoff(first_s=1.0, longest_s=10.0, jitter=0.0, draw=lambda: 0.5, clock=clock, sleep=clock.sleep)


def delays(backoff: Backoff, number: int) -> list[float]:
    return [backoff.delay(failed) for failed in range(1, number + 1)]


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("0", 0.0),
        ("7", 7.0),
        (" 17 ", 17.0),
        ("1.5", 1.5),
        ("999999999", LONGEST_ASKED_S),
        ("9" * 5000, LONGEST_ASKED_S),
        ("-3", None),
        ("1e9", None),
        ("nan", None),
        ("inf", None),
        ("1_000", None),
        ("٣", None),
        ("²", None),
        ("5 s", None),
        ("soon", None),
        ("", None),
        (None, None),
        (7, None),
    ],
)
def test_seconds(value: object, seconds: float | None) -> None:
    assert parse_retry_after(value, now=lambda: NOON) == seconds
    assert parse_retry_after_seconds(value) == seconds


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("Sat, 01 Jan 2000 12:00:30 GMT", 30.0),
        ("Saturday, 01-Jan-00 12:00:30 GMT", 30.0),
        ("Sat Jan  1 12:00:30 2000", 30.0),
        ("Sat, 01 Jan 2000 12:00:30 -0000", 30.0),
        ("01 Jan 2000 14:00:30 +0200", 30.0),
        ("Sat, 01 Jan 2000 11:00:00 GMT", 0.0),
        ("Fri, 01 Jan 9999 00:00:00 GMT", LONGEST_ASKED_S),
        ("Sat, 01 Jan 2000 12:00:30 +99999999999999", None),
        ("Sat, 32 Jan 2000 12:00:30 GMT", None),
        ("2000-01-01T12:00:30Z", None),
        ("Sat", None),
    ],
)
def test_dates(value: str, seconds: float | None) -> None:
    assert parse_retry_after(value, now=lambda: NOON) == seconds
    assert parse_retry_after_seconds(value) is None


@given(st.text())
def test_no_text_breaks_the_parser(value: str) -> None:
    found = parse_retry_after(value)
    assert found is None or 0 <= found <= LONGEST_ASKED_S


def test_delays_grow_to_the_longest(backoff: Backoff) -> None:
    assert delays(backoff, 6) == [1, 2, 4, 8, 10, 10]
    assert delays(replace(backoff, factor=4.0), 3) == [1, 4, 10]
    assert backoff.delay(1_000_000) == 10


@pytest.mark.parametrize(("drawn", "expected"), [(0.0, [0.5, 1, 2, 4, 5]), (1.0, [1, 2, 4, 8, 10])])
def test_half_of_a_delay_is_random(backoff: Backoff, drawn: float, expected: list[float]) -> None:
    assert delays(replace(backoff, jitter=0.5, draw=lambda: drawn), 5) == expected


def test_full_jitter(backoff: Backoff) -> None:
    assert delays(replace(backoff, jitter=1.0, draw=lambda: 0.25), 5) == [0.25, 0.5, 1, 2, 2.5]


def test_clients_that_hear_the_same_number_come_back_apart_and_never_earlier(backoff: Backoff) -> None:
    for drawn, seconds in [(0.0, 4.0), (0.5, 4.5), (0.75, 4.75)]:
        assert replace(backoff, draw=lambda drawn=drawn: drawn).delay(1, 4.0) == seconds


def test_a_short_wait_that_is_asked_for_does_not_shorten_the_own_one(backoff: Backoff) -> None:
    assert backoff.delay(4, 0.0) == 8
    assert backoff.delay(4, 7.0) == 8


def test_a_long_wait_that_is_asked_for_is_cut_where_the_policy_says_so(backoff: Backoff) -> None:
    assert backoff.delay(1, 4000.0) == 4000.5
    assert replace(backoff, cap_asked_s=60.0).delay(1, 4000.0) == 60


def test_attempts_are_tries_in_all(backoff: Backoff) -> None:
    retries = Retries(replace(backoff, attempts=3))
    assert [retries.next_delay() for _ in range(4)] == [1, 2, None, None]
    assert Retries(replace(backoff, attempts=1)).next_delay() is None


def test_the_last_try_begins_within_the_time(backoff: Backoff, clock: Clock) -> None:
    retries = Retries(replace(backoff, within_s=10.0))
    for seconds in (1, 2, 4):
        assert retries.next_delay() == seconds
        clock.now += seconds
    assert retries.lasted_s == 7
    assert retries.next_delay() is None
    assert retries.next_delay(within_s=100.0) == 10
    assert Retries(replace(backoff, within_s=0.0)).next_delay() is None


def test_a_wait_beyond_the_time_is_not_begun(backoff: Backoff) -> None:
    assert Retries(replace(backoff, within_s=20.0)).next_delay(asked=600.0) is None


def test_an_answer_begins_anew(backoff: Backoff, clock: Clock) -> None:
    retries = Retries(replace(backoff, within_s=4.0))
    assert [retries.next_delay(), retries.next_delay()] == [1, 2]
    clock.now = 3.5
    assert retries.next_delay() is None
    retries.reset()
    assert (retries.failed, retries.next_delay()) == (0, 1)


async def test_tries_with_pauses(backoff: Backoff, clock: Clock) -> None:
    retries = Retries(replace(backoff, attempts=4))
    failures: list[OSError] = [OSError("first"), OSError("second"), OSError("third")]
    for number, error in enumerate(failures, 1):
        await retries.pause(error, asked=3.0 if number == 2 else None)
    assert clock.slept == [1, 3.5, 4]
    with pytest.raises(OSError, match="last"):
        await retries.pause(OSError("last"))


async def test_the_error_that_is_raised_keeps_its_own_cause_and_no_other(backoff: Backoff) -> None:
    retries, cause = Retries(replace(backoff, attempts=1)), KeyError("cause")
    for own in (None, cause):
        error = OSError("away")
        error.__cause__ = own
        with pytest.raises(OSError, match="away") as caught:
            try:
                raise ValueError("handled")
            except ValueError:
                await retries.pause(error)
        assert caught.value.__cause__ is own and caught.value.__suppress_context__


def test_tries_in_a_thread(backoff: Backoff, clock: Clock) -> None:
    retries = Retries(replace(backoff, within_s=10.0))
    for _ in range(3):
        retries.block(OSError("away"), clock.wait)
    assert clock.slept == [1, 2, 4]
    with pytest.raises(OSError, match="away"):
        retries.block(OSError("away"), clock.wait)
    retries.block(OSError("away"), clock.wait, within_s=100.0)


def test_an_event_ends_tries_in_a_thread(backoff: Backoff) -> None:
    ending, short = threading.Event(), replace(backoff, first_s=0.0)
    Retries(short).block(OSError("away"), ending.wait)
    ending.set()
    with pytest.raises(OSError, match="away"):
        Retries(short).block(OSError("away"), ending.wait)


@pytest.mark.parametrize("wait", [lambda _: None, lambda _: False])
def test_only_true_ends_them(backoff: Backoff, wait: Callable[[float], object]) -> None:
    Retries(backoff).block(OSError("away"), wait)
