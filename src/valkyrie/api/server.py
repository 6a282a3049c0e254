"""A server's life: listen, keep an executor running, end in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sandboxes.protocol import raise_open_files
from sandboxes.retry import Backoff
from sandboxes.web_listener import HEAD_S, Listener, bind
from valkyrie.api.app import create_app, end_streams
from valkyrie.api.capacity import ApiSettings
from valkyrie.errors import InfrastructureError, UserError
from valkyrie.executor.client import clean_environment

if TYPE_CHECKING:
    from valkyrie.store.layout import DataFolder
    from valkyrie.tracker.app import TrackerApp


log = logging.getLogger("valkyrie.api")
PARENT_PIPE = "VALKYRIE_PARENT_PIPE"
"""The descriptor of a pipe that nobody writes to: when it closes, whoever started the executor is gone."""
_HANDED_ON = ("VALKYRIE_DATABASE_URL", "VALKYRIE_SECRET_KEY")
_BACKOFF = Backoff(first_s=1.0, longest_s=30.0, jitter=0.0)
_STEADY_S = 60.0
"""Whoever lived so long may start again at once."""
_LAST_WORDS_S = 15.0


def executor_environment() -> dict[str, str]:
    """Return what the executor inherits: what any executor does, the way to the database, and to AWS."""
    theirs = {
        name: value for name, value in os.environ.items() if name in _HANDED_ON or name.startswith("AWS_")
    }
    return {**clean_environment(), **theirs}


class Supervisor:
    """Keeps one child process running until told otherwise.

    The child holds the reading end of a pipe of ours. However we end, also by `kill -9`, the kernel closes
    the writing end, and the child sees that nobody will look after it: nothing has to be sent, and no signal
    can be missed.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        restarted: Callable[[], None] = lambda: None,
        first_pause_s: float = _BACKOFF.first_s,
    ) -> None:
        self._command = list(command)
        self._environment = dict(environment)
        self._restarted = restarted
        self._backoff = replace(_BACKOFF, first_s=first_pause_s)
        self._child: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None
        self._ending = asyncio.Event()
        self._hurry = asyncio.Event()
        self._read_end, self._write_end = os.pipe()

    @classmethod
    def of_executor(cls, data: DataFolder, restarted: Callable[[], None] = lambda: None) -> Supervisor:
        """The executor of a data folder, which stays when it has nothing to do."""
        command = [sys.executable, "-P", "-m", "valkyrie.executor", str(data.root), "--stay"]
        return cls(command, executor_environment(), restarted)

    @property
    def pid(self) -> int | None:
        child = self._child
        return child.pid if child and child.returncode is None else None

    async def start(self) -> None:
        """Start the child, and again whenever it ends; InfrastructureError when it cannot even be started."""
        try:
            self._child = await self._spawn()
        except OSError as error:
            raise InfrastructureError(
                f"The executor cannot be started: {error.strerror or error}."
            ) from error
        self._task = asyncio.get_running_loop().create_task(self._keep_alive(self._child))

    async def _spawn(self) -> asyncio.subprocess.Process:
        child = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=sys.stderr.fileno(),
            cwd="/",
            env={**self._environment, PARENT_PIPE: str(self._read_end)},
            pass_fds=(self._read_end,),
            start_new_session=True,  # Ctrl+C is for us, and we tell it
        )
        log.info("executor started, pid %d", child.pid)
        return child

    async def _keep_alive(self, child: asyncio.subprocess.Process) -> None:
        loop = asyncio.get_running_loop()
        deaths = 0
        while True:
            began = loop.time()
            code = await child.wait()
            if self._ending.is_set():
                return
            if loop.time() - began >= _STEADY_S:
                deaths = 0
            deaths += 1
            pause = self._backoff.delay(deaths)
            log.warning("executor %d %s; it is started again in %.0f s", child.pid, _how(code), pause)
            if await self._told_to_end_within(pause):
                return
            try:
                child = self._child = await self._spawn()
            except OSError as error:
                log.error("the executor cannot be started: %s", error)
                continue
            self._restarted()

    async def _told_to_end_within(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ending.wait()
        return self._ending.is_set()

    async def close(self, drain_timeout: float) -> None:
        """Let the child finish its trials, so many seconds; then they go back to the queue."""
        self._ending.set()
        if self._task is not None:
            for limit, told in ((drain_timeout, "drains"), (_LAST_WORDS_S, "gives its trials back")):
                if self._tell(signal.SIGTERM):
                    log.info("executor %s %s", self.pid, told)
                if await self._ended_within(limit, hurried=limit == drain_timeout):
                    break
            else:
                log.warning("executor %s does not end; it is killed", self.pid)
                self._tell(signal.SIGKILL)
            await self._task
        os.close(self._write_end)
        os.close(self._read_end)

    def hurry(self) -> None:
        """Wait no longer for trials under way."""
        self._hurry.set()

    def _tell(self, number: signal.Signals) -> bool:
        if self._child is None or self._child.returncode is not None:
            return False
        with contextlib.suppress(ProcessLookupError):
            self._child.send_signal(number)
        return True

    async def _ended_within(self, seconds: float, *, hurried: bool) -> bool:
        assert self._task is not None, "started"
        hurry = asyncio.ensure_future(self._hurry.wait())
        waited = {self._task, hurry} if hurried else {self._task}
        try:
            await asyncio.wait(waited, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            hurry.cancel()
        return self._task.done()


def _how(code: int) -> str:
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"


# A server's life: listen, keep an executor running, end in order.
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
