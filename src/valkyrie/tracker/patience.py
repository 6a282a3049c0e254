"""Waiting for something to grow, as long as anyone wants it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")
_gone: ContextVar[threading.Event | None] = ContextVar("gone", default=None)


class NobodyWaitsError(Exception):
    """Whoever followed has gone; nothing more need be looked for."""


def pause(seconds: float) -> None:
    """Sleep before another look; NobodyWaitsError as soon as whoever follows has gone."""
    gone = _gone.get()
    if gone is None:
        time.sleep(seconds)
    elif gone.wait(seconds):
        raise NobodyWaitsError


def until_gone(gone: threading.Event, work: Callable[[], T]) -> T:
    """Do work whose pauses end when `gone` is set: a server's, for a client that may leave."""
    token = _gone.set(gone)
    try:
        return work()
    finally:
        _gone.reset(token)
