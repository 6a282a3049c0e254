"""Ends a run early: one Ctrl+C finishes what is in flight, a second or SIGTERM leaves it."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import FrameType
from typing import IO, Any

import click

from benchmark_runner.running import Watch

DEAF_S = 1.0
"""An interrupt that is not heard for so long meets code that keeps the event loop from running."""


class Stopped(Exception):
    """The run was left before its end."""

    def __init__(self, code: int) -> None:
        super().__init__(f"stopped, exit code {code}")
        self.code = code


class LeftEarly(click.ClickException):
    """The command was interrupted where nothing was in flight: no error, and no end either."""

    exit_code = 130

    def show(self, file: IO[Any] | None = None) -> None:
        """Say so, without calling it an error."""
        click.echo(self.format_message(), file=file, err=True)


@asynccontextmanager
async def finishing_on_signals(watch: Watch, clear: Callable[[], None]) -> AsyncIterator[None]:
    """Within the block: the first SIGINT sets `watch.stopping`; a second, or SIGTERM, raises Stopped.

    Where an author's code blocks the event loop, a second SIGINT is a KeyboardInterrupt in that code.
    """
    loop = asyncio.get_running_loop()
    here = asyncio.current_task()
    assert here is not None
    left = 0
    cancelled = 0
    over = False
    unheard: float | None = None

    def pressed(_signal: int, _frame: FrameType | None) -> None:
        nonlocal unheard, over
        now = time.monotonic()
        if unheard is not None and now - unheard > DEAF_S:
            over = True
            raise KeyboardInterrupt
        unheard = unheard or now

    def leave(code: int) -> None:
        nonlocal left, cancelled
        if over:
            return
        left = left or code
        watch.stopping = True
        cancelled += here.cancel()

    def interrupted() -> None:
        nonlocal unheard
        unheard = None
        if over:
            return
        if watch.stopping:
            leave(130)
            return
        watch.stopping = True
        clear()
        click.echo(f"Finishing {watch.in_flight} tasks in flight; Ctrl+C again leaves them.", err=True)

    loop.add_signal_handler(signal.SIGINT, interrupted)
    # The loop hears by a pipe of its own. This one is called even where the loop does not come to read it.
    signal.signal(signal.SIGINT, pressed)
    loop.add_signal_handler(signal.SIGTERM, leave, 143)
    try:
        yield
    except asyncio.CancelledError:
        for _ in range(cancelled):
            here.uncancel()
        if not left or here.cancelling():
            raise
        raise Stopped(left) from None
    finally:
        over = True
        loop.remove_signal_handler(signal.SIGINT)
        loop.remove_signal_handler(signal.SIGTERM)
