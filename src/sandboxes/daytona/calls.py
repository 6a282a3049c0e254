"""Calls over the network: repeated where that is safe, their failures told in our own terms."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from sandboxes.daytona import errors

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Patience:
    """How long trouble on the way is borne."""

    delays: tuple[float, ...] = (0.2, 0.5, 1, 2, 5, 10)
    """Seconds before each further try after a lost connection."""
    throttled: float = 120.0
    """Seconds to spend in all on waiting because Daytona asked to."""
    throttled_default: float = 2.0
    """The wait when it does not say how long."""


Judge = Callable[[BaseException, str], Awaitable[Exception]]
"""Turns a failure into the error to raise; may look whether the sandbox still lives."""


async def call(
    action: Callable[[], Awaitable[T]], what: str, judge: Judge, patience: Patience, *, repeat: bool
) -> T:
    """Await `action`; `repeat` says that doing it twice does no harm.

    A refusal for asking too often is always tried again: the call was not carried out.
    """
    delays = list(patience.delays) if repeat else []
    budget = patience.throttled
    while True:
        try:
            return await action()
        except errors.failures() as error:
            if errors.status_of(error) == 429:
                wait = errors.retry_after(error) or patience.throttled_default
                budget -= wait
                if budget < 0:
                    raise errors.translated(error, what) from error
            else:
                lost = errors.is_connection_failure(error)
                verdict = await judge(error, what)
                # A verdict other than the plain one is final: the sandbox is gone, or the file is.
                if not (lost and delays and type(verdict) is type(errors.translated(error, what))):
                    raise verdict from error
                wait = delays.pop(0)
        await asyncio.sleep(wait)
