"""Waiting until an outage is over, for so long and not longer."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from valkyrie.errors import InfrastructureError

T = TypeVar("T")
_FIRST_S = 0.5
_LONGEST_S = 15.0


class Outage:
    """The patience of one call. What went wrong is waited out, longer each time, until it has run out."""

    def __init__(self, patience: float, given_up: threading.Event) -> None:
        self._patience = patience
        self._given_up = given_up
        self.over()

    def over(self) -> None:
        """There was an answer: the next outage is another one."""
        self._until = time.monotonic() + self._patience
        self._pause = _FIRST_S

    def wait(self, error: InfrastructureError) -> None:
        """Return when it is worth trying again; raises the error when it is not."""
        # Clients that failed together must not come back together.
        pause = self._pause * random.uniform(0.7, 1.0)  # noqa: S311 - jitter, not secrets
        if time.monotonic() + pause > self._until or self._given_up.wait(pause):
            raise error
        self._pause = min(self._pause * 2, _LONGEST_S)


def outlast(outage: Outage, ask: Callable[[], T]) -> T:
    """What `ask` gives, asked again while AWS cannot be reached."""
    while True:
        try:
            return ask()
        except InfrastructureError as error:
            outage.wait(error)
