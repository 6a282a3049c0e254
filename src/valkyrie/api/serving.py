"""A server's life: listen, keep an executor running, end in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sandboxes.limits import raise_open_files
from sandboxes.web_listener import HEAD_S, Listener, bind
from valkyrie.api.app import create_app, end_streams
from valkyrie.api.settings import ApiSettings
from valkyrie.api.supervisor import Supervisor
from valkyrie.errors import InfrastructureError, UserError

if TYPE_CHECKING:
    from valkyrie.tracker.app import TrackerApp

log = logging.getLogger("valkyrie.api")
_EXECUTOR_S = 10.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What `valkyrie serve` was asked for."""

    settings: ApiSettings
    port: int
    executor: bool = True
    """Whether an executor of its own runs beside it."""
    drain_timeout: float = 60.0
    """Seconds trials under way may take when the server ends."""


class ApiServer:
    """The application on a socket; the tracker app stays the caller's."""

    def __init__(
        self,
        tracker_app: TrackerApp,
        settings: ApiSettings,
        port: int = 0,
        *,
        grace_s: float = 10.0,
        head_s: float = HEAD_S,
    ) -> None:
        self.app = create_app(tracker_app, settings)
        bound = _bind(settings.host, port)
        self._listener = Listener(self.app, bound, grace_s=max(1, round(grace_s)), head_s=head_s)
        self.url = self._listener.url

    async def start(self) -> None:
        """Serve in the background; returns when requests are answered."""
        await self._listener.start()

    async def ended(self) -> None:
        """Return when it serves no longer."""
        await self._listener.ended()

    async def close(self) -> None:
        """Accept nothing more, end streams, let other answers be finished."""
        await end_streams(self.app)
        await self._listener.close()

    def hurry(self) -> None:
        """Wait for no answer any more."""
        self._listener.hurry()


async def serve(tracker_app: TrackerApp, options: ServeOptions, ready: Callable[[str], None]) -> None:
    """Serve until a signal says otherwise; `ready` is called with the address once requests are answered.

    The first signal ends it in order: answers are finished, the executor drains. The second means now.
    """
    raise_open_files()  # every connection is one
    server = ApiServer(tracker_app, options.settings, options.port, grace_s=options.drain_timeout)
    metrics = server.app.state.context.metrics
    supervisor = Supervisor.of_executor(tracker_app.data, metrics.restarted) if options.executor else None

    def hurry() -> None:
        log.warning("told again to end: nothing is waited for any more")
        server.hurry()
        if supervisor:
            supervisor.hurry()

    with _signals(hurry) as asked_to_end:
        try:
            await server.start()
            if supervisor:
                await supervisor.start()
                await asyncio.to_thread(_await_executor, tracker_app)
            ready(server.url)
            await _first_of(asked_to_end.wait(), server.ended())
            if not asked_to_end.is_set():
                raise InfrastructureError("The server ended by itself; what it logged says why.")
            log.info("told to end: answers under way are finished, trials have %g s", options.drain_timeout)
        finally:
            async with asyncio.TaskGroup() as ending:
                ending.create_task(server.close())
                if supervisor:
                    ending.create_task(supervisor.close(options.drain_timeout))


def _bind(host: str, port: int) -> socket.socket:
    """Return a listening socket; UserError says why there is none."""
    try:
        return bind(host, port)
    except OSError as error:
        raise UserError(f"Cannot listen on {host}, port {port}: {error.strerror or error}.") from error


def _await_executor(tracker_app: TrackerApp) -> None:
    """Return when an executor is at work; not without end, for requests are answered without one too."""
    deadline = time.monotonic() + _EXECUTOR_S
    with contextlib.closing(tracker_app.store.changes(0.1, 0.5)) as changes:  # type: ignore[type-var]
        for _ in changes:
            if tracker_app.dispatch.alive() or time.monotonic() > deadline:
                return


async def _first_of(*waits: Coroutine[Any, Any, object]) -> None:
    """Return when one of them has; the others are cancelled."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


@contextlib.contextmanager
def _signals(again: Callable[[], None]) -> Iterator[asyncio.Event]:
    """An event the first signal sets; every further one calls `again`."""
    loop, asked = asyncio.get_running_loop(), asyncio.Event()

    def told() -> None:
        if asked.is_set():
            again()
        asked.set()

    for number in _SIGNALS:
        loop.add_signal_handler(number, told)
    try:
        yield asked
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
