"""What a command says while it runs: lines for people, one document for programs, progress, and an early end
on Ctrl+C."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, redirect_stdout
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import IO, TYPE_CHECKING, Any, Self, TextIO

import click

from benchmark_runner.artifacts import ArtifactError
from benchmark_runner.llm import without_logins
from benchmark_runner.runs import RunError
from benchmark_runner.task_loop import RunCounts
from benchmark_runner.terminal import printable, printable_json
from sandboxes.masker import Masker

if TYPE_CHECKING:
    from benchmark_runner.llm import LLMConfig


SHORTEST_SECRET = 8
"""Characters: MAX_TOKENS=4096 holds no secret, and blotting out every 4096 would hide what matters."""


@dataclass(slots=True)
class CommandOutput:
    """Says things: to people on standard output, or to a program in one document at the end."""

    as_json: bool
    _sink: TextIO | None = None
    """Where the document goes, when that is not what standard output is now."""

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Within the block the document has standard output for itself: an author's code may print."""
        if not self.as_json:
            yield
            return
        with _standard_output_set_apart() as self._sink:
            yield
        self._sink = None

    def line(self, text: str) -> None:
        """For people."""
        click.echo(printable(text, colors=False), err=self.as_json)

    def lines(self, lines: Sequence[str]) -> None:
        """For people."""
        for text in lines:
            self.line(text)

    def document(self, **fields: Any) -> None:
        """For programs."""
        if self.as_json:
            click.echo(printable_json(json.dumps(fields)), file=self._sink)


@contextmanager
def _standard_output_set_apart() -> Iterator[TextIO]:
    """Standard output; what else is printed within the block, by children too, goes to standard error."""
    real = sys.stdout
    try:
        own = real.fileno() == 1
    except (OSError, ValueError):
        own = False
    if not own:
        with redirect_stdout(sys.stderr):
            yield real
        return
    real.flush()
    with open(os.dup(1), "w", encoding="utf-8") as kept:
        os.dup2(2, 1)
        try:
            yield kept
        finally:
            real.flush()
            kept.flush()
            os.dup2(kept.fileno(), 1)


def redactor(config: LLMConfig | None = None) -> Callable[[str], str]:
    """Takes every secret the environment, the options and URLs hold out of what is written or said."""
    secrets = {name: value for name, value in os.environ.items() if len(value) >= SHORTEST_SECRET}
    if config is not None and config.custom_api_key is not None:
        secrets["CUSTOM_API_KEY"] = config.custom_api_key.get_secret_value()
    masker = Masker.from_settings(secrets)
    return lambda text: without_logins(masker.text(text))


@contextmanager
def in_words(config: LLMConfig | None = None) -> Iterator[None]:
    """Tell a person what they can mend, without a traceback."""
    try:
        yield
    except (RunError, ArtifactError) as error:
        raise click.ClickException(printable(redactor(config)(str(error)), colors=False)) from None
    except OSError as error:
        if error.filename is None:
            raise
        raise click.ClickException(f"{error.filename}: {error.strerror}.") from None


# How far a run is: a line that is drawn again on a terminal, a line now and then elsewhere.

REDRAW_S = 0.1
LINE_S = 30.0
BAR = 24
RATE_WINDOW_S = 30.0


class ProgressLine:
    """Follows a `Watch` until the block ends."""

    def __init__(
        self,
        watch: RunCounts,
        *,
        sink: TextIO | None = None,
        quiet: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._watch = watch
        self._sink = sink or sys.stderr
        self._live = self._sink.isatty()
        self._quiet = quiet
        self._clock = clock
        self._began = self._drawn = clock()
        self._marks = [(self._began, 0)]

    def __enter__(self) -> Self:
        if not self._quiet:
            self._watch.changed = self._changed
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watch.changed = lambda: None
        self.clear()

    def clear(self) -> None:
        """Take the line away, so that something else can be said."""
        if self._live and not self._quiet:
            self._sink.write("\r\x1b[2K")
            self._sink.flush()

    def _changed(self) -> None:
        now = self._clock()
        if now - self._drawn < (REDRAW_S if self._live else LINE_S):
            return
        self._drawn = now
        text = self.line(now)
        if self._live:
            # A line that wraps could not be taken away again.
            text = f"\r\x1b[2K{text[: shutil.get_terminal_size().columns - 1]}"
        self._sink.write(text if self._live else f"{text}\n")
        self._sink.flush()

    def line(self, now: float) -> str:
        """`[####    ] 120/2000   6%  98.3/s  2 errors  ETA 0:19`."""
        watch = self._watch
        share = watch.done / watch.total if watch.total else 1.0
        filled = int(share * BAR)
        rate = self._rate(now)
        parts = [f"[{'#' * filled}{' ' * (BAR - filled)}] {watch.done}/{watch.total} {share:4.0%}"]
        parts.append(f"{rate:.1f}/s" if rate >= 1 or not rate else f"{rate * 60:.1f}/min")
        parts.append(f"{watch.in_flight} running")
        if watch.errors:
            parts.append(f"{watch.errors} error{'s' if watch.errors > 1 else ''}")
        if rate and watch.done < watch.total:
            parts.append(f"ETA {_clock((watch.total - watch.done) / rate)}")
        return "  ".join(parts)

    def _rate(self, now: float) -> float:
        """Tasks a second, of late."""
        self._marks.append((now, self._watch.worked))
        while len(self._marks) > 2 and now - self._marks[1][0] > RATE_WINDOW_S:
            self._marks.pop(0)
        since, before = self._marks[0]
        return (self._watch.worked - before) / (now - since) if now > since else 0.0


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


# Ends a run early: one Ctrl+C finishes what is in flight, a second or SIGTERM leaves it.

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
async def finishing_on_signals(watch: RunCounts, clear: Callable[[], None]) -> AsyncIterator[None]:
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

    def __init__(self, watch: RunCounts, clear: Callable[[], None], worker: asyncio.Task[Any]) -> None:
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
