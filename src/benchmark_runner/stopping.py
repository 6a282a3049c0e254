"""Ends a run early: one Ctrl+C finishes what is in flight, a second or SIGTERM leaves it."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import FrameType
from typing import IO, Any

import click

from benchmark_runner.running import Watch

DEAF_S = 1.0
"""Seconds. A signal that is not heard for so long meets code that keeps the event loop from running."""


class Stopped(Exception):
    """The run was left before its end."""

    def __init__(self, code: int) -> None:
        super().__init__(f"stopped, exit code {code}")
        self.code = code


class LeftEarly(click.ClickException):
    """The command was ended where nothing could be finished: no error, and no end either."""

    def __init__(self, code: int) -> None:
        super().__init__("Stopped. Give the same command to go on.")
        self.exit_code = code  # type: ignore[misc]

    def show(self, file: IO[Any] | None = None) -> None:
        """Say so, without calling it an error."""
        click.echo(self.format_message(), file=file, err=True)


class Terminated(KeyboardInterrupt):
    """SIGTERM, in code that keeps the event loop from hearing it."""


@asynccontextmanager
async def finishing_on_signals(watch: Watch, clear: Callable[[], None]) -> AsyncIterator[None]:
    """Within the block: the first SIGINT sets `watch.stopping`; a second, or SIGTERM, raises Stopped.

    Where an author's code blocks the event loop, a second SIGINT is a KeyboardInterrupt in that code, and
    SIGTERM, a moment later, Terminated.
    """
    here = asyncio.current_task()
    assert here is not None
    signals = _Signals(watch, clear, here)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, signals.interrupted)
    loop.add_signal_handler(signal.SIGTERM, signals.leave, 143)
    # The loop hears by a pipe of its own. This one is called even where the loop does not come to read it.
    signal.signal(signal.SIGINT, signals.came)
    signal.signal(signal.SIGTERM, signals.came)
    try:
        yield
    except asyncio.CancelledError:
        for _ in range(signals.cancelled):
            here.uncancel()
        if not signals.left or here.cancelling():
            raise
        raise Stopped(signals.left) from None
    finally:
        signals.end()
        loop.remove_signal_handler(signal.SIGINT)
        loop.remove_signal_handler(signal.SIGTERM)


class _Signals:
    """What was heard of signals while tasks are worked on."""

    def __init__(self, watch: Watch, clear: Callable[[], None], worker: asyncio.Task[Any]) -> None:
        self._watch, self._clear, self._worker = watch, clear, worker
        self._unheard: dict[int, float] = {}
        self._again: threading.Timer | None = None
        self._over = False
        self.left = 0
        """The exit code of who leaves what is in flight."""
        self.cancelled = 0

    def came(self, number: int, _frame: FrameType | None) -> None:
        """At once, in whatever code runs; the loop is told, too."""
        since = time.monotonic() - self._unheard.setdefault(number, time.monotonic())
        if since >= DEAF_S and not self._over:
            self._over = True
            raise Terminated if number == signal.SIGTERM else KeyboardInterrupt
        if number == signal.SIGTERM and self._again is None:
            # Who sends it sends it once, and kills later.
            self._again = threading.Timer(DEAF_S, self._send_again)
            self._again.daemon = True
            self._again.start()

    def interrupted(self) -> None:
        """The loop heard SIGINT."""
        self._unheard.pop(signal.SIGINT, None)
        if self._over:
            return
        if self._watch.stopping:
            self.leave(130)
            return
        self._watch.stopping = True
        self._clear()
        said = f"Finishing {self._watch.in_flight} tasks in flight; Ctrl+C again leaves them."
        click.echo(said, err=True)

    def leave(self, code: int) -> None:
        """The loop heard what does not wait for tasks in flight."""
        self._unheard.clear()
        if self._over:
            return
        self.left = self.left or code
        self._watch.stopping = True
        self.cancelled += self._worker.cancel()

    def end(self) -> None:
        """Nothing is left to be stopped."""
        self._over = True
        if self._again is not None:
            self._again.cancel()

    def _send_again(self) -> None:
        if self._unheard and not self._over:
            os.kill(os.getpid(), signal.SIGTERM)
