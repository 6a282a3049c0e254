"""Calls over the network: repeated where that is safe, their failures told in our own terms."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from sandboxes.daytona import sdk
from sandboxes.retry import Backoff, Retries

T = TypeVar("T")


LOST = Backoff(first_s=0.2, longest_s=10.0, jitter=0.3, attempts=8)
"""After lost connections: for about 20 s in all."""
THROTTLED = Backoff(first_s=2.0, longest_s=2.0, within_s=120.0)
"""After a refusal for asking too often."""


@dataclass(frozen=True, slots=True)
class DaytonaBackoff:
    """How long trouble with Daytona is waited out."""

    lost: Backoff = LOST
    throttled: Backoff = THROTTLED


Judge = Callable[[BaseException, str], Awaitable[Exception]]
"""Turns a failure into the error to raise; may look whether the sandbox still lives."""


async def call(
    action: Callable[[], Awaitable[T]], what: str, judge: Judge, backoff: DaytonaBackoff, *, repeat: bool
) -> T:
    """Await `action`; `repeat` says that doing it twice does no harm.

    A refusal for asking too often is always tried again: the call was not carried out.
    """
    lost, throttled = Retries(backoff.lost), None
    while True:
        try:
            return await action()
        except sdk.failures() as error:
            if sdk.status_of(error) == 429:
                throttled = throttled or Retries(backoff.throttled)
                delay = throttled.next_delay(sdk.retry_after(error))
                if delay is None:
                    raise sdk.translated(error, what) from error
            else:
                verdict = await judge(error, what)
                # A verdict other than the plain one is final: the sandbox is gone, or the file is.
                plain = type(verdict) is type(sdk.translated(error, what))
                passing = repeat and plain and sdk.is_connection_failure(error)
                delay = lost.next_delay() if passing else None
                if delay is None:
                    raise verdict from error
        await backoff.lost.sleep(delay)
