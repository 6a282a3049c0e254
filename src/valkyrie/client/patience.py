"""How long a tracker that does not answer is waited for."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from valkyrie.client.faults import BusyError, TrackerUnreachableError

PATIENT_S = 60.0
"""A stream that was heard before: long enough for a tracker to be restarted."""
QUICK_S = 3.0
"""A single request nobody answers: long enough for a hiccup, short enough for a wrong address."""
BUSY_S = 20.0
"""A single request that is answered with `not now`."""
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0

Result = TypeVar("Result")
Silence = TrackerUnreachableError | BusyError


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds without an answer, by what is waited for."""

    stream: float = PATIENT_S
    quick: float = QUICK_S
    busy: float = BUSY_S

    @classmethod
    def within(cls, seconds: float) -> Limits:
        """None of them longer than this."""
        return cls(seconds, min(QUICK_S, seconds), min(BUSY_S, seconds))


class Patience:
    """Pauses that grow while nothing is heard, up to a limit."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._streaming = False
        self._begin()

    def _begin(self) -> None:
        self._since = time.monotonic()
        self._pause = _FIRST_PAUSE_S

    def heard(self) -> None:
        """A stream spoke: from now on its silence is borne longer, each time anew."""
        self._streaming = True
        self._begin()

    async def bear(self, silence: Silence) -> None:
        """Pause before the next attempt; when patience is at its end, raise what it was tried with."""
        busy = isinstance(silence, BusyError)
        error = silence.error if isinstance(silence, BusyError) else silence
        limit = self._limits.stream if self._streaming else self._limits.busy if busy else self._limits.quick
        # Many clients lose the same tracker at once: they come back a little apart.
        pause = max(error.retry_after or 0.0, self._pause * random.uniform(0.7, 1.3))  # noqa: S311
        if time.monotonic() + pause - self._since > limit:
            raise error from None
        self._pause = min(self._pause * 2, _LONGEST_PAUSE_S)
        await asyncio.sleep(pause)


async def persist(once: Callable[[], Awaitable[Result]], limits: Limits, *, repeatable: bool) -> Result:
    """Do it until it is answered. What may not be done twice is repeated only if it never arrived."""
    patience = Patience(limits)
    while True:
        try:
            return await once()
        except TrackerUnreachableError as error:
            if error.sent and not repeatable:
                raise unknown_outcome(error) from None
            await patience.bear(error)
        except BusyError as error:
            if not repeatable:
                raise error.error from None
            await patience.bear(error)


def unknown_outcome(error: TrackerUnreachableError) -> TrackerUnreachableError:
    """The words for a request that arrived, perhaps, and was answered to nobody."""
    return TrackerUnreachableError(
        f"{error} Whether it did what was asked is not known: look (`valk run list`, `valk run fetch`) "
        "before asking again.",
        sent=True,
    )
