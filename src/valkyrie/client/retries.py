"""How long a tracker that does not answer is asked again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from sandboxes.retry import Backoff, Retries
from valkyrie.client.faults import BusyError, TrackerUnreachableError

PATIENT_S = 60.0
"""A stream that was heard before: long enough for a tracker to be restarted."""
QUICK_S = 3.0
"""A single request nobody answers: long enough for a hiccup, short enough for a wrong address."""
BUSY_S = 20.0
"""A single request that is answered with `not now`."""
BACKOFF = Backoff(first_s=0.1, longest_s=5.0)

Result = TypeVar("Result")
Silence = TrackerUnreachableError | BusyError


@dataclass(frozen=True, slots=True)
class SilenceLimits:
    """Seconds without an answer, by what is waited for."""

    stream: float = PATIENT_S
    quick: float = QUICK_S
    busy: float = BUSY_S

    @classmethod
    def within(cls, seconds: float) -> SilenceLimits:
        """Return the usual limits, none of them longer than this."""
        return cls(seconds, min(QUICK_S, seconds), min(BUSY_S, seconds))


class TrackerRetries:
    """The tries of one request, or of one stream since it was last heard."""

    def __init__(self, limits: SilenceLimits) -> None:
        self._limits = limits
        self._streaming = False
        self._retries = Retries(BACKOFF)

    def heard(self) -> None:
        """Note that a stream spoke: from now on its silence is borne longer, each time anew."""
        self._streaming = True
        self._retries.reset()

    async def pause(self, silence: Silence) -> None:
        """Sleep before the next try; raise the error of this one if there is none."""
        busy = isinstance(silence, BusyError)
        error = silence.error if isinstance(silence, BusyError) else silence
        limit = self._limits.stream if self._streaming else self._limits.busy if busy else self._limits.quick
        await self._retries.pause(error, error.retry_after, within_s=limit)


async def persist(
    once: Callable[[], Awaitable[Result]], limits: SilenceLimits, *, repeatable: bool
) -> Result:
    """Do it until it is answered. What may not be done twice is repeated only if it never arrived."""
    retries = TrackerRetries(limits)
    while True:
        try:
            return await once()
        except TrackerUnreachableError as error:
            if error.sent and not repeatable:
                raise unknown_outcome(error) from None
            await retries.pause(error)
        except BusyError as error:
            if not repeatable:
                raise error.error from None
            await retries.pause(error)


def unknown_outcome(error: TrackerUnreachableError) -> TrackerUnreachableError:
    """Return the error for a request that arrived, perhaps, and was answered to nobody."""
    return TrackerUnreachableError(
        f"{error} Whether it did what was asked is not known: look (`valk run list`, `valk run fetch`) "
        "before asking again.",
        sent=True,
    )
