"""Back-off between tries, and the `Retry-After` header.

A `Backoff` says how long to wait, a `Retries` counts the failures of one call against it:

    retries = Retries(BACKOFF)
    while True:
        try:
            return await ask()
        except BusyError as error:
            await retries.pause(error, error.retry_after)

Tests pass in clock, randomness and sleep, all of them fields of the `Backoff`.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime

LONGEST_ASKED_S = 366 * 86_400.0
"""The longest wait that is read from an answer; quotas of a year exist."""
_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?")

AsyncSleep = Callable[[float], Awaitable[None]]


async def _sleep(seconds: float) -> None:
    import asyncio  # 27 ms, which a command that waits for nothing need not spend

    await asyncio.sleep(seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Delays that grow from `first_s` by `factor` up to `longest_s`, and when to stop trying."""

    first_s: float
    longest_s: float
    factor: float = 2.0
    jitter: float = 0.5
    """The part of each delay that is random, so that clients which failed together come back apart: 0 is
    none of it, 1 all of it (full jitter)."""
    attempts: int | None = None
    """Tries in all, the first one included; None sets no limit."""
    within_s: float | None = None
    """Seconds after the first try began in which the last one must begin; None sets no limit."""
    cap_asked_s: float = LONGEST_ASKED_S
    """A wait that the other side asks for is cut to this."""
    draw: Callable[[], float] = random.random
    """Return a number in [0, 1)."""
    clock: Callable[[], float] = time.monotonic
    sleep: AsyncSleep = _sleep

    def delay(self, failed: int, asked: float | None = None) -> float:
        """Return the seconds to wait after the `failed`-th failure, counted from 1.

        `asked` is what the other side asked for (Retry-After): the wait is never shorter. Many clients hear
        the same number at once, so each adds up to `first_s` of its own.
        """
        try:
            most = min(self.longest_s, self.first_s * self.factor ** (failed - 1))
        except OverflowError:
            most = self.longest_s
        drawn = self.draw()
        delay = most * (1 - self.jitter + self.jitter * drawn)
        return delay if asked is None else max(delay, min(asked + drawn * self.first_s, self.cap_asked_s))


class Retries:
    """The failures of one call, or of one stream since it was last heard."""

    def __init__(self, backoff: Backoff) -> None:
        self._backoff = backoff
        self.reset()

    def reset(self) -> None:
        """Begin anew: there was an answer, and the next failure is another one."""
        self.failed = 0
        self._began = self._backoff.clock()

    @property
    def lasted_s(self) -> float:
        """Seconds since the first try began."""
        return self._backoff.clock() - self._began

    def next_delay(self, asked: float | None = None, *, within_s: float | None = None) -> float | None:
        """Count a failure; return the seconds to wait before the next try, None if there is none.

        `within_s` goes before the policy's own.
        """
        self.failed += 1
        attempts, limit = self._backoff.attempts, self._backoff.within_s if within_s is None else within_s
        if attempts is not None and self.failed >= attempts:
            return None
        delay = self._backoff.delay(self.failed, asked)
        return None if limit is not None and self.lasted_s + delay > limit else delay

    async def pause(
        self, error: Exception, asked: float | None = None, *, within_s: float | None = None
    ) -> None:
        """Count a failure and sleep before the next try; raise `error` if there is none."""
        delay = self.next_delay(asked, within_s=within_s)
        if delay is None:
            raise error from error.__cause__  # not from the failure that is being handled
        await self._backoff.sleep(delay)

    def block(
        self,
        error: Exception,
        wait: Callable[[float], object] = time.sleep,
        *,
        within_s: float | None = None,
    ) -> None:
        """Do the same in a thread. A `wait` that returns True ends the tries, as `Event.wait` does."""
        delay = self.next_delay(within_s=within_s)
        if delay is None or wait(delay) is True:
            raise error from error.__cause__


def parse_retry_after(value: object, now: Callable[[], float] = time.time) -> float | None:
    """Return the seconds that a Retry-After header asks for, at most `LONGEST_ASKED_S`.

    A header is a number of seconds, also with decimals, or an HTTP date; a date that has passed asks for 0.
    Return None for everything else: a negative number, NaN, an exponent, other words, nothing.
    """
    seconds = parse_retry_after_seconds(value)
    if seconds is not None or not isinstance(value, str):
        return seconds
    from email.utils import parsedate_to_datetime

    try:
        return seconds_until(parsedate_to_datetime(value), now)
    except (ValueError, TypeError, OverflowError):
        return None


def parse_retry_after_seconds(value: object) -> float | None:
    """Return the seconds of a Retry-After header that is a number; None for a date."""
    text = value.strip() if isinstance(value, str) else ""
    return min(float(text), LONGEST_ASKED_S) if _NUMBER.fullmatch(text) else None


def seconds_until(moment: datetime, now: Callable[[], float] = time.time) -> float:
    """Return the seconds from now, 0 to `LONGEST_ASKED_S`; a moment without a time zone is in UTC."""
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return min(max(0.0, aware.timestamp() - now()), LONGEST_ASKED_S)
