"""Waiting for a database that is away or locked: longer each time, and not for ever."""

from __future__ import annotations

import random
import sys
import threading
import time

from valkyrie.store import troubles

LONGEST_OUTAGE_S = 300.0
"""How long an executor waits for a database before it gives up."""
SHORTEST_S, LONGEST_S = 0.05, 5.0
AT_THE_END_S = 15.0
"""How long when nothing but the last writes is left."""
SAID_AFTER_S = 1.0


class Patience:
    """The waits of one write."""

    def __init__(self, seconds: float, place: str) -> None:
        self._seconds = seconds
        self._place = place
        self._since = time.monotonic()
        self._pause = SHORTEST_S
        self._said = False

    def wait(self, error: Exception, ending: threading.Event) -> bool:
        """Wait a while; False when it has been long enough. `ending` shortens it."""
        waited = time.monotonic() - self._since
        if waited > (min(self._seconds, AT_THE_END_S) if ending.is_set() else self._seconds):
            return False
        if not self._said and waited > SAID_AFTER_S:
            self._said = True
            say(f"{self._place} cannot be written ({troubles.first_line(error)}); trying again")
        jitter = 0.5 + random.random() / 2  # noqa: S311 - jitter, not secrets
        pause = SHORTEST_S if troubles.clashed(error) else self._pause
        self._pause = min(self._pause * 2, LONGEST_S)
        if ending.is_set():
            time.sleep(pause * jitter)
        else:
            ending.wait(pause * jitter)
        return True

    def over(self) -> None:
        """It was written."""
        if self._said:
            say(f"{self._place} can be written again after {time.monotonic() - self._since:.0f} s")


def say(text: str) -> None:
    """One line to the executor's log."""
    sys.stderr.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
    sys.stderr.flush()
